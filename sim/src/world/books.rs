//! What the engine tells about itself, held against what the world has seen: counts that must agree with the requests that were made, with what
//! the SSD was given and with each other, and what counts as safe at home, which must lie there.

use super::Simulation;
use crate::back::fault::Rates;
use crate::chance::mix;
use crate::front::oracle::Broken;
use tidegate_engine::block::Span;
use tidegate_engine::op::{Action, DeviceId, Op, Zone};
use tidegate_engine::payload::Payload;
use tidegate_engine::probe::{Counters, Health, Phase, Snapshot};
use tidegate_engine::request::{Command, Reply, RequestError};
use tidegate_engine::time::{Duration, Instant};

/// The books are looked at once in so many turns with a reply.
const EVERY: u64 = 300;

const HOUR: Duration = Duration::from_secs(3_600);

/// Atoms that are compared with the origin then.
const STRETCH: u64 = 512;

/// More of anything than a run can come to: a count that has gone below zero is more.
const ABSURD: u64 = 1 << 48;

/// What the world has seen of one engine.
#[derive(Clone, Debug, Default)]
pub struct Books {
    /// Requests that it was handed: reads, writes, trims and zeroes, flushes.
    asked: [u64; 4],
    /// Atoms that were written to the SSD; of these, to its data.
    given: u64,
    given_data: u64,
    /// Writes that it had failed before. Of a merged one that fails each part goes out once more, uncounted.
    failed: u64,
    /// It has refused some of those, and may have counted them or not.
    has_refused: bool,
    /// What it told last.
    told: Option<Counters>,
    /// How often the origin had been started before this engine was, and when it was since then.
    started_before: u64,
    starts: Vec<Instant>,
    /// Somebody else may have started it too, or it has not done as it was told.
    was_shared: bool,
}

impl Books {
    /// Of an engine that is started now, on a cache that has failed so many writes and before an origin that was started so often.
    pub(super) fn open(failed: u64, started_before: u64) -> Books {
        Books { failed, started_before, ..Books::default() }
    }

    pub(super) fn ask<P>(&mut self, command: &Command<P>) {
        let place = match command {
            Command::Read => 0,
            Command::Write { .. } => 1,
            Command::Trim { .. } | Command::Zero { .. } => 2,
            Command::Flush => 3,
            Command::Cache | Command::Status { .. } => return,
        };
        self.asked[place] += 1;
    }

    pub(super) fn hear<P>(&mut self, reply: &Reply<P>) {
        self.has_refused |= matches!(reply.result, Err(RequestError::Shutdown));
    }

    pub(super) fn start<P: Payload>(&mut self, op: &Op<P>) {
        if let (DeviceId::Cache, Action::Write(zone, span, _)) = (op.device, &op.action) {
            self.given += span.atoms;
            self.given_data += if *zone == Zone::Data { span.atoms } else { 0 };
        }
    }
}

/// Every count, for what holds of all of them.
fn counts(counters: &Counters) -> Vec<u64> {
    // A field that is added is to be told here.
    #[rustfmt::skip]
    let Counters {
        reads, writes, flushes, trims, hit_blocks, miss_blocks, read_atoms, written_atoms: _, filled_blocks, completed_blocks, fill_void_blocks,
        memory_hit_blocks, memory_miss_blocks, front_written_blocks, fill_no_room_blocks, fill_budget_blocks, fill_sequential_blocks,
        fill_first_touch_blocks, fill_sieved_blocks, around_reads, ahead_blocks, ahead_hit_blocks, through_blocks, split_blocks, commit_blocks,
        straight_blocks, through_logged_blocks, through_flushes, overwritten_blocks, destaged_blocks, destage_batches, destage_failures,
        zeroed_blocks, lost_blocks, dropped_sets, spared_sets, cleaned_sets, moved_blocks, clean_dropped_blocks, clean_budget_waits,
        discarded_sets, undiscarded_sets, discard_failures, waits: _, corrupt_clean_slots, corrupt_dirty_slots, cache_flushes,
        cache_flush_failures, cache_write_failures, checkpoints, journal_pages, cache_atoms, late_ops, stalled_requests, scrubbed_blocks,
        scrub_dropped_blocks, scrub_rescued_blocks, scrub_damaged_blocks, scrub_repaired_pages, scrub_passes, recovered_clean_slots,
        recovered_dirty_slots, recovered_groups, recovered_cut_groups, fence_checked_blocks,
    } = counters;
    #[rustfmt::skip]
    let mut all = [
        reads, writes, flushes, trims, hit_blocks, miss_blocks, read_atoms, filled_blocks, completed_blocks, fill_void_blocks,
        memory_hit_blocks, memory_miss_blocks, front_written_blocks, fill_no_room_blocks, fill_budget_blocks, fill_sequential_blocks,
        fill_first_touch_blocks, fill_sieved_blocks, around_reads, ahead_blocks, ahead_hit_blocks, through_blocks, split_blocks, commit_blocks,
        straight_blocks, through_logged_blocks, through_flushes, overwritten_blocks, destaged_blocks, destage_batches, destage_failures,
        zeroed_blocks, lost_blocks, dropped_sets, spared_sets, cleaned_sets, moved_blocks, clean_dropped_blocks, clean_budget_waits,
        discarded_sets, undiscarded_sets, discard_failures, corrupt_clean_slots, corrupt_dirty_slots, cache_flushes, cache_flush_failures,
        cache_write_failures, checkpoints, journal_pages, late_ops, stalled_requests, scrubbed_blocks, scrub_dropped_blocks,
        scrub_rescued_blocks, scrub_damaged_blocks, scrub_repaired_pages, scrub_passes, recovered_clean_slots, recovered_dirty_slots,
        recovered_groups, recovered_cut_groups, fence_checked_blocks,
    ]
    .map(|&count| count)
    .to_vec();
    all.extend(cache_atoms.0);
    all
}

