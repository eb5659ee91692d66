//! How long a batch of destaging may keep the origin from its clients.
//!
//! A disk takes what is written into its buffer at once and pays with the FLUSH: until the last block of the batch is in its place nothing else
//! is answered, and whoever reads meanwhile waits for all of it. So a batch is no larger than what clients put up with: their 99th percentile
//! beside destaging stays within twice of what it is without. Both are measured where clients read from the origin:
//!
//! ```text
//!   a read that met no batch   ──▶ the quiet 99th percentile (a step up for each one above it, a hundredth of a step down for each below)
//!   a read that met one        ──▶ above twice that: batches become shorter by two fifths, once a batch; else longer by a two-hundredth
//! ```
//! so that one read in a hundred is above it. While batches follow one another nobody knows any more what quiet is: now and then there is a rest,
//! until somebody has read. Where nobody reads for minutes batches grow again; where the log fills up they grow with it, and at the end, when
//! writers wait for room, they are as long as without clients.

use crate::time::{Duration, Instant};

/// The longest batch, whoever waits: half a second.
pub const MOST: Duration = Duration::from_millis(500);
/// The shortest, but for one set of the origin at least.
const LEAST: Duration = Duration::from_millis(2);
/// Clients put up with so many times their quiet 99th percentile.
const GOAL: f64 = 2.0;
/// Steps of the quiet percentile, of its logarithm.
const STEP: f64 = 0.2;
/// What a read above the goal takes from the length of batches, and what a read within it adds: as logarithms. One in a hundred balances.
const SHORTER: f64 = 0.5;
const LONGER: f64 = SHORTER / 99.0;
/// Where nobody reads, batches become twice as long in this time.
const DOUBLES_IN: Duration = Duration::from_secs(300);
/// Reads that have met batches, without one that has not, after which there is a rest.
const UNHEARD: u32 = 32;
/// A rest ends after this time if nobody reads.
const REST: Duration = Duration::from_millis(500);
/// What is known of quiet reads counts from so many on; until then it is their longest.
const KNOWN: u32 = 32;
/// Reads of up to 64 KiB cost a disk their place, larger ones their length: they are not compared with each other.
const SMALL_ATOMS: u64 = 128;

/// The clients' 99th percentile without destaging.
#[derive(Clone, Copy, Debug, Default)]
struct Quiet {
    p99_ns: f64,
    reads: u32,
}

impl Quiet {
    fn note(&mut self, took: Duration) {
        let took = (took.0 as f64).max(1.0);
        self.reads = self.reads.saturating_add(1);
        if self.reads <= KNOWN {
            self.p99_ns = self.p99_ns.max(took);
        } else if took > self.p99_ns {
            self.p99_ns *= (STEP * 0.99).exp();
        } else {
            self.p99_ns *= (-STEP * 0.01).exp();
        }
    }

    fn is_beyond(&self, took: Duration) -> bool {
        self.reads > 0 && took.0 as f64 > GOAL * self.p99_ns
    }
}

#[derive(Clone, Copy, Debug)]
pub struct Courtesy {
    /// Of small reads, and of large ones.
    quiet: [Quiet; 2],
    /// The longest that a batch may take, in nanoseconds.
    length_ns: f64,
    /// When that was last changed.
    changed: Instant,
    /// A batch is under way.
    is_busy: bool,
    /// Reads that were begun after this met nothing of any batch.
    calm: Instant,
    /// Batches have become shorter for what was read since this moment.
    shortened: Instant,
    /// Reads that have met batches since one has not.
    unheard: u32,
    /// A rest, until then at the latest.
    rest: Option<Instant>,
}

impl Default for Courtesy {
    fn default() -> Self {
        Courtesy {
            quiet: Default::default(),
            length_ns: MOST.0 as f64,
            changed: Instant::ZERO,
            is_busy: false,
            calm: Instant::ZERO,
            shortened: Instant::ZERO,
            unheard: 0,
            rest: None,
        }
    }
}

