//! What the control socket tells of a volume, as JSON.

use serde_json::{Value, json};
use tidegate_engine::op::Class;
use tidegate_engine::probe::{DestageReason, GateState, Health, Histogram, Phase, QueueTimes, Snapshot, Waits};
use tidegate_engine::what_if::{Forecast, Forecasts, Point};

/// A snapshot as a program reads it: sizes in bytes or blocks as their names say, times in seconds or nanoseconds likewise.
/// Counters are since the daemon's start. What only recovery finds out is null before it has ended ([`Snapshot::has_served`]).
pub fn status_json(snapshot: &Snapshot) -> Value {
    let (c, mode, is_known) = (&snapshot.counters, snapshot.mode, snapshot.has_served);
    let found = |figure: Value| if is_known { figure } else { Value::Null };
    let ledger: serde_json::Map<String, Value> = snapshot.ledger.iter().map(|(part, bytes)| ((*part).to_owned(), json!(bytes))).collect();
    json!({
        "phase": phase_name(&snapshot.phase),
        "recovery": snapshot.recovery.map(|recovery| json!({ "step": recovery.step.name(), "done": recovery.done, "of": recovery.of })),
        "gate": found(gate_name(snapshot.gate).into()),
        "destage_reason": reason_name(snapshot.gate),
        "sets": { "total": snapshot.sets, "free": found(snapshot.free_sets.into()), "dirty": found(snapshot.dirty_sets.into()) },
        "live_blocks": found(snapshot.live_slots.into()),
        "dirty_blocks": found(snapshot.dirty_slots.into()),
        "zero_ranges": found(snapshot.zero_ranges.into()),
        "lost_blocks": found(snapshot.lost_blocks.into()),
        "oldest_dirty_seconds": snapshot.oldest_dirty.map(|age| age.as_secs_f64()),
        "requests_in_flight": snapshot.requests_in_flight,
        "cache_health": health_name(snapshot.health),
        "degraded_seconds": snapshot.degraded_since.map(|since| snapshot.now.since(since).as_secs_f64()),
        "scrub": {
            "sets_done": snapshot.scrub.sets_done, "passes": c.scrub_passes,
            "last_pass_seconds": snapshot.scrub.last_pass.map(|at| snapshot.now.since(at).as_secs_f64()),
            "blocks": c.scrubbed_blocks, "dropped_blocks": c.scrub_dropped_blocks,
            "rescued_blocks": c.scrub_rescued_blocks, "damaged_blocks": c.scrub_damaged_blocks, "repaired_pages": c.scrub_repaired_pages,
        },
        "drain": snapshot.drain.map(|drain| json!({
            "blocks_at_start": drain.blocks_at_start, "blocks_left": drain.blocks_left,
            "seconds_left": snapshot.drain_left.map(|left| left.as_secs_f64()),
        })),
        "mode": is_known.then(|| json!({ "wanted": mode.wanted.name(), "recorded": mode.recorded.name(), "switching": mode.is_switching })),
        "detaching": snapshot.is_detaching,
        "memory": {
            "pages": snapshot.memory.pages, "pages_max": snapshot.memory.pages_max, "evicted": snapshot.memory.evicted,
            "lent": snapshot.memory.lent, "lent_moves": snapshot.memory.lent_moves,
            "policy": snapshot.memory.policy.name(), "follows": snapshot.memory.follows.map(|(kind, _)| kind.name()),
            "switches": snapshot.memory.follows.map(|(_, switches)| switches),
            "hit_blocks": c.memory_hit_blocks, "miss_blocks": c.memory_miss_blocks, "written_blocks": c.front_written_blocks,
        },
        "hits": { "blocks": c.hit_blocks, "read_ahead_blocks": c.ahead_blocks, "read_ahead_hit_blocks": c.ahead_hit_blocks },
        "misses": { "blocks": c.miss_blocks },
        "requests": {
            "reads": c.reads, "writes": c.writes, "flushes": c.flushes, "trims": c.trims,
            "read_bytes": c.read_atoms * 512, "written_bytes": c.written_atoms * 512,
        },
        "through": {
            "blocks": c.through_blocks, "split_blocks": c.split_blocks, "commit_blocks": c.commit_blocks,
            "straight_blocks": c.straight_blocks, "logged_blocks": c.through_logged_blocks, "origin_flushes": c.through_flushes,
        },
        "fills": {
            "kept_blocks": c.filled_blocks, "void_blocks": c.fill_void_blocks, "no_room_blocks": c.fill_no_room_blocks,
            "budget_blocks": c.fill_budget_blocks, "sequential_blocks": c.fill_sequential_blocks,
            "first_touch_blocks": c.fill_first_touch_blocks, "sieved_blocks": c.fill_sieved_blocks,
            "around_reads": c.around_reads, "misses_to_keep": snapshot.admission.touches, "keeps_sequences": snapshot.admission.sequences,
        },
        "destage": {
            "blocks": c.destaged_blocks, "batches": c.destage_batches, "failures": c.destage_failures,
            "zeroed_blocks": c.zeroed_blocks, "lost_blocks": c.lost_blocks, "dropped_sets": c.dropped_sets,
            "spared_sets": c.spared_sets,
            "batch_most_ns": snapshot.batch_most.0, "quiet_read_p99_ns": snapshot.quiet_p99.map(|p99| p99.0),
        },
        "cleaning": { "sets": c.cleaned_sets, "moved_blocks": c.moved_blocks, "dropped_blocks": c.clean_dropped_blocks },
        "discards": { "sets": c.discarded_sets, "left_out_sets": c.undiscarded_sets, "failures": c.discard_failures },
        "waits": waits_json(&c.waits),
        "errors": {
            "corrupt_clean_slots": c.corrupt_clean_slots, "corrupt_dirty_slots": c.corrupt_dirty_slots,
            "cache_flush_failures": c.cache_flush_failures, "cache_write_failures": c.cache_write_failures, "late_ops": c.late_ops,
            "stalled_requests": c.stalled_requests, "refused_blocks": found(snapshot.refused_blocks.into()),
            "unreadable_blocks": found(snapshot.unreadable_blocks.into()),
        },
        "cache": {
            "flushes": c.cache_flushes, "checkpoints": c.checkpoints, "journal_pages": c.journal_pages,
            "data_bytes": c.cache_atoms.data() * 512, "metadata_bytes": c.cache_atoms.metadata() * 512,
        },
        "recovered": is_known.then(|| json!({
            "clean_slots": c.recovered_clean_slots, "dirty_slots": c.recovered_dirty_slots,
            "groups": c.recovered_groups, "cut_groups": c.recovered_cut_groups,
        })),
        "latency_ns": {
            "read": latency_json(&snapshot.latencies.read),
            "write": latency_json(&snapshot.latencies.write),
            "flush": latency_json(&snapshot.latencies.flush),
        },
        "queues": { "cache": queue_json(&snapshot.queues[0]), "origin": queue_json(&snapshot.queues[1]) },
        "ledger_bytes": ledger,
        "damage": snapshot.damage.iter().map(|damage| json!({ "fatal": damage.fatal, "what": damage.what })).collect::<Vec<_>>(),
    })
}

