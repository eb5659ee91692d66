//! Fence, at the start: was the origin changed behind the cache's back? Before anything is written or served, some of its blocks are read
//! again: those that the last orderly stop has marked, and random ones that the cache holds clean. One that differs refuses the start.
//!
//! A crash raises no alarm: marks are there only after an orderly stop, and what is clean durably is what the origin holds.
//! A change is found if it touches a block that is looked at: of *c* clean cached blocks of which *k* were changed, *n* samples miss all
//! of them with a probability of about (1 − k/c)ⁿ. Blocks that are neither cached nor marked may change unnoticed, and do no harm here.
//!
//! An origin that takes long to answer is asked less: nothing new after two seconds. One that is away is not asked at all. One that does not
//! answer holds no start for ever: what is under way after 20 s of a turning disk is not compared, and may end at any later time. One whose motor
//! does not even say whether it turns counts as turning after a while (`spin`).

use std::collections::BTreeMap;

use crate::block::{Block, Slot};
use crate::cache::format::SetState;
use crate::cache::sets::Set;
use crate::draw::Draw;
use crate::fault_point::FaultPoint;
use crate::op::{Action, Answer, Class, DeviceError, DeviceId, OpId, Zone};
use crate::payload::Payload;
use crate::probe::Phase;
use crate::time::{Duration, Instant};

use super::{Engine, Owner, Stage, Step, joined};

/// No further block is asked for after this long.
const TIME: Duration = Duration::from_secs(2);
/// What is under way is waited for so long.
const PATIENCE: Duration = Duration::from_secs(20);
/// Reads in flight at once, when the first one has come quickly.
const DEPTH: usize = 16;
const QUICK: Duration = Duration::from_millis(250);
/// Clean sets whose headers are read before service for the sake of their blocks.
const SETS: u32 = 64;

#[derive(Default)]
pub(super) struct Fence {
    /// What the origin must hold, in descending order of the address: block, checksum.
    expected: Vec<(Block, u32)>,
    started: Instant,
    /// Since when the origin could have answered.
    turning: Instant,
    /// It does not turn: what it is asked for waits for that.
    is_held: bool,
    reading: usize,
    is_quick: bool,
    checked: u64,
    differing: Vec<Block>,
}

impl Fence {
    /// Blocks that are still to be compared, and all of them.
    pub fn progress(&self) -> (usize, usize) {
        let left = self.expected.len() + self.reading;
        (left, left + self.checked as usize)
    }
}

impl<P: Payload> Engine<P> {
    /// Another draw for each start: what one start does not look at, a later one may.
    fn fence_draw(&self) -> Draw {
        let superblock = self.recovery.as_ref().and_then(|recovery| recovery.superblock.as_ref()).expect("a superblock was chosen");
        let id = u64::from_le_bytes(superblock.format.0[..8].try_into().expect("eight bytes"));
        Draw::new(id ^ superblock.epoch.wrapping_mul(0x2545_f491_4f6c_dd1d))
    }

    /// Reads the headers of some clean sets, so that there is something to compare.
    pub(super) fn read_fence_headers(&mut self) {
        if self.config.fence_samples == 0 || self.config.check {
            return;
        }
        let mut draw = self.fence_draw();
        let is_clean = |engine: &Self, set: u32| engine.is_header_needed(set) && engine.sets.get(set).dirty_count == 0;
        let all = self.config.geometry.sets;
        let mut chosen: Vec<u32> =
            if all <= SETS { (0..all).collect() } else { (0..4 * SETS).map(|_| draw.below(u64::from(all)) as u32).collect() };
        chosen.sort_unstable();
        chosen.dedup();
        chosen.retain(|&set| is_clean(self, set));
        for &set in chosen.iter().take(SETS as usize) {
            self.recovery_read(Zone::Header, self.config.geometry.header(set), Step::FenceHeader { set });
        }
    }

    /// A header that cannot be used now is read again behind service.
    pub(super) fn fence_header_read(&mut self, set: u32, result: Result<Answer<P>, DeviceError>) {
        let payload: Option<P> = result.ok().map(joined);
        let bytes = payload.as_ref().map(Payload::bytes);
        if self.is_header_needed(set)
            && let Ok(header) = self.decode_header(set, false, bytes.as_deref())
        {
            self.load_header(set, &header);
        } else {
            self.meet(FaultPoint::FenceHeaderUnusable);
        }
    }

