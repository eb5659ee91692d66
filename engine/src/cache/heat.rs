//! How often blocks are written, in a byte for each slot: what is likely to die together is written together, and cleaned last.
//!
//! The unit of time is one block written by a client. A slot remembers the *interval* between writes of its block as the logarithm of it in
//! eighths of an octave ([`Pace`]); when a block was last written is known at the grain of its set. Where all slots of a set have one pace,
//! as after a long write, nothing is kept for each.

/// Octaves that one class of paces covers: what differs by less dies together well enough.
const CLASS_OCTAVES: u32 = 3;
/// Classes at most. On blocks whose rates follow Zipf's law more bring little, and each class keeps a set or two open.
pub const CLASSES_MAX: u32 = 6;

/// The logarithm of a number above 0, in eighths, interpolated in a straight line between powers of two: at most 0.09 too small.
pub fn log8(number: u64) -> u32 {
    assert!(number > 0, "the logarithm of nothing");
    let octave = number.ilog2();
    let eighth = if octave >= 3 { number >> (octave - 3) } else { number << (3 - octave) };
    octave * 8 + (eighth as u32 & 7)
}

/// The interval between two writes of a block: `log8` of blocks written by clients meanwhile.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Pace(u8);

impl Pace {
    /// Of an interval in blocks.
    pub fn of(interval: u64) -> Pace {
        Pace(log8(interval.max(1)).min(255) as u8)
    }

    /// In blocks.
    pub fn interval(self) -> u64 {
        let (octave, eighth) = (u32::from(self.0) / 8, u64::from(self.0) % 8);
        let number = (8 + eighth) << octave;
        (number >> 3).max(1)
    }

    /// Writes in 2^48 blocks.
    pub fn rate(self) -> u64 {
        (1 << 48) / self.interval()
    }

    /// The block is written again after `gap` blocks: a tenth of what was expected gives way to that. `clock`: any number that goes on; it
    /// decides which way to round, so that small changes count in the long run.
    pub fn after(self, gap: u64, clock: u64) -> Pace {
        let interval = (9 * self.interval() + gap.max(1)) / 10;
        let low = Pace::of(interval);
        let high = Pace(low.0.saturating_add(1));
        let (above, step) = (interval - low.interval().min(interval), high.interval() - low.interval());
        let dice = clock.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 48;
        if above << 16 > dice * step { high } else { low }
    }

    /// The block was not written for `age` blocks: it is at least as slow as that.
    pub fn at_least(self, age: u64) -> Pace {
        self.max(Pace::of(age))
    }

    /// The class of this pace, of `classes`: 0 for the fastest. Where `blocks` blocks are written evenly, theirs is the first of the slower
    /// half.
    pub fn class(self, classes: u32, blocks: u64) -> u32 {
        let width = CLASS_OCTAVES * 8;
        let class = (u32::from(self.0) + width * (classes / 2)).saturating_sub(log8(blocks.max(1)).min(255)) / width;
        class.min(classes.max(1) - 1)
    }
}

/// The paces of the slots of one set: sixteen bytes, as long as all have one.
#[derive(Clone, Debug)]
pub enum Paces {
    Common(Pace),
    Each(Box<[Pace]>),
}

impl Paces {
    /// Nothing is known but what is usual.
    pub fn new(usual: Pace) -> Paces {
        Paces::Common(usual)
    }

    pub fn get(&self, slot: u32) -> Pace {
        match self {
            Paces::Common(pace) => *pace,
            Paces::Each(each) => each[slot as usize],
        }
    }

    /// Of `count` slots from `first` on. `slots`: how many the set has.
    pub fn set(&mut self, first: u32, count: u32, pace: Pace, slots: u32) {
        if count == slots {
            return *self = Paces::new(pace);
        }
        if let Paces::Common(common) = *self {
            if pace == common {
                return;
            }
            *self = Paces::Each(vec![common; slots as usize].into());
        }
        let Paces::Each(each) = self else { unreachable!("made above") };
        match count {
            1 => each[first as usize] = pace,
            _ => each[first as usize..(first + count) as usize].fill(pace),
        }
    }

    /// Of `count` slots from `first` on, how many have the pace of the first one, up to the first that has not.
    pub fn alike(&self, first: u32, count: u32) -> u32 {
        let each = match self {
            Paces::Each(each) if count > 1 => each,
            Paces::Common(_) | Paces::Each(_) => return count,
        };
        let paces = &each[first as usize..(first + count) as usize];
        paces.iter().position(|pace| *pace != paces[0]).map_or(count, |other| other as u32)
    }

    /// The sum of the rates of `count` slots from `first` on.
    pub fn rate(&self, first: u32, count: u32) -> u64 {
        match self {
            Paces::Common(pace) => u64::from(count) * pace.rate(),
            Paces::Each(each) if count == 1 => each[first as usize].rate(),
            Paces::Each(each) => each[first as usize..(first + count) as usize].iter().map(|pace| pace.rate()).sum(),
        }
    }

    pub fn bytes(&self) -> usize {
        match self {
            Paces::Common(_) => 0,
            Paces::Each(each) => each.len(),
        }
    }
}

const _: () = assert!(size_of::<Paces>() == 16, "they lie in each set of the log");

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_pace_is_the_interval_within_an_eighth_of_an_octave(interval in 1u64..1 << 32) {
            let told = Pace::of(interval).interval();
            prop_assert!(told <= interval && interval < told + told / 8 + 1, "{} for {}", told, interval);
            prop_assert!(Pace::of(interval) <= Pace::of(interval + 1));
        }

        #[test]
        fn a_block_written_evenly_finds_its_pace(interval in 1u64..1 << 28, start in 1u64..1 << 28) {
            let pace = (0..1000).fold(Pace::of(start), |pace, clock| pace.after(interval, clock));
            let told = pace.interval();
            prop_assert!(told * 3 >= interval * 2 && told * 2 <= interval * 3 + 8, "{} for {}", told, interval);
        }

        #[test]
        fn classes_go_from_fast_to_slow(classes in 1u32..=CLASSES_MAX, blocks in 1u64..1 << 28, interval in 1u64..1 << 31) {
            let class = |interval| Pace::of(interval).class(classes, blocks);
            prop_assert!(class(interval) <= class(2 * interval) && class(interval) < classes);
            prop_assert_eq!(class(blocks), (classes / 2).min(classes - 1));
        }

        #[test]
        fn paces_are_what_was_set(set in prop::collection::vec((0u32..32, 1u32..=32, 0u8..4), 0..40)) {
            let mut paces = Paces::new(Pace(3));
            let mut expected = [Pace(3); 32];
            for (first, count, pace) in set {
                let count = count.min(32 - first);
                paces.set(first, count, Pace(pace), 32);
                let range = first as usize..(first + count) as usize;
                expected[range.clone()].fill(Pace(pace));
                prop_assert!((0..32).all(|slot| paces.get(slot) == expected[slot as usize]));
                prop_assert_eq!(paces.alike(0, first + count) as usize, expected[..range.end].iter().take_while(|pace| **pace == expected[0]).count());
                prop_assert_eq!(paces.rate(0, first + count), expected[..range.end].iter().map(|pace| pace.rate()).sum::<u64>());
            }
        }
    }
}