/// What memory and cache would miss of what is read if they had other sizes: miss ratios from 0 to 1. Each is, within the tier's `error`, that of a
/// size which is off by no more than the share `size_error`; while too little was read to tell, there is none. Beside them what memory has missed
/// since the start (of all blocks read), and the cache (of those that memory did not have).
pub fn curve_json(forecasts: &Forecasts, snapshot: &Snapshot) -> Value {
    let tier = |forecast: &Forecast| {
        let bytes = |blocks: u64| blocks * forecasts.block_bytes;
        let point = |point: &Point| {
            let Point { blocks, misses, size_error } = *point;
            json!({ "blocks": blocks, "bytes": bytes(blocks), "miss_ratio": misses, "size_error": size_error })
        };
        json!({
            "blocks": forecast.blocks, "bytes": bytes(forecast.blocks), "accesses": forecast.accesses, "keys": forecast.keys,
            "rate": forecast.rate, "error": forecast.error, "points": forecast.points.iter().map(point).collect::<Vec<_>>(),
        })
    };
    let c = &snapshot.counters;
    let (mut memory, mut cache) = (tier(&forecasts.memory), tier(&forecasts.cache));
    // Without memory every read is asked of the cache, and none counted there.
    let asked = (c.memory_hit_blocks + c.memory_miss_blocks).max(c.hit_blocks + c.miss_blocks);
    let missed = |misses: u64| if asked == 0 { Value::Null } else { json!(misses as f64 / asked as f64) };
    memory["missed"] = if forecasts.memory.blocks == 0 { Value::Null } else { missed(c.memory_miss_blocks) };
    cache["missed"] = missed(c.miss_blocks);
    json!({
        "phase": phase_name(&snapshot.phase), "memory": memory, "cache": cache,
        "front_blocks": forecasts.of_fronts, "unnoted_blocks": forecasts.unnoted,
    })
}

fn waits_json(waits: &Waits) -> Value {
    waits.iter().map(|(reason, count)| (reason.name().to_owned(), json!(count))).collect::<serde_json::Map<_, _>>().into()
}

/// By class: how long operations waited for the device, and how long it had them.
fn queue_json(times: &[(Class, QueueTimes)]) -> Value {
    let of_class = |(class, times): &(Class, QueueTimes)| {
        (class.name().to_owned(), json!({ "queue_ns": latency_json(&times.queue), "service_ns": latency_json(&times.service) }))
    };
    times.iter().map(of_class).collect::<serde_json::Map<_, _>>().into()
}

fn latency_json(latencies: &Histogram) -> Value {
    json!({
        "count": latencies.count(),
        "p50": latencies.percentile(0.50).0,
        "p99": latencies.percentile(0.99).0,
        "p999": latencies.percentile(0.999).0,
    })
}

fn phase_name(phase: &Phase) -> &'static str {
    match phase {
        Phase::Recovering => "recovering",
        Phase::Serving => "serving",
        Phase::Refused => "refused",
        Phase::Stopped => "stopped",
    }
}

fn health_name(health: Health) -> &'static str {
    match health {
        Health::Whole => "whole",
        Health::Fencing => "fencing",
        Health::Unfenced => "unfenced",
        Health::Degraded => "degraded",
    }
}

fn gate_name(gate: GateState) -> &'static str {
    match gate {
        GateState::Normal => "normal",
        GateState::Wait => "wait",
        GateState::Destage(_) => "destage",
    }
}

fn reason_name(gate: GateState) -> Option<&'static str> {
    match gate {
        GateState::Normal | GateState::Wait => None,
        GateState::Destage(DestageReason::Idle) => Some("idle"),
        GateState::Destage(DestageReason::HighMark) => Some("high-mark"),
        GateState::Destage(DestageReason::Age) => Some("age"),
        GateState::Destage(DestageReason::NoFreeSet) => Some("no-free-set"),
        GateState::Destage(DestageReason::Drain) => Some("drain"),
        GateState::Destage(DestageReason::Mode) => Some("mode"),
        GateState::Destage(DestageReason::BelowFloor) => Some("below-floor"),
        GateState::Destage(DestageReason::Sweep) => Some("sweep"),
    }
}