impl Simulation {
    /// Looks at the books now and then.
    pub(super) fn note_books(&mut self) {
        self.note_starts();
        if self.scene.replied && self.scene.replies.is_multiple_of(EVERY) {
            self.check_books();
        }
    }

    /// Holds what the engine tells against what was seen.
    pub fn check_books(&mut self) {
        if self.scene.broken.is_some() {
            return;
        }
        let snapshot = self.inspect();
        let checked = self.compare(&snapshot).and_then(|()| self.check_home(&snapshot));
        self.scene.books.told = Some(snapshot.counters);
        if let Err(what) = checked {
            self.scene.broken = Some(Broken(format!("the report is false: {what}")));
        }
    }

    /// Nobody else starts or stops the origin: neither a stranger, nor whoever takes it away and brings it back. And it does as it is told.
    fn drive_is_ours(&self) -> bool {
        let Rates { spin_error, spin_silence, .. } = self.plan.rates[1];
        !self.plan.strangers && !self.plan.dozes && self.plan.origin_leaves_every == 0 && spin_error + spin_silence == 0
    }

    /// Within any hour the drive is started no more often than it may be.
    fn note_starts(&mut self) {
        let Some(config) = &self.plan.config.spin else { return };
        let (now, is_ours, books) = (self.scene.agenda.now(), self.drive_is_ours(), &mut self.scene.books);
        books.was_shared |= !is_ours;
        let starts = self.scene.origin.model.counters().spin_ups.iter().sum::<u64>() - books.started_before;
        if starts == books.starts.len() as u64 {
            return;
        }
        books.starts.resize(starts as usize, now);
        let lately = books.starts.iter().rev().take_while(|&&start| start + HOUR > now).count();
        if !books.was_shared && lately > config.per_hour as usize && self.scene.broken.is_none() {
            self.scene.broken = Some(Broken(format!("the origin was started {lately} times within an hour, of {}", config.per_hour)));
        }
    }

    /// What is told of the motor: every start that there was, no other one, and nothing that cannot be.
    fn compare_motor(&self, snapshot: &Snapshot) -> Result<(), String> {
        let Some(report) = &snapshot.spin else { return Ok(()) };
        let (told, seen) = (report.counters.all_starts(), self.scene.books.starts.len() as u64);
        let may_differ = self.scene.books.was_shared || self.scene.origin.is_told();
        if !may_differ && told != seen {
            return Err(format!("{told} starts of the origin, and there were {seen}"));
        }
        if report.slept > self.now().since(Instant::ZERO) || report.counters.losses > told {
            return Err(format!("the motor's report does not add up: {report:?}"));
        }
        Ok(())
    }

