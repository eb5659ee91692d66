//! Looking before sleeping: whoever is answered asks again at once, and to be woken takes longer than that. For a while (`poll`) the loop looks
//! whether something has happened, instead of sleeping; but only as long as somebody does ask again within that time, and for little at once:
//! where many requests come together they share what it costs to be woken. So a busy loop costs a processor some time, and one that is idle, or
//! works for nobody, none. After looks in vain it sleeps more and more often before it tries again: the processor that it looks on may be the
//! client's.

use std::time::{Duration, Instant};

use tidegate_engine::time;

/// A client that is woken by its answer asks again within this, also where to be woken takes a virtual machine long.
const DEFAULT: time::Duration = time::Duration::from_micros(60);

/// How long to look where nothing is said. With a single processor it is the client that would be kept from working: never.
pub fn default() -> time::Duration {
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    if processors > 1 { DEFAULT } else { time::Duration::ZERO }
}

#[derive(Debug, Default)]
pub struct Vigil {
    most: Duration,
    is_worth_it: bool,
    /// When it began to wait for somebody to ask.
    since: Option<Instant>,
    /// Pauses that it sleeps through, whatever they are like: what is left of those after the last look in vain, and all of them.
    sleeps: [u32; 2],
}

/// More requests at once than these are no reason to look.
const FEW: usize = 4;
/// Pauses between two looks in vain, at most.
const SLEEPS_MAX: u32 = 1023;

impl Vigil {
    /// `most`: how long to look. Zero: never.
    pub fn new(most: time::Duration) -> Vigil {
        Vigil { most: Duration::from_nanos(most.0), ..Vigil::default() }
    }

    /// Asks `has_happened` until it says so. False: it is time to sleep, or no time to look. `limit`: by then somebody else wants the loop.
    pub fn look(&mut self, limit: Option<Duration>, mut has_happened: impl FnMut() -> bool) -> bool {
        if !self.is_worth_it {
            return false;
        }
        let started = Instant::now();
        let since = *self.since.get_or_insert(started);
        let until = (since + self.most).min(started + limit.unwrap_or(self.most));
        if started > until {
            return false;
        }
        loop {
            if has_happened() {
                return true;
            }
            if Instant::now() >= until {
                return false;
            }
            std::hint::spin_loop();
        }
    }

    /// Sleeps, as `sleep` does it: a pause may begin with it.
    pub fn sleep<T>(&mut self, sleep: impl FnOnce() -> T) -> T {
        if !self.most.is_zero() {
            self.since.get_or_insert_with(Instant::now);
        }
        sleep()
    }

    /// So many requests have come: whether to look next time depends on that, and on how long it has taken.
    pub fn heard(&mut self, requests: usize) {
        if requests == 0 {
            return;
        }
        if let Some(since) = self.since.take() {
            self.learn(since.elapsed(), requests);
        }
    }

    fn learn(&mut self, pause: Duration, requests: usize) {
        let [left, all] = &mut self.sleeps;
        match self.is_worth_it {
            _ if requests > FEW => self.is_worth_it = false,
            true if pause <= self.most => *all = 0,
            true => {
                self.is_worth_it = false;
                *all = (2 * *all + 1).min(SLEEPS_MAX);
                *left = *all;
            }
            false if *left > 0 => *left -= 1,
            // To be woken takes about as long as a client does.
            false => self.is_worth_it = pause <= 2 * self.most,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOST: Duration = Duration::from_millis(50);

    #[test]
    fn a_new_configuration_says_how_long_it_looks() {
        let line = format!("#poll = \"{}us\"\n", DEFAULT.0 / 1_000);
        assert!(include_str!("../../../src/config/knobs.toml").contains(&line), "{line}");
    }

    fn vigil() -> Vigil {
        Vigil::new(time::Duration::from_millis(50))
    }

    fn pause(vigil: &mut Vigil, length: Duration) {
        vigil.sleep(|| std::thread::sleep(length));
        vigil.heard(1);
    }

    #[test]
    fn after_a_short_pause_it_looks_and_after_a_long_one_it_does_not() {
        let mut vigil = vigil();
        assert!(!vigil.look(None, || panic!("nothing is known yet")));
        pause(&mut vigil, Duration::ZERO);
        let mut looks = 0;
        let third_time = || {
            looks += 1;
            looks == 3
        };
        assert!(vigil.look(None, third_time));
        assert!(!vigil.look(Some(Duration::ZERO), || false));
        vigil.heard(FEW);
        let started = Instant::now();
        assert!(!vigil.look(None, || false) && started.elapsed() >= MOST);
        pause(&mut vigil, Duration::ZERO);
        assert!(!vigil.look(None, || panic!("the look was in vain")));
        pause(&mut vigil, 3 * MOST);
        pause(&mut vigil, 3 * MOST);
        assert!(!vigil.look(None, || panic!("the last pause was long")));
        pause(&mut vigil, Duration::ZERO);
        assert!(vigil.look(None, || true));
        vigil.heard(FEW + 1);
        assert!(!vigil.look(None, || panic!("many ask at once")));
    }

    #[test]
    fn looks_in_vain_become_rare() {
        let mut vigil = vigil();
        let mut looked = Vec::new();
        for number in 0..40 {
            if vigil.is_worth_it {
                looked.push(number);
            }
            // Longer than it looks, and not twice as long.
            vigil.learn(MOST * 3 / 2, 1);
        }
        assert_eq!(looked, [1, 4, 9, 18, 35]);
    }

    #[test]
    fn what_happens_for_nobody_is_not_looked_for() {
        let mut vigil = vigil();
        pause(&mut vigil, Duration::ZERO);
        let started = Instant::now();
        while vigil.look(None, || true) {
            assert!(started.elapsed() < 100 * MOST, "nobody has asked for long");
            std::thread::sleep(MOST / 10);
            vigil.sleep(|| {});
        }
    }

    #[test]
    fn without_time_it_never_looks() {
        let mut vigil = Vigil::new(time::Duration::ZERO);
        pause(&mut vigil, Duration::ZERO);
        assert!(!vigil.look(None, || panic!("there is no time")));
    }
}
