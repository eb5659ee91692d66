//! Who gets what comes free of the engine's room: in some seconds it is kept for whoever lacks much of it, in others everybody takes some. It may be
//! a disk that does not answer that has the rest, so nobody is waited for who gets no nearer to what he lacks.

/// A second that has brought this part of what is lacking is followed by another one in which others take none: so many at most, one after another.
const PARTS: u64 = 16;

#[derive(Debug, Default)]
pub struct Turns {
    /// Others take some as well.
    is_passed: bool,
    /// A job that lacks some comes after who is no job; else before him.
    jobs_wait: bool,
    /// What is lacking; 0: nobody lacks any.
    lacking: u64,
    /// So much was free at the last look.
    free: u64,
    /// The same when the second began.
    before: u64,
}

impl Turns {
    /// Do others take some of what comes free, until the next tick?
    pub fn is_passed(&self) -> bool {
        self.is_passed
    }

    /// Is it the turn of who is no job, if one and the other lack some? Each has every other of the times between two seconds in which all take some:
    /// there may always be more of either.
    pub fn jobs_wait(&self) -> bool {
        self.jobs_wait && !self.is_passed
    }

    /// Nobody lacks any more.
    pub fn settle(&mut self, is_cramped: bool) {
        self.is_passed &= is_cramped;
    }

    /// All have taken what they may: so much is left, and a job lacks so much, and somebody else so much (0: none does).
    pub fn look(&mut self, free: u64, job: u64, other: u64) {
        let lacking = if job == 0 || (other > 0 && self.jobs_wait) { other } else { job };
        if self.lacking == 0 {
            self.before = free;
        }
        (self.free, self.lacking) = (free, lacking);
    }

    /// A second is over. The first one after many in which nobody lacked any is followed by one in which others take none.
    pub fn tick(&mut self, is_first: bool) {
        let brought = self.free.saturating_sub(self.before);
        self.is_passed = !is_first && self.lacking > 0 && !self.is_passed && brought < self.lacking.div_ceil(PARTS);
        self.jobs_wait ^= self.is_passed;
        self.before = self.free;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn room_is_kept_for_as_long_as_enough_of_it_comes_and_no_longer() {
        let mut turns = Turns::default();
        let mut second = |free: u64, lacking: u64| {
            turns.look(free, 0, lacking);
            turns.tick(false);
            turns.is_passed()
        };
        assert!(second(100, 1600), "nothing has come");
        assert!(!second(0, 1600), "the others have had it");
        assert!((1..16).all(|part| !second(100 * part, 1600)));
        assert!(second(0, 1600), "it has been served, and somebody else lacks as much");
        assert!(!second(0, 1600) && second(99, 1600), "it is too slow");
        assert!(!second(0, 1600) && !second(500, 0), "nobody lacks any");
        assert!(second(900, 1600), "what was free before has not come now");
    }
}
