//! Wear for `status`: what the engine counted, in bytes, beside what the maker of the SSD says that it bears.

use serde_json::{Map, Value, json};
use tidegate_engine::block::ATOM_BYTES;
use tidegate_engine::probe::{Counters, Snapshot};
use tidegate_engine::time::Duration;
use tidegate_engine::wear::{Cause, Wear, Written};

const DAY_SECONDS: f64 = 86_400.0;

/// What the operator has said of the SSD, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rating {
    /// Written in its life, as its maker states it (TBW).
    pub life: Option<u64>,
    /// To be written a day.
    pub daily: Option<u64>,
}

/// The object `wear` of a status: sizes in bytes. Of the life of the cache its superblocks know, and nothing is said before they are read.
pub fn wear_json(snapshot: &Snapshot, rating: &Rating) -> Value {
    let Snapshot { wear, counters, .. } = snapshot;
    if snapshot.has_served { of_life(wear, rating, counters) } else { json!({ "since_start": written_json(&wear.since_start) }) }
}

fn of_life(wear: &Wear, rating: &Rating, counters: &Counters) -> Value {
    let per_day = per_day(wear.lately);
    let written = wear.lifetime.cache.total() * ATOM_BYTES;
    let life = rating.life.map(|life| {
        let left = life.saturating_sub(written) as f64;
        json!({
            "rated_bytes": life,
            "used_percent": 100.0 * written as f64 / life as f64,
            "days_left": per_day.filter(|&rate| rate > 0.0).map(|rate| left / rate),
        })
    });
    let budget = wear.budget_left.map(|left| {
        json!({
            "daily_bytes": rating.daily,
            "left_bytes": left,
            "unkept_blocks": counters.fill_budget_blocks,
            "cleaner_waits": counters.clean_budget_waits,
        })
    });
    json!({
        "since_start": written_json(&wear.since_start),
        "lifetime": written_json(&wear.lifetime),
        "bytes_per_day": per_day.map(|rate| rate.round() as u64),
        "measured_seconds": wear.lately.1.as_secs_f64(),
        "life": life,
        "budget": budget,
    })
}

fn per_day((atoms, time): (u64, Duration)) -> Option<f64> {
    (time > Duration::ZERO).then(|| (atoms * ATOM_BYTES) as f64 * DAY_SECONDS / time.as_secs_f64())
}

fn written_json(written: &Written) -> Value {
    let bytes = |cause: Cause| (cause.name().to_owned(), json!(written.cache.of(cause) * ATOM_BYTES));
    json!({
        "clients_bytes": written.clients * ATOM_BYTES,
        "ssd_bytes": written.cache.total() * ATOM_BYTES,
        "amplification": written.amplification(),
        "by_cause": Cause::ALL.into_iter().map(bytes).collect::<Map<_, _>>(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_engine::wear::ByCause;

    const TB: u64 = 1_000_000_000_000;

    fn wear() -> Wear {
        let since_start = Written { clients: 100, cache: ByCause([100, 20, 0, 0, 4, 1, 0, 0, 0]) };
        // 15 TB in all; half a TB of it in the last half day.
        let lifetime = Written { clients: 10 * TB / 512, cache: ByCause([15 * TB / 512, 0, 0, 0, 0, 0, 0, 0, 0]) };
        Wear { since_start, lifetime, lately: (TB / 2 / 512, Duration::from_secs(43_200)), budget_left: None }
    }

    #[test]
    fn an_ssd_whose_life_is_not_rated_has_no_days_left_to_tell() {
        let told = of_life(&wear(), &Rating::default(), &Counters::default());
        assert_eq!((&told["life"], &told["budget"]), (&Value::Null, &Value::Null));
        assert_eq!((told["bytes_per_day"].as_u64(), told["measured_seconds"].as_f64()), (Some(TB), Some(43_200.0)));
        assert_eq!((told["since_start"]["ssd_bytes"].as_u64(), told["since_start"]["amplification"].as_f64()), (Some(64_000), Some(1.25)));
        assert_eq!(told["since_start"]["by_cause"]["fills"].as_u64(), Some(10_240));
    }

    #[test]
    fn life_is_what_is_left_of_the_rating_at_the_rate_of_the_last_day() {
        let told = of_life(&wear(), &Rating { life: Some(150 * TB), daily: None }, &Counters::default());
        let life = ["used_percent", "days_left"].map(|key| told["life"][key].as_f64().expect("a number").round());
        assert_eq!(life, [10.0, 135.0]);
        let worn = of_life(&wear(), &Rating { life: Some(10 * TB), daily: None }, &Counters::default());
        assert_eq!((worn["life"]["used_percent"].as_f64().map(f64::round), worn["life"]["days_left"].as_f64()), (Some(150.0), Some(0.0)));
        let idle =
            of_life(&Wear { lately: (0, Duration::from_secs(5)), ..wear() }, &Rating { life: Some(TB), daily: None }, &Counters::default());
        assert_eq!(idle["life"]["days_left"], Value::Null, "nothing is written: it lasts");
        let fresh = of_life(&Wear::default(), &Rating::default(), &Counters::default());
        assert_eq!((&fresh["bytes_per_day"], &fresh["lifetime"]["amplification"]), (&Value::Null, &Value::Null));
    }

    #[test]
    fn a_budget_tells_what_it_leaves_and_what_it_kept_out() {
        let counters = Counters { fill_budget_blocks: 3, clean_budget_waits: 2, ..Counters::default() };
        let told = of_life(&Wear { budget_left: Some(-7), ..wear() }, &Rating { life: None, daily: Some(TB) }, &counters);
        assert_eq!(told["budget"], json!({ "daily_bytes": TB, "left_bytes": -7, "unkept_blocks": 3, "cleaner_waits": 2 }));
    }
}
