//! How often two reads of random places meet: once in as many pairs as there are parts, whatever the map is. It shows when pairs that meet are a
//! crowd of their own:
//!
//! ```text
//!   pairs  ▲  ██                   most take as long as one read,
//!          │  ███        ▄▄        some as long as two,
//!          │ ▄███▁▁▁▁▁▁▁▄███▁      and few something between
//! ```

use super::Pair;
use super::evidence;
use crate::time::Duration;

/// Where the second crowd is looked for: extra times in hundredths of a read alone.
const PLACES: std::ops::RangeInclusive<u64> = 25..=110;
/// Fewer are none.
const CROWD_MIN: f64 = 30.0;

/// Parts that work side by side.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Parts {
    pub count: f64,
    /// Within two standard deviations.
    pub low: f64,
    pub high: f64,
    /// How much longer two reads take that meet.
    pub cost: Duration,
}

/// How many parts two random reads meet on. None: pairs that meet are no crowd of their own.
pub fn find(pairs: &[Pair], alone: &[Duration]) -> Option<Parts> {
    let read = evidence::median(alone).0.max(1) as f64;
    let times: Vec<Duration> = pairs.iter().map(|pair| pair.time).collect();
    let most = evidence::median(&times).0 as f64;
    let extras: Vec<f64> = times.iter().map(|time| (time.0 as f64 - most) / read).collect();
    let about = |place: f64, reach: f64| extras.iter().filter(|extra| (*extra - place).abs() < reach).count() as f64;
    let (cost, crowd, between) = PLACES
        .map(|place| place as f64 / 100.0)
        .map(|place| (place, about(place, 0.15 * place), about(place / 2.0, 0.15 * place)))
        .max_by(|one, other| (one.1 - one.2).total_cmp(&(other.1 - other.2)))?;
    if crowd < CROWD_MIN || crowd < 3.0 * between + 4.0 * crowd.sqrt() {
        return None;
    }
    // Between the crowds, where few are. A read that takes so long alone has met nobody.
    let limit = cost / 2.0;
    let late = alone.iter().filter(|time| time.0 as f64 > read * (1.0 + limit)).count() as f64 / alone.len() as f64;
    let count = pairs.len() as f64;
    let share = extras.iter().filter(|extra| **extra > limit).count() as f64 / count - 2.0 * late;
    let spread = 2.0 * (share.max(0.0) / count + 4.0 * late / alone.len() as f64).sqrt();
    let low = (share - spread > 0.0).then(|| 1.0 / (share + spread))?;
    Some(Parts { count: 1.0 / share, low, high: 1.0 / (share - spread), cost: Duration((cost * read) as u64) })
}