    /// With everything mapped that is needed for service: starts to compare.
    pub(super) fn begin_fence(&mut self) {
        self.recovery().enter(Stage::Fence);
        if self.config.fence_samples == 0 {
            return;
        }
        let mut expected = self.marks();
        expected.extend(self.clean_samples());
        // From the end, so that they are popped in order; a block that is in both lists is compared twice.
        expected.sort_unstable_by_key(|&(block, _)| std::cmp::Reverse(block));
        let started = self.now;
        self.recovery().fence = Fence { expected, started, turning: started, ..Fence::default() };
        self.read_fence();
    }

    fn marks(&self) -> Vec<(Block, u32)> {
        let superblock = self.recovery.as_ref().and_then(|recovery| recovery.superblock.as_ref()).expect("a superblock was chosen");
        superblock.marks.iter().map(|mark| (mark.block, mark.crc)).collect()
    }

    /// Random clean slots of whole blocks. They are drawn by their numbers: a large cache has more clean slots than memory is for.
    fn clean_samples(&self) -> Vec<(Block, u32)> {
        let sets = || self.sets.iter().filter(|(_, set)| set.loaded && set.state != SetState::Free);
        let clean_of = |set: &Set| u64::from(set.live_count - set.dirty_count);
        let clean: u64 = sets().map(|(_, set)| clean_of(set)).sum();
        let mut drawn = some_below(clean, self.config.fence_samples as usize, &mut self.fence_draw());
        drawn.sort_unstable();
        let mut drawn = drawn.into_iter().peekable();
        let mut samples: Vec<Slot> = Vec::new();
        // The number of the first clean slot of a set.
        let mut first = 0;
        for (set, info) in sets() {
            let end = first + clean_of(info);
            if drawn.peek().is_some_and(|&number| number < end) {
                let clean = info.live.without(&info.dirty);
                let of_set = (first..).zip(clean.iter()).filter(|&(number, _)| drawn.next_if_eq(&number).is_some());
                samples.extend(of_set.map(|(_, slot)| Slot { set, slot }));
            }
            first = end;
        }
        let whole = |slot: &Slot| {
            let entry = self.sets.entry(*slot, |block| self.full(block));
            let is_whole = u64::from(entry.valid.count()) == self.block_atoms();
            (is_whole && self.index.get(entry.block) == Some(*slot)).then_some((entry.block, entry.crc))
        };
        samples.iter().filter_map(whole).collect()
    }

    fn read_fence(&mut self) {
        let now = self.now;
        loop {
            let fence = &mut self.recovery().fence;
            let most = if fence.is_quick { DEPTH } else { 1 };
            if fence.reading >= most {
                return;
            }
            if now.since(fence.started) >= TIME {
                return self.meet(FaultPoint::FenceOutOfTime);
            }
            let Some((block, crc)) = fence.expected.pop() else { return };
            fence.reading += 1;
            let span = self.config.geometry.block_span(block);
            let owner = Owner::Recovery(Step::Fence { block: block.0, crc });
            let op = self.start(DeviceId::Origin, Class::Client, Action::Read(Zone::Origin, span), owner);
            self.origin.begin_read(op, span, now);
        }
    }

    /// Has everything that was asked for come, or been waited for long enough?
    pub(super) fn is_compared(&mut self) -> bool {
        let now = self.now;
        let is_held = self.rotation.motor.as_ref().is_some_and(|motor| !motor.takes());
        let fence = &mut self.recovery().fence;
        if fence.reading == 0 {
            return true;
        }
        if std::mem::replace(&mut fence.is_held, is_held) || is_held {
            fence.turning = now;
        }
        if now.since(fence.turning) < PATIENCE {
            return false;
        }
        self.meet(FaultPoint::FenceOutOfTime);
        true
    }

    pub(super) fn fence_deadline(&self) -> Option<Instant> {
        let recovery = self.recovery.as_ref().filter(|recovery| recovery.stage == Stage::Fence)?;
        let fence = &recovery.fence;
        (fence.reading > 0 && !fence.is_held).then(|| fence.turning + PATIENCE)
    }