    fn compare(&self, snapshot: &Snapshot) -> Result<(), String> {
        let (books, counters) = (&self.scene.books, &snapshot.counters);
        let must = |holds: bool, what: &dyn Fn() -> String| if holds { Ok(()) } else { Err(what()) };
        // Requests.
        let pending = self.scene.oracle.pending();
        must(snapshot.requests_in_flight == pending, &|| {
            format!("{} requests in flight, and {pending} wait", snapshot.requests_in_flight)
        })?;
        let counted = [counters.reads, counters.writes, counters.trims, counters.flushes];
        let is_all = if books.has_refused || snapshot.phase == Phase::Refused {
            counted.iter().zip(&books.asked).all(|(counted, asked)| counted <= asked)
        } else {
            counted == books.asked
        };
        must(is_all, &|| format!("{counted:?} reads, writes, trims and flushes, and {:?} were asked for", books.asked))?;
        self.compare_motor(snapshot)?;
        // What was written to the SSD.
        let (total, data) = (counters.cache_atoms.total(), counters.cache_atoms.data());
        let is_well = self.scene.cache.failed_writes == books.failed;
        must(!is_well || books.given <= total && books.given_data <= data, &|| {
            format!("{total} atoms written to the SSD, {data} of data, and it was given {}, {} of data", books.given, books.given_data)
        })?;
        let is_still = snapshot.phase == Phase::Stopped && self.scene.cache.in_flight() == 0;
        must(!is_still || !is_well || total == books.given, &|| {
            format!("{total} atoms written to the SSD, and it was given {}", books.given)
        })?;
        let wear = &snapshot.wear;
        let is_longer = wear.lifetime.cache.total() >= wear.since_start.cache.total() && wear.lifetime.clients >= wear.since_start.clients;
        must(is_longer && wear.lately.0 <= total, &|| format!("wear does not add up: {wear:?}"))?;
        // What grows only.
        let (now, before) = (counts(counters), books.told.as_ref().map(counts));
        must(now.iter().chain([&counters.written_atoms]).all(|&count| count < ABSURD), &|| format!("a count is absurd: {counters:?}"))?;
        let grows = before.is_none_or(|before| before.iter().zip(&now).all(|(before, now)| before <= now));
        must(grows, &|| format!("a count has shrunk: {:?}, then {counters:?}", books.told))?;
        // Parts and wholes.
        let geometry = &self.plan.config.geometry;
        let slots = u64::from(geometry.sets) * u64::from(geometry.set_slots);
        let fits = snapshot.dirty_slots <= snapshot.live_slots
            && snapshot.live_slots <= slots
            && snapshot.free_sets + snapshot.dirty_sets <= snapshot.sets
            && snapshot.range_entries <= u64::from(geometry.range_entries)
            && snapshot.lost_blocks <= geometry.blocks()
            && snapshot.memory.pages <= snapshot.memory.pages_max + snapshot.memory.lent;
        must(fits, &|| format!("parts are more than the whole: {snapshot:?}"))?;
        let held: u64 = snapshot.ledger.iter().map(|(_, bytes)| bytes).sum();
        must(held < 1 << 30, &|| format!("the engine holds {:?}", snapshot.ledger))?;
        if snapshot.phase == Phase::Serving {
            let stored = (0..geometry.sets).flat_map(|set| self.engine.stored(set));
            let (slots, dirty) = stored.fold((0, 0), |(slots, dirty), slot| (slots + 1, dirty + u64::from(slot.is_dirty)));
            let (live, told) = (snapshot.live_slots, snapshot.dirty_slots);
            // Slots that may be overwritten in place are not among those, nor those of sets whose headers are still to come.
            let is_true = slots <= live && if slots == live { dirty == told } else { dirty <= told };
            must(is_true, &|| format!("{live} live slots, {told} dirty ones, and the sets hold {slots}, {dirty} of them dirty"))?;
        }
        Ok(())
    }

    /// What is not at risk is on the origin: looked at in one stretch of the volume, another one each time.
    fn check_home(&self, snapshot: &Snapshot) -> Result<(), String> {
        let is_told = snapshot.phase == Phase::Serving && snapshot.health == Health::Whole && !self.engine.has_front_writes();
        // What went through may be on its way, and nobody tells which. A mode that was recorded in a life before does that, too (seed 1964).
        if !is_told || self.scene.oracle.may_bypass && !self.engine.is_clean() {
            return Ok(());
        }
        let (scene, atoms) = (&self.scene, self.plan.config.geometry.volume_atoms);
        let start = mix(scene.replies) % atoms;
        let looked_at = Span::new(start, STRETCH.min(atoms - start));
        let at_risk: Vec<Span> = self.engine.at_risk().filter(|span| span.overlaps(looked_at)).collect();
        let is_at_risk = |atom: u64| at_risk.iter().any(|span| (span.start..span.end()).contains(&atom));
        let home = (looked_at.start..looked_at.end()).filter(|&atom| !is_at_risk(atom));
        scene.oracle.check(home, |atom| scene.origin.visible().stamp(atom)).map_err(|broken| format!("not at risk: {}", broken.0))
    }
}
