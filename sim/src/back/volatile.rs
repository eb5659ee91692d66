//! A device's volatile cache: what was written is seen at once and is durable only after a flush.
//!
//! ```text
//!   write completes ─▶ visible + unflushed ── flush succeeds ─▶ durable
//!                                   │ ├────── flush fails ────▶ any part of it durable, the rest visible until the power goes
//!                                   └──────── power cut ──────▶ any part of it durable, in any order, torn at any atom
//! ```
//! A flush covers exactly what had completed when it was started.

use super::contents::Contents;
use crate::chance::Chance;
use crate::stamp::Stamps;
use std::collections::VecDeque;
use std::rc::Rc;
use tidegate_engine::block::Span;
use tidegate_engine::op::Zone;
use tidegate_engine::payload::Payload;

/// A write that is not durable: completed and unflushed, or still in flight.
#[derive(Clone, Debug)]
pub struct Unflushed {
    pub zone: Zone,
    pub start: u64,
    pub data: Stamps,
}

impl Unflushed {
    pub fn span(&self) -> Span {
        Span::new(self.start, self.data.atoms())
    }
}

/// Which of the unflushed atoms a power cut leaves behind.
#[derive(Clone)]
pub enum Survive {
    None,
    All,
    /// Any subset of the writes, each whole.
    Random,
    /// Any subset of the writes, and some of them in part.
    Torn,
    /// The atoms that are told by their zone, address on the device, and the write's place among the unflushed ones.
    Only(Rc<dyn Fn(Zone, u64, usize) -> bool>),
}

impl std::fmt::Debug for Survive {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Survive::None => "nothing",
            Survive::All => "everything",
            Survive::Random => "any of the writes",
            Survive::Torn => "any of the atoms",
            Survive::Only(_) => "chosen atoms",
        })
    }
}

#[derive(Clone, Debug)]
pub struct Volatile {
    visible: Contents,
    durable: Contents,
    /// Completed writes that no flush has covered, oldest first, and the number of the first one.
    unflushed: VecDeque<Unflushed>,
    first: u64,
}

impl Volatile {
    pub fn new(contents: Contents) -> Self {
        Volatile { visible: contents.clone(), durable: contents, unflushed: VecDeque::new(), first: 0 }
    }

    /// What reads see.
    pub fn visible(&self) -> &Contents {
        &self.visible
    }

    /// What a power cut cannot take.
    pub fn durable(&self) -> &Contents {
        &self.durable
    }

    pub fn unflushed(&self) -> impl Iterator<Item = &Unflushed> {
        self.unflushed.iter()
    }

    /// A write completes.
    pub fn write(&mut self, write: Unflushed) {
        self.visible.write(write.start, &write.data);
        self.unflushed.push_back(write);
    }

    /// Changes an atom behind the device's back.
    pub fn rot(&mut self, atom: u64, bit: u64) {
        self.visible.rot(atom, bit);
        self.durable.rot(atom, bit);
    }

    /// A flush starts now: the mark of what it covers.
    pub fn mark(&self) -> u64 {
        self.first + self.unflushed.len() as u64
    }

    fn take(&mut self, mark: u64) -> impl Iterator<Item = Unflushed> + use<> {
        let count = (mark.saturating_sub(self.first) as usize).min(self.unflushed.len());
        self.first += count as u64;
        self.unflushed.drain(..count).collect::<Vec<_>>().into_iter()
    }

    /// The flush that took `mark` succeeds.
    pub fn flushed(&mut self, mark: u64) {
        for write in self.take(mark) {
            self.durable.write(write.start, &write.data);
        }
    }

    /// The flush that took `mark` fails. Some of what it covered is durable; the rest stays visible, no later flush knows of it,
    /// and the next power cut takes it: that is what operating systems do.
    pub fn flush_failed(&mut self, mark: u64, chance: &mut Chance) {
        for write in self.take(mark) {
            if chance.one_in(2) {
                self.durable.write(write.start, &write.data);
            }
        }
    }

    /// What a failed flush left visible is not seen any more: what the power cut would take goes now.
    pub fn drop_doomed(&mut self) {
        self.visible = self.durable.clone();
        for write in &self.unflushed {
            self.visible.write(write.start, &write.data);
        }
    }

    /// What a place may hold after a power cut: what is durable, and what was written since, in order.
    pub fn stamps_of(&self, atom: u64) -> Vec<u64> {
        let here = self.unflushed.iter().filter(|write| (write.start..write.start + write.data.atoms()).contains(&atom));
        let newer = here.map(|write| write.data.stamp(atom - write.start));
        std::iter::once(self.durable.stamp(atom)).chain(newer).chain([self.visible.stamp(atom)]).collect()
    }

