//! Our own: reads go before writes and what somebody waits for before the rest, each for so many turns; the device has no more writes than it needs
//! while somebody reads; and where its parts are known (lanes: stretches of addresses that work side by side), none of them has more reads
//! than one and a half times its share while others could have them.
//!
//! ```text
//! sync:  read read read read write · read …        each in the order of arrival
//! async: one of these after eight of those, and so many under way at most
//! ```
//! Why few writes: an SSD ends a write when it is in its buffer, and a full buffer is a queue that the host does not see. As long as somebody
//! reads, a quarter of the places keeps it full, and every place more is one for which a read waits. But a link full of reads holds up
//! writes as well: when more than four reads end for each write while others wait, writes may have all places but a quarter. What only
//! writes has them all: sequential writes are left alone.
//!
//! What nobody waits for has as many places as the device needs for its throughput, and that is found ([`super::knee`]): more of it would wait in
//! the device, before what comes next.
//!
//! Everybody's turn comes after a bounded number of others, so nothing needs a deadline.

use super::knee::Knee;
use super::lists::Lists;
use super::scheduler::{Direction, Item, Scheduler};
use crate::op;
use crate::time::Instant;

/// Reads in a row while writes wait, and what somebody waits for in a row while other things wait.
const READS_IN_A_ROW: u32 = 4;
const SYNC_IN_A_ROW: u32 = 8;
/// Reads that end for each write while writes wait; and how many more make writes late.
const READS_FOR_A_WRITE: u32 = 4;
const LATE: u32 = 8 * READS_FOR_A_WRITE;

const SYNC: usize = 0;
const ASYNC: usize = 1;

/// Operations that wait, of one urgency.
struct Waiting {
    /// Of each lane, then all writes.
    lists: Lists,
    reads: usize,
    writes: usize,
    reads_in_a_row: u32,
}

pub struct Lanes {
    waiting: [Waiting; 2],
    /// Reads at the device: of each lane, and all.
    reads_under_way: Vec<usize>,
    all_reads_under_way: usize,
    /// Writes there that somebody waits for.
    writes_under_way: usize,
    /// A quarter of the places.
    quarter: usize,
    depth: usize,
    /// Reads that have ended while writes waited, without those that writes have had their turn for.
    reads_ahead: u32,
    async_under_way: usize,
    /// How many of those the device needs at once for its throughput.
    knee: Knee,
    sync_in_a_row: u32,
    /// Of each entry that waits; of each that nobody waits for and that is under way.
    arrived: Vec<Instant>,
    began: Vec<Instant>,
    /// Reads of a lane at the device before those of others go first.
    share: usize,
    lanes: op::Lanes,
}

impl Lanes {
    /// For a device with such lanes that takes `depth` operations; what nobody waits for takes `async_depth` of them at most.
    pub fn new(lanes: op::Lanes, depth: usize, async_depth: usize) -> Self {
        let count = lanes.count() as usize;
        let waiting = || Waiting { lists: Lists::new(count + 1), reads: 0, writes: 0, reads_in_a_row: 0 };
        Lanes {
            waiting: [waiting(), waiting()],
            reads_under_way: vec![0; count],
            all_reads_under_way: 0,
            writes_under_way: 0,
            quarter: (depth / 4).max(1),
            depth,
            reads_ahead: 0,
            async_under_way: 0,
            knee: Knee::new(async_depth),
            began: Vec::new(),
            sync_in_a_row: 0,
            arrived: Vec::new(),
            share: (depth * 3).div_ceil(count * 2),
            lanes,
        }
    }

    fn lane(&self, item: &Item) -> usize {
        self.lanes.of(item.start)
    }

    /// Somebody reads, and the device has as many writes as it needs.
    fn has_writes_enough(&self) -> bool {
        let reads = self.all_reads_under_way + self.waiting[SYNC].reads;
        let is_late = self.reads_ahead > LATE;
        reads > 0 && self.writes_under_way >= if is_late { (self.depth - self.quarter).max(1) } else { self.quarter }
    }

    fn choose(&mut self, urgency: usize) -> Option<usize> {
        let Waiting { reads, writes, reads_in_a_row, .. } = self.waiting[urgency];
        let may_write = writes > 0 && (urgency == ASYNC || !self.has_writes_enough());
        let reads_next = reads > 0 && (!may_write || reads_in_a_row < READS_IN_A_ROW);
        let writes_list = self.reads_under_way.len();
        let waiting = &mut self.waiting[urgency];
        if reads_next {
            waiting.reads_in_a_row = if writes > 0 { reads_in_a_row + 1 } else { 0 };
            waiting.reads -= 1;
            let heads = (0..self.reads_under_way.len()).filter_map(|lane| Some((lane, waiting.lists.first(lane)?)));
            let order = |&(lane, entry): &(usize, usize)| (self.reads_under_way[lane] >= self.share, self.arrived[entry], entry);
            let (lane, _) = heads.min_by_key(order).expect("a read waits in a lane");
            self.reads_under_way[lane] += 1;
            self.all_reads_under_way += 1;
            return waiting.lists.pop(lane);
        }
        may_write.then_some(())?;
        waiting.reads_in_a_row = 0;
        waiting.writes -= 1;
        self.writes_under_way += usize::from(urgency == SYNC);
        waiting.lists.pop(writes_list)
    }

    fn choose_async(&mut self, now: Instant) -> Option<usize> {
        if self.async_under_way >= self.knee.depth() {
            return None;
        }
        let entry = self.choose(ASYNC)?;
        self.async_under_way += 1;
        if self.began.len() <= entry {
            self.began.resize(entry + 1, Instant::ZERO);
        }
        self.began[entry] = now;
        Some(entry)
    }
}