impl Courtesy {
    /// How long the next batch may take. `urgency`: from 0 (nothing presses) to 1 (writers will wait for room).
    pub fn length(&mut self, now: Instant, urgency: f64) -> Duration {
        let most = MOST.0 as f64;
        let idle = now.since(self.changed).as_secs_f64() / DOUBLES_IN.as_secs_f64();
        self.set_length(now, self.length_ns * idle.exp2());
        Duration((self.length_ns * (most / self.length_ns).powf(urgency.clamp(0.0, 1.0))) as u64)
    }

    fn set_length(&mut self, now: Instant, ns: f64) {
        self.length_ns = ns.clamp(LEAST.0 as f64, MOST.0 as f64);
        self.changed = now;
    }

    /// The same as it was found last, if nothing presses.
    pub fn most(&self) -> Duration {
        Duration(self.length_ns as u64)
    }

    /// The 99th percentile of small reads that met no batch, once there were some.
    pub fn quiet_p99(&self) -> Option<Duration> {
        let [small, _] = &self.quiet;
        (small.reads > 0).then_some(Duration(small.p99_ns as u64))
    }

    /// A client's read of the origin has ended well.
    pub fn read(&mut self, atoms: u64, started: Instant, now: Instant) {
        let quiet = &mut self.quiet[usize::from(atoms > SMALL_ATOMS)];
        let took = now.since(started);
        if !self.is_busy && started >= self.calm {
            quiet.note(took);
            (self.unheard, self.rest) = (0, None);
            return;
        }
        self.unheard += 1;
        // What waits behind this one has met the batch as well.
        self.calm = now;
        if !quiet.is_beyond(took) {
            return self.set_length(now, self.length_ns * LONGER.exp());
        }
        if started >= self.shortened {
            // Everybody who waits now has met the same batch.
            self.shortened = now;
            let length = self.length_ns.min(quiet.p99_ns);
            self.set_length(now, length * (-SHORTER).exp());
        }
    }

    pub fn begin(&mut self) {
        self.is_busy = true;
    }

    /// The batch has ended, FLUSH and all.
    pub fn end(&mut self, now: Instant) {
        (self.is_busy, self.calm) = (false, now);
        if self.unheard >= UNHEARD || self.unheard > 0 && self.quiet.iter().all(|quiet| quiet.reads == 0) {
            self.unheard = 0;
            self.rest = Some(now + REST);
        }
    }

