//! Looking before sleeping: whoever is answered asks again at once, and to be woken takes longer than that. For a while (`poll`) the loop looks
//! whether something has happened, instead of sleeping; but only as long as its last sleep was no longer than that. So a busy loop costs a
//! processor some time, an idle one none.

use std::time::{Duration, Instant};

#[derive(Debug, Default)]
pub struct Vigil {
    most: Duration,
    is_worth_it: bool,
}

impl Vigil {
    /// `most`: how long to look. Zero: never.
    pub fn new(most: Duration) -> Vigil {
        Vigil { most, is_worth_it: false }
    }

    /// Asks `has_happened` until it says so. False: it is time to sleep, or no time to look. `limit`: by then somebody else wants the loop.
    pub fn look(&self, limit: Option<Duration>, mut has_happened: impl FnMut() -> bool) -> bool {
        if !self.is_worth_it {
            return false;
        }
        let (started, most) = (Instant::now(), self.most.min(limit.unwrap_or(self.most)));
        loop {
            if has_happened() {
                return true;
            }
            if started.elapsed() >= most {
                return false;
            }
            std::hint::spin_loop();
        }
    }

    /// Sleeps, and learns from it whether to look next time.
    pub fn sleep<T>(&mut self, sleep: impl FnOnce() -> T) -> T {
        if self.most.is_zero() {
            return sleep();
        }
        let started = Instant::now();
        let result = sleep();
        self.is_worth_it = started.elapsed() <= self.most;
        result
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn after_a_short_sleep_it_looks_and_after_a_long_one_it_does_not() {
        let mut vigil = Vigil::new(Duration::from_millis(20));
        assert!(!vigil.look(None, || panic!("nothing is known yet")));
        vigil.sleep(|| {});
        let mut looks = 0;
        let third_time = || {
            looks += 1;
            looks == 3
        };
        assert!(vigil.look(None, third_time));
        let started = Instant::now();
        assert!(!vigil.look(None, || false) && started.elapsed() >= Duration::from_millis(20));
        assert!(!vigil.look(Some(Duration::ZERO), || false));
        vigil.sleep(|| std::thread::sleep(Duration::from_millis(25)));
        assert!(!vigil.look(None, || panic!("the last sleep was long")));
    }

    #[test]
    fn without_time_it_never_looks() {
        let mut vigil = Vigil::new(Duration::ZERO);
        vigil.sleep(|| {});
        assert!(!vigil.look(None, || panic!("there is no time")));
    }
}