impl Scheduler for Lanes {
    fn push(&mut self, _now: Instant, entry: usize, item: &Item) {
        let lane = self.lane(item);
        let waiting = &mut self.waiting[usize::from(!item.is_sync())];
        match item.direction {
            Direction::Read => {
                if self.arrived.len() <= entry {
                    self.arrived.resize(entry + 1, Instant::ZERO);
                }
                self.arrived[entry] = item.arrived;
                waiting.lists.push(lane, entry);
                waiting.reads += 1;
            }
            Direction::Write => {
                waiting.lists.push(self.reads_under_way.len(), entry);
                waiting.writes += 1;
            }
        }
    }

    fn pop(&mut self, now: Instant) -> Option<usize> {
        if self.sync_in_a_row >= SYNC_IN_A_ROW
            && let Some(entry) = self.choose_async(now)
        {
            self.sync_in_a_row = 0;
            return Some(entry);
        }
        match self.choose(SYNC) {
            Some(entry) => {
                self.sync_in_a_row += 1;
                Some(entry)
            }
            None => {
                self.sync_in_a_row = 0;
                self.choose_async(now)
            }
        }
    }

    fn raise(&mut self, now: Instant, entry: usize, before: &Item, item: &Item) {
        let waiting = &mut self.waiting[usize::from(!before.is_sync())];
        waiting.lists.remove(entry);
        match before.direction {
            Direction::Read => waiting.reads -= 1,
            Direction::Write => waiting.writes -= 1,
        }
        self.push(now, entry, item);
    }

    fn done(&mut self, now: Instant, entry: usize, item: &Item) {
        let lane = self.lane(item);
        match item.direction {
            Direction::Read => {
                self.reads_under_way[lane] -= 1;
                self.all_reads_under_way -= 1;
                let writes_wait = self.waiting[SYNC].writes > 0;
                // Late, or not: how late does not matter.
                self.reads_ahead = if writes_wait { (self.reads_ahead + 1).min(2 * LATE) } else { 0 };
            }
            Direction::Write => {
                self.writes_under_way -= usize::from(item.is_sync());
                self.reads_ahead = self.reads_ahead.saturating_sub(READS_FOR_A_WRITE);
            }
        }
        if !item.is_sync() {
            self.async_under_way -= 1;
            let others_wait = self.waiting[ASYNC].reads + self.waiting[ASYNC].writes > 0;
            self.knee.end(now, self.began[entry], self.async_under_way, others_wait);
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::op::Class::{Client, Destage, Fill};
    use crate::queue::QueueKind;
    use crate::queue::tests::{BLOCKS, Bench, LANES};

    fn bench() -> Bench {
        Bench::new(QueueKind::Lanes, 32, 4)
    }

    fn is_write(id: &u64) -> bool {
        *id >= 1_000
    }

    #[test]
    fn a_read_finds_a_place_however_many_writes_there_are() {
        let mut bench = bench();
        bench.read(0, 0);
        (1_000..1_100).for_each(|id| bench.write(id, 2 * id));
        assert_eq!(bench.popped().iter().filter(|id| is_write(id)).count(), 8, "a quarter, while somebody reads");
        (1..40).for_each(|id| bench.read(id, 2 * id));
        assert_eq!(bench.popped(), (1..24).collect::<Vec<_>>());
    }

    #[test]
    fn what_only_writes_has_all_places() {
        let mut bench = bench();
        (1_000..1_100).for_each(|id| bench.write(id, 2 * id));
        assert_eq!(bench.popped(), (1_000..1_032).collect::<Vec<_>>());
    }

    #[test]
    fn writes_that_reads_hold_up_get_more_places() {
        let mut bench = bench();
        (0..200).for_each(|id| bench.read(id, 2 * id));
        (1_000..1_100).for_each(|id| bench.write(id, 2 * id));
        bench.popped();
        let writes = |bench: &Bench| bench.under_way().iter().filter(|id| is_write(id)).count();
        assert!(writes(&bench) <= 8);
        // Only reads end, one after the other.
        for _ in 0..160 {
            let read = bench.under_way()[0];
            bench.done(read);
            bench.popped();
        }
        assert_eq!(writes(&bench), 24, "all but a quarter");
    }

    #[test]
    fn no_lane_has_much_more_than_its_share_while_others_could_have_it() {
        let mut bench = bench();
        (0..40).for_each(|id| bench.read(id, 2 * id));
        (40..60).for_each(|id| bench.read(id, BLOCKS / LANES * (id % 4 + 1) + 2 * id));
        let first = bench.popped().into_iter().filter(|&id| id < 40).count();
        assert_eq!(first, 32 - 20, "six at first, and what the others leave");
        let mut bench = self::bench();
        (0..40).for_each(|id| bench.read(id, 2 * id));
        assert_eq!(bench.popped().len(), 32, "alone it has all places");
    }

    #[test]
    fn what_nobody_waits_for_has_its_places_and_its_turn() {
        let mut bench = bench();
        (0..50).for_each(|id| bench.push(id, 2 * id, Client));
        (1_000..1_010).for_each(|id| bench.change(id, 2 * id, Destage));
        (2_000..2_010).for_each(|id| bench.push(id, 2 * id, Fill));
        let order = bench.popped();
        let patient: Vec<usize> = (0..order.len()).filter(|&at| is_write(&order[at])).collect();
        assert_eq!(patient, [8, 17, 26], "one after eight: {order:?}");
        let mut bench = self::bench();
        (1_000..1_010).for_each(|id| bench.change(id, 2 * id, Destage));
        assert_eq!(bench.popped().len(), 4);
    }
}