    /// Whatever has become of the recovery meanwhile, and of the cache.
    pub(in crate::path) fn fence_read(&mut self, op: OpId, block: u64, crc: u32, result: Result<Answer<P>, DeviceError>) {
        let now = self.now;
        self.origin.end_read(op, now, self.turning_since());
        let is_awaited = self.recovery.as_ref().is_some_and(|recovery| recovery.stage == Stage::Fence);
        if !is_awaited || self.phase != Phase::Recovering {
            return;
        }
        let found = result.map(|answer| joined::<P>(answer).checksum(self.checksum));
        let fence = &mut self.recovery().fence;
        fence.reading -= 1;
        fence.is_quick |= now.since(fence.started) <= QUICK;
        match found {
            Ok(found) => {
                fence.checked += 1;
                if found != crc {
                    fence.differing.push(Block(block));
                }
            }
            // Nobody is there to ask.
            Err(DeviceError::Gone) => {
                fence.expected.clear();
                self.meet(FaultPoint::FenceOriginGone);
            }
            Err(_) => self.meet(FaultPoint::FenceUnread),
        }
        self.read_fence();
    }

    /// Everything has been compared. False: the origin was changed.
    pub(super) fn end_fence(&mut self) -> bool {
        let Fence { checked, differing, .. } = std::mem::take(&mut self.recovery().fence);
        self.counters.fence_checked_blocks = checked;
        let Some(first) = differing.iter().min() else { return true };
        let (count, byte) = (differing.len(), self.config.geometry.block_span(*first).offset());
        let what_then = match self.dirty_blocks() {
            0 => "the cache holds nothing newer: format it anew with `tidegate create --force`, and nothing is lost".to_string(),
            dirty => format!("the cache holds {dirty} newer blocks, which are lost if it is given up with `tidegate create --force`"),
        };
        self.find(
            FaultPoint::OriginChanged,
            true,
            format!(
                "the origin was changed behind the cache: {count} of {checked} blocks looked at differ, the first at byte {byte}; {what_then}"
            ),
        );
        false
    }
}

/// Some of the numbers below `all`, at most `most`, each as likely as any other and none twice: the beginning of a shuffled row, of which only
/// what has changed places is kept.
fn some_below(all: u64, most: usize, draw: &mut Draw) -> Vec<u64> {
    let mut moved: BTreeMap<u64, u64> = BTreeMap::new();
    let some = all.min(most as u64);
    let one = |place: u64| {
        let other = place + draw.below(all - place);
        let here = moved.remove(&place).unwrap_or(place);
        if other == place { here } else { moved.insert(other, here).unwrap_or(other) }
    };
    (0..some).map(one).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The same with the whole row in memory.
    fn shuffled(all: u64, most: usize, draw: &mut Draw) -> Vec<u64> {
        let mut row: Vec<u64> = (0..all).collect();
        let some = most.min(row.len());
        for place in 0..some {
            let other = place + draw.below(all - place as u64) as usize;
            row.swap(place, other);
        }
        row.truncate(some);
        row
    }

    #[test]
    fn what_is_drawn_is_the_beginning_of_a_shuffled_row() {
        for (all, most) in [(0, 8), (1, 8), (8, 8), (9, 8), (100, 100), (1_000, 30), (5, 0)] {
            for seed in 0..50 {
                assert_eq!(some_below(all, most, &mut Draw::new(seed)), shuffled(all, most, &mut Draw::new(seed)), "{most} of {all}");
            }
        }
    }

    #[test]
    fn samples_of_a_cache_of_a_pebibyte_take_no_more_memory_than_they_are() {
        let all = 1 << 38;
        let mut drawn = some_below(all, 1_024, &mut Draw::new(7));
        assert_eq!(drawn.len(), 1_024);
        drawn.sort_unstable();
        drawn.dedup();
        assert_eq!(drawn.len(), 1_024, "none twice");
        for quarter in 0..4 {
            let count = drawn.iter().filter(|&&number| number / (all / 4) == quarter).count();
            assert!((200..312).contains(&count), "{count} of 1,024 in quarter {quarter}");
        }
    }
}
