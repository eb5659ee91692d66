//! The share of memory that dirty pages have: what is acknowledged and not on the SSD yet may fill `dirty_ram`, and what of that it does not need
//! is lent to clean pages, in small steps.
//!
//! ```text
//!   |<---------------------- dirty_ram ---------------------->|<------ ram ------>|
//!   | always dirty's |  dirty  |above|     lent to clean pages      clean pages    | gone of late |
//!                       |below|
//! ```
//! Ghosts say what a step would bring. *Behind* what is clean: reads that miss, and all of whose missed blocks went within the last step of
//! pages. *Above* the dirty share: writes that find it full, and would not, were it a step larger. *Below* its end: writes that would find
//! it full, were it a step smaller. A read or a write that waits for a device is one as good as the other.
//!
//! A step is made by what the last [`LOOK`] of such reads and writes say, so a load of which memory has everything moves nothing, and neither
//! does time. One side must gain twice what the other loses, and a thirty-second of the look at least: as what is below before a step is above
//! after it, the same load never takes back what it gave.

/// Reads that missed and writes, until it is decided.
const LOOK: u64 = 512;
/// Of them, those that a step must spare at least, and how many for each that it costs.
const SPARED_MIN: u64 = LOOK / 32;
const SPARED_FOR_ONE: u64 = 2;
/// From all to least in so many steps.
const STEPS: u64 = 16;

/// How much is lent.
#[derive(Debug)]
pub struct DirtyShare {
    most_bytes: u64,
    block_bytes: u64,
    /// Blocks that may be lent, that are, and that are moved at once.
    lendable: u64,
    lent: u64,
    step: u64,
    seen: Seen,
    moves: u64,
}

/// Since the last decision.
#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    requests: u64,
    behind: u64,
    above: u64,
    below: u64,
}

impl DirtyShare {
    /// Of at most `most_bytes`, at least `least_bytes` stay what dirty pages may fill.
    pub fn new(most_bytes: u64, least_bytes: u64, block_bytes: u64) -> DirtyShare {
        let lendable = most_bytes.saturating_sub(least_bytes) / block_bytes;
        DirtyShare { most_bytes, block_bytes, lendable, lent: 0, step: lendable.div_ceil(STEPS), seen: Seen::default(), moves: 0 }
    }

    /// What may be in memory alone.
    pub fn bytes(&self) -> u64 {
        self.most_bytes - self.lent * self.block_bytes
    }
    /// Blocks that clean pages have of it, and could have.
    pub fn lent(&self) -> u64 {
        self.lent
    }
    pub fn lendable(&self) -> u64 {
        self.lendable
    }
    /// Blocks that are moved at once.
    pub fn step(&self) -> u64 {
        self.step
    }
    /// How often some were.
    pub fn moves(&self) -> u64 {
        self.moves
    }

    /// A read has missed; with a step more for clean pages it would have hit. True: the share has changed.
    pub fn read_missed(&mut self, is_spared: bool) -> bool {
        self.seen.behind += u64::from(is_spared);
        self.look()
    }

    /// A write has come: with all before it that are not on the SSD it fills so many bytes. True: the share has changed.
    pub fn write_came(&mut self, filled_bytes: u64) -> bool {
        let (now, step) = (self.bytes(), self.step * self.block_bytes);
        self.seen.above += u64::from(filled_bytes > now && filled_bytes <= now + step);
        self.seen.below += u64::from(filled_bytes <= now && filled_bytes > now.saturating_sub(step));
        self.look()
    }

    fn look(&mut self) -> bool {
        self.seen.requests += 1;
        if self.lendable == 0 || self.seen.requests < LOOK {
            return false;
        }
        let Seen { behind, above, below, .. } = std::mem::take(&mut self.seen);
        let pays = |spared: u64, cost: u64| spared >= SPARED_MIN && spared > SPARED_FOR_ONE * cost;
        let lent = if pays(behind, above.max(below)) {
            (self.lent + self.step).min(self.lendable)
        } else if pays(above, behind) {
            self.lent.saturating_sub(self.step)
        } else {
            self.lent
        };
        let has_moved = lent != self.lent;
        self.moves += u64::from(has_moved);
        self.lent = lent;
        assert!(self.lent <= self.lendable, "what dirty pages always have is not lent");
        has_moved
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BLOCK: u64 = 4096;

    /// Of 64 blocks at least 16 stay: steps of 3.
    fn share() -> DirtyShare {
        DirtyShare::new(64 * BLOCK, 16 * BLOCK, BLOCK)
    }

    /// So many looks, of each look so many reads that are spared, others, and writes that fill so many blocks. Returns blocks lent.
    fn after(share: &mut DirtyShare, looks: u64, spared: u64, writes: u64, fill: u64) -> u64 {
        for _ in 0..looks {
            for request in 0..LOOK {
                match request {
                    _ if request < spared => share.read_missed(true),
                    _ if request < spared + writes => share.write_came(fill * BLOCK),
                    _ => share.read_missed(false),
                };
            }
        }
        share.lent()
    }

    #[test]
    fn what_nobody_fills_is_lent_by_steps_and_never_all() {
        let mut share = share();
        assert_eq!((after(&mut share, 1, 100, 400, 4), share.step()), (3, 3));
        assert_eq!((after(&mut share, 100, 100, 400, 4), share.bytes()), (48, 16 * BLOCK));
        assert_eq!(share.moves(), 16);
    }

    #[test]
    fn writes_take_back_what_they_fill() {
        let mut share = share();
        after(&mut share, 100, 100, 0, 0);
        assert_eq!(after(&mut share, 1, 40, 100, 18), 45, "18 blocks are more than 16, and not than 19");
        assert_eq!(after(&mut share, 1, 10, 100, 40), 45, "40 are more than 19 as well");
        for fill in 20..=70 {
            after(&mut share, 3, 0, 100, fill);
        }
        assert_eq!((share.lent(), share.bytes()), (0, 64 * BLOCK));
    }

    #[test]
    fn the_same_load_never_takes_back_what_it_gave() {
        for writes in 0..=300 {
            let mut share = share();
            after(&mut share, 50, 100, writes, 30);
            assert!(share.moves() <= 16, "{} moves beside {writes} writes", share.moves());
        }
    }

    #[test]
    fn little_moves_nothing() {
        let mut share = share();
        assert_eq!(after(&mut share, 100, SPARED_MIN - 1, 0, 0), 0);
        assert_eq!(after(&mut share, 100, 100, 60, 63), 0, "as many writes fill it to its end");
        assert_eq!(share.moves(), 0);
    }

    #[test]
    fn where_nothing_is_to_be_lent_nothing_is() {
        for (most, least) in [(0, 0), (BLOCK - 1, 0), (64 * BLOCK, 64 * BLOCK), (64 * BLOCK, 1 << 40)] {
            let mut share = DirtyShare::new(most, least, BLOCK);
            assert_eq!((after(&mut share, 20, 300, 0, 0), share.bytes(), share.moves()), (0, most, 0));
        }
    }
}