    /// The power goes, with `running` writes still on their way: what the device holds when it comes back.
    pub fn power_cut(&self, running: &[Unflushed], survive: &Survive, chance: &mut Chance) -> Contents {
        let mut left = self.durable.clone();
        let mut odds = Odds::draw(chance);
        for (age, write) in self.unflushed.iter().chain(running).enumerate() {
            match survive {
                Survive::None => {}
                Survive::All => left.write(write.start, &write.data),
                Survive::Random if odds.lost(write.zone, chance) => {}
                Survive::Random => left.write(write.start, &write.data),
                Survive::Torn if chance.one_in(2) => {
                    let odds = &mut odds;
                    write_some(&mut left, write, |_| !odds.lost(write.zone, chance));
                }
                Survive::Torn if odds.lost(write.zone, chance) => {}
                Survive::Torn => left.write(write.start, &write.data),
                Survive::Only(which) => write_some(&mut left, write, |atom| which(write.zone, atom, age)),
            }
        }
        left
    }
}

/// Writes those atoms of `write` that `landed` names.
pub fn write_some(contents: &mut Contents, write: &Unflushed, mut landed: impl FnMut(u64) -> bool) {
    for index in 0..write.data.atoms() {
        if landed(write.start + index) {
            contents.write(write.start + index, &write.data.slice(index, 1));
        }
    }
}

/// How likely a write is lost at one power cut. Each zone has its own odds, because the interesting states lie at the corners:
/// records without their data, data without its records, everything but one write.
struct Odds {
    percent: [u32; 8],
}

impl Odds {
    fn draw(chance: &mut Chance) -> Self {
        let all = chance.pick(&[3, 50, 50, 97]);
        let percent = std::array::from_fn(|_| if chance.one_in(2) { all } else { chance.pick(&[0, 10, 50, 90, 100]) });
        Odds { percent }
    }

    fn lost(&mut self, zone: Zone, chance: &mut Chance) -> bool {
        chance.percent(self.percent[zone as usize])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn device() -> Volatile {
        Volatile::new(Contents::blank(0, 64))
    }

    fn write(number: u64, start: u64, atoms: u64) -> Unflushed {
        Unflushed { zone: Zone::Data, start, data: Stamps::written(number, start, atoms) }
    }

    fn number(contents: &Contents, atom: u64) -> u64 {
        crate::stamp::meaning(contents.stamp(atom)).map_or(0, |(write, _)| write)
    }

    #[test]
    fn a_flush_covers_what_had_completed_when_it_was_started() {
        let mut device = device();
        device.write(write(1, 0, 4));
        let mark = device.mark();
        device.write(write(2, 2, 4));
        device.flushed(mark);
        assert_eq!((number(device.visible(), 2), number(device.durable(), 2)), (2, 1));
        let left = device.power_cut(&[], &Survive::None, &mut Chance::new(0, ""));
        assert_eq!((number(&left, 0), number(&left, 2), number(&left, 5)), (1, 1, 0));
        device.flushed(device.mark());
        assert_eq!((number(device.durable(), 2), number(device.durable(), 5)), (2, 2));
    }

    #[test]
    fn after_a_failed_flush_the_next_one_does_not_save_what_it_covered() {
        let mut lost = 0;
        for seed in 0..64 {
            let mut device = device();
            device.write(write(1, 0, 1));
            device.flush_failed(device.mark(), &mut Chance::new(seed, "flush"));
            device.flushed(device.mark());
            assert_eq!(number(device.visible(), 0), 1, "it stays visible");
            lost += u32::from(number(device.durable(), 0) == 0);
        }
        assert!((10..54).contains(&lost), "some of it is gone: {lost} of 64");
    }

    #[test]
    fn a_power_cut_leaves_any_subset_and_later_ones_without_earlier_ones() {
        let mut seen = std::collections::BTreeSet::new();
        for seed in 0..2_000 {
            let mut device = device();
            device.write(write(1, 0, 2));
            device.write(write(2, 1, 2));
            let left = device.power_cut(&[write(3, 8, 1)], &Survive::Torn, &mut Chance::new(seed, "cut"));
            seen.insert([0, 1, 2, 8].map(|atom| number(&left, atom)));
        }
        // Atom 0: of write 1 or not; atom 1: of 1, of 2 or of neither; atom 2: of 2 or not; atom 8: of 3 or not.
        assert_eq!(seen.len(), 2 * 3 * 2 * 2);
    }

    #[test]
    fn chosen_atoms_survive() {
        let mut device = device();
        device.write(write(1, 0, 8));
        let survive = Survive::Only(Rc::new(|_, atom, _| atom < 3));
        let left = device.power_cut(&[], &survive, &mut Chance::new(0, ""));
        assert_eq!([0, 2, 3, 7].map(|atom| number(&left, atom)), [1, 1, 0, 0]);
    }
}