    /// Until when no batch begins, unless it presses.
    pub fn rest(&self, now: Instant) -> Option<Instant> {
        self.rest.filter(|&until| until > now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    /// A disk that answers in 10 ms, and a client that has read 100 times in peace, a read every 20 ms.
    fn known() -> (Courtesy, Instant) {
        let (mut courtesy, mut now) = (Courtesy::default(), Instant(1_000_000_000));
        for _ in 0..100 {
            courtesy.read(8, now, now + ms(10));
            now = now + ms(20);
        }
        (courtesy, now)
    }

    /// A batch as long as it may be, and a read that waits for `share` of it; how long the batch was.
    fn batch_and_read(courtesy: &mut Courtesy, now: &mut Instant, share: f64) -> Duration {
        let length = courtesy.length(*now, 0.0);
        courtesy.begin();
        let end = *now + length;
        courtesy.end(end);
        let waits = Duration((length.0 as f64 * share) as u64 + 1);
        courtesy.read(8, Instant(end.0 - waits.0), end + ms(10));
        *now = end + ms(20);
        length
    }

    #[test]
    fn who_waits_for_too_long_makes_batches_short_at_once_and_patience_makes_them_longer_slowly() {
        let (mut courtesy, mut now) = known();
        assert_eq!(batch_and_read(&mut courtesy, &mut now, 0.5), MOST);
        let short = courtesy.length(now, 0.0);
        assert!((ms(5)..ms(7)).contains(&short), "{short:?}");
        for _ in 0..100 {
            batch_and_read(&mut courtesy, &mut now, 0.0);
        }
        let longer = courtesy.length(now, 0.0);
        assert!((ms(9)..ms(11)).contains(&longer), "half a step for 99 patient ones: {longer:?}");
    }

    #[test]
    fn one_read_in_a_hundred_is_above_the_goal() {
        let (mut courtesy, mut now) = known();
        let mut late = 0;
        for i in 0..20_000_u64 {
            // Reads meet any moment of a batch.
            let share = (i * 7919 % 1000) as f64 / 1000.0;
            let length = batch_and_read(&mut courtesy, &mut now, share);
            let took = ms(10).0 + (length.0 as f64 * share) as u64;
            late += u64::from(i > 1000 && courtesy.quiet[0].is_beyond(Duration(took)));
        }
        assert!((100..300).contains(&late), "{late} of 19,000");
    }

    #[test]
    fn all_that_wait_for_one_batch_count_once() {
        let (mut courtesy, now) = known();
        courtesy.begin();
        courtesy.end(now + ms(500));
        for i in 0..50 {
            courtesy.read(8, now + ms(i), now + ms(510 + i));
        }
        let short = courtesy.length(now + ms(600), 0.0);
        assert!(short > ms(5), "{short:?}");
    }

    #[test]
    fn a_rest_is_taken_where_nobody_knows_what_quiet_is_and_ends_with_a_read() {
        let (mut courtesy, mut now) = (Courtesy::default(), Instant(1_000_000_000));
        batch_and_read(&mut courtesy, &mut now, 0.5);
        assert_eq!(courtesy.rest(now), None, "that was behind the batch");
        batch_and_read(&mut courtesy, &mut now, 0.5);
        let until = courtesy.rest(now).expect("a rest");
        courtesy.read(8, now, now + ms(10));
        assert_eq!(courtesy.rest(now + ms(10)), None, "{until:?}");
        for _ in 0..UNHEARD {
            batch_and_read(&mut courtesy, &mut now, 0.5);
        }
        let before = now;
        batch_and_read(&mut courtesy, &mut now, 0.5);
        assert!(courtesy.rest(before + ms(1)).is_some(), "nobody has read in peace for long");
    }

    #[test]
    fn nobody_who_reads_means_no_rest_and_batches_that_grow() {
        let (mut courtesy, mut now) = known();
        batch_and_read(&mut courtesy, &mut now, 0.5);
        let short = courtesy.length(now, 0.0);
        for _ in 0..100 {
            courtesy.begin();
            courtesy.end(now);
            assert_eq!(courtesy.rest(now), None);
        }
        let later = courtesy.length(now + Duration::from_secs(600), 0.0);
        assert!(later.0.abs_diff(4 * short.0) < 1000, "{short:?}, {later:?}");
        assert_eq!(courtesy.length(now + Duration::from_secs(7200), 0.0), MOST);
    }

    #[test]
    fn the_fuller_the_log_the_longer_are_batches() {
        let (mut courtesy, mut now) = known();
        batch_and_read(&mut courtesy, &mut now, 0.5);
        let lengths = [0.0, 0.5, 1.0, 2.0].map(|urgency| courtesy.length(now, urgency));
        assert!(lengths.is_sorted() && lengths[1] > ms(50) && lengths[2].0.abs_diff(MOST.0) < 1000, "{lengths:?}");
        assert_eq!(lengths[2], lengths[3]);
    }

    #[test]
    fn large_reads_are_compared_with_large_ones() {
        let (mut courtesy, now) = known();
        courtesy.begin();
        courtesy.read(2048, now, now + ms(100));
        courtesy.end(now + ms(200));
        assert_eq!(courtesy.length(now + ms(200), 0.0), MOST, "a mebibyte takes that long for all that is known");
    }
}
