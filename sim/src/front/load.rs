//! The load: clients that draw their requests from a seed. Each worker has one request in flight; a worker thinks, asks, waits.
//!
//! Undirected loads find little: most broken rules show only when one mechanism is leaned on. So every seed takes one of the
//! [`MIXES`], each of which leans on one, and stirs it a little.

use crate::chance::Chance;
use crate::stamp::Stamps;
use std::collections::{BTreeMap, VecDeque};
use tidegate_engine::block::Span;
use tidegate_engine::payload::Checksum;
use tidegate_engine::request::{Command, Request, RequestId};
use tidegate_engine::time::{Duration, Instant};

/// What a load leans on. Weights of the commands; percentages; sizes in blocks.
#[derive(Clone, Copy, Debug)]
pub struct Mix {
    pub name: &'static str,
    pub read: u32,
    pub write: u32,
    pub trim: u32,
    pub zero: u32,
    pub flush: u32,
    pub status: u32,
    /// Writes, trims and zeroes with FUA.
    pub fua_percent: u32,
    /// Requests that fall on the hot blocks, and how many those are.
    pub hot_percent: u32,
    pub hot_blocks: u64,
    /// Requests smaller than a block, and larger ones that begin or end inside one.
    pub small_percent: u32,
    pub ragged_percent: u32,
    pub blocks_max: u64,
    /// Zeroes of the whole volume.
    pub long_zeroes_percent: u32,
    /// Requests that go on where the last sequential one ended.
    pub sequential_percent: u32,
    /// Writes that write the bytes of an earlier write again.
    pub repeat_percent: u32,
    /// Requests in flight.
    pub workers: u32,
    pub think: Duration,
    /// They ask at multiples of this only: many in one moment. (As those of a front's thread do, which asks for all that its clients have sent.)
    pub beat: Duration,
    /// Once in so many requests everybody pauses, up to so long.
    pub pause_every: u64,
    pub pause: Duration,
    /// Once in so many requests a drain is asked for (and perhaps called off).
    pub drain_every: u64,
}

const BASE: Mix = Mix {
    name: "everything",
    read: 30,
    write: 40,
    trim: 5,
    zero: 5,
    flush: 8,
    status: 2,
    fua_percent: 5,
    hot_percent: 50,
    hot_blocks: 16,
    small_percent: 20,
    ragged_percent: 20,
    blocks_max: 32,
    long_zeroes_percent: 0,
    sequential_percent: 10,
    repeat_percent: 5,
    workers: 8,
    think: Duration::from_micros(50),
    beat: Duration::ZERO,
    pause_every: 0,
    pause: Duration::ZERO,
    drain_every: 0,
};

/// Each leans on one mechanism.
pub const MIXES: [Mix; 14] = [
    BASE,
    Mix {
        name: "overwrites of a few blocks",
        read: 15,
        write: 75,
        trim: 0,
        zero: 0,
        hot_percent: 97,
        hot_blocks: 6,
        blocks_max: 2,
        ..BASE
    },
    Mix { name: "trims", trim: 40, hot_percent: 80, hot_blocks: 24, ..BASE },
    Mix { name: "zeroes", zero: 40, ragged_percent: 50, hot_percent: 80, hot_blocks: 24, ..BASE },
    Mix { name: "parts of blocks", small_percent: 75, hot_percent: 85, hot_blocks: 10, ..BASE },
    Mix { name: "sequential", sequential_percent: 90, hot_percent: 5, blocks_max: 64, small_percent: 2, ..BASE },
    Mix { name: "flushes", flush: 60, fua_percent: 40, blocks_max: 4, ..BASE },
    Mix { name: "hardly a flush", flush: 0, fua_percent: 0, status: 1, ..BASE },
    Mix { name: "reads and fills", read: 75, write: 15, hot_percent: 70, hot_blocks: 20, repeat_percent: 10, ..BASE },
    Mix { name: "retries of the same bytes", repeat_percent: 60, hot_percent: 90, hot_blocks: 8, blocks_max: 3, ..BASE },
    Mix { name: "a full cache", read: 15, write: 70, hot_percent: 5, trim: 3, zero: 3, ..BASE },
    Mix { name: "pauses", pause_every: 60, pause: Duration::from_secs(5), think: Duration::from_millis(2), ..BASE },
    Mix { name: "drains", drain_every: 80, write: 50, think: Duration::from_micros(300), ..BASE },
    Mix { name: "one at a time", workers: 1, flush: 15, blocks_max: 8, ..BASE },
];

impl Mix {
    /// One of the mixes, stirred.
    pub fn draw(chance: &mut Chance) -> Mix {
        let mix = chance.pick(&MIXES);
        let workers = if mix.workers == 1 { 1 } else { chance.spread(1, 64) as u32 };
        let pauses = mix.pause_every > 0 || chance.one_in(4);
        let (pause_every, pause) =
            if pauses { (chance.spread(20, 400), Duration::from_millis(chance.spread(1, 5_000))) } else { (0, Duration::ZERO) };
        Mix {
            hot_blocks: chance.between(1, mix.hot_blocks * 2),
            blocks_max: chance.between(1, mix.blocks_max * 2),
            flush: if mix.flush > 0 && chance.one_in(3) { 1 + mix.flush / 8 } else { mix.flush },
            trim: if chance.one_in(3) { 0 } else { mix.trim },
            zero: if chance.one_in(3) { 0 } else { mix.zero },
            think: Duration(chance.spread(1_000, mix.think.0 * 4)),
            pause_every,
            pause,
            workers,
            ..mix
        }
    }
}

/// A request that a crash cut off: its client may send it again.
type Bytes = (Span, Stamps);

/// The clients of one volume.
#[derive(Clone, Debug)]
pub struct Load {
    pub mix: Mix,
    chance: Chance,
    /// In which way something is asked for: a stream of its own.
    ways: Chance,
    block_atoms: u64,
    volume_atoms: u64,
    next_id: u64,
    next_stamp: u64,
    /// Requests still to be drawn.
    left: u64,
    /// Read first, in order: the check after a crash. Not counted as drawn.
    sweep: VecDeque<Span>,
    in_flight: BTreeMap<RequestId, (u32, Option<Bytes>)>,
    /// Bytes of recent writes.
    recent: VecDeque<Bytes>,
    /// Writes that a crash cut off.
    cut_off: Vec<Bytes>,
    cursor: u64,
    paused_until: Instant,
}

/// Recent writes remembered for repetition.
const RECENT: usize = 24;

impl Load {
    /// What it writes is contents that `checksum` tells from each other.
    pub fn new(mix: Mix, checksum: Checksum, block_atoms: u32, volume_atoms: u64, requests: u64, chance: Chance) -> Self {
        Load {
            mix,
            ways: Chance::new(chance.clone().word(), "ways"),
            chance,
            block_atoms: u64::from(block_atoms),
            volume_atoms,
            next_id: 0,
            // Contents of odd writes have one and the same CRC.
            next_stamp: match checksum {
                Checksum::Crc => 2,
                Checksum::CrcAndSum => 1,
            },
            left: requests,
            sweep: VecDeque::new(),
            in_flight: BTreeMap::new(),
            recent: VecDeque::new(),
            cut_off: Vec::new(),
            cursor: 0,
            paused_until: Instant::ZERO,
        }
    }

    /// Requests not drawn yet.
    pub fn left(&self) -> u64 {
        self.left
    }

    /// The volume has become larger.
    pub fn grow(&mut self, volume_atoms: u64) {
        self.volume_atoms = volume_atoms;
    }

    /// Nothing more is drawn.
    pub fn stop(&mut self) {
        self.left = 0;
    }

    pub fn in_flight(&self) -> usize {
        self.in_flight.len()
    }

    /// Nothing in flight and nothing to come.
    pub fn is_done(&self) -> bool {
        self.left == 0 && self.sweep.is_empty() && self.in_flight.is_empty()
    }

    /// Reads the volume (or only some of it, `percent`) before anything else, in pieces of a random size.
    pub fn sweep(&mut self, percent: u32) {
        let piece = self.block_atoms * self.chance.spread(1, 64).min(2048 / self.block_atoms);
        let pieces = (0..self.volume_atoms).step_by(piece as usize).map(|start| Span::new(start, piece.min(self.volume_atoms - start)));
        self.sweep = pieces.filter(|_| self.chance.percent(percent)).collect();
    }

    /// All connections are cut: nothing is in flight any more, and some of it will be sent again.
    pub fn cut_off(&mut self) {
        let lost = std::mem::take(&mut self.in_flight);
        self.cut_off.extend(lost.into_values().filter_map(|(_, bytes)| bytes).filter(|_| self.chance.one_in(2)));
        self.sweep.clear();
    }

    /// When a worker asks next, if it has nothing in flight.
    pub fn wake(&mut self, now: Instant) -> Instant {
        let think = Duration(self.chance.below(self.mix.think.0 * 2) + 1);
        if self.sweep.is_empty() && self.chance.one_in(self.mix.pause_every) {
            self.paused_until = now + Duration(self.chance.below(self.mix.pause.0) + 1);
        }
        let wake = (now + think).max(self.paused_until);
        if self.mix.beat == Duration::ZERO { wake } else { Instant(wake.0.next_multiple_of(self.mix.beat.0)) }
    }

    /// Is it time to ask for a drain?
    pub fn wants_drain(&mut self) -> bool {
        self.chance.one_in(self.mix.drain_every)
    }

    /// The next request of a worker; none when the load has come to its end.
    pub fn next(&mut self, worker: u32) -> Option<Request<Stamps>> {
        if let Some(span) = self.sweep.pop_front() {
            return Some(self.send(worker, span, Command::Read, None));
        }
        if self.left == 0 {
            return None;
        }
        self.left -= 1;
        if self.chance.one_in(4)
            && let Some((span, data)) = self.cut_off.pop()
        {
            return Some(self.write(worker, span, data));
        }
        let mix = self.mix;
        let fua = self.chance.percent(mix.fua_percent);
        Some(match self.chance.weighted(&[mix.read, mix.write, mix.trim, mix.zero, mix.flush, mix.status]) {
            0 => {
                let span = self.span();
                let command = if self.ways.one_in(24) { Command::Cache } else { Command::Read };
                self.send(worker, span, command, None)
            }
            1 => self.draw_write(worker),
            2 => {
                let span = self.span();
                self.send(worker, span, Command::Trim { fua }, None)
            }
            3 => {
                let (span, no_hole) = (self.span(), self.chance.one_in(2));
                let fast = self.ways.one_in(4);
                let is_long = mix.long_zeroes_percent > 0 && self.ways.percent(mix.long_zeroes_percent);
                let span = if is_long { Span::new(0, self.volume_atoms) } else { span };
                self.send(worker, span, Command::Zero { no_hole, fua, fast }, None)
            }
            4 => self.send(worker, Span::default(), Command::Flush, None),
            _ => {
                let span = self.span();
                let tiers = self.ways.one_in(2);
                self.send(worker, span, Command::Status { tiers, one: false }, None)
            }
        })
    }

    /// A read or flush from outside the mix.
    pub fn ask(&mut self, span: Span, command: Command<Stamps>) -> Request<Stamps> {
        self.send(u32::MAX, span, command, None)
    }

    /// Bytes that no other write has. Where a sum tells them from others, all have one and the same CRC.
    pub fn fresh(&mut self, span: Span) -> Stamps {
        let write = self.next_stamp;
        self.next_stamp += 2;
        Stamps::written(write, span.start, span.atoms)
    }

    fn draw_write(&mut self, worker: u32) -> Request<Stamps> {
        if self.chance.percent(self.mix.repeat_percent) && !self.recent.is_empty() {
            let (span, data) = self.recent[self.chance.below(self.recent.len() as u64) as usize].clone();
            return self.write(worker, span, data);
        }
        let span = self.span();
        let data = self.fresh(span);
        self.recent.push_back((span, data.clone()));
        if self.recent.len() > RECENT {
            self.recent.pop_front();
        }
        self.write(worker, span, data)
    }

    fn write(&mut self, worker: u32, span: Span, data: Stamps) -> Request<Stamps> {
        let fua = self.chance.percent(self.mix.fua_percent);
        self.send(worker, span, Command::Write { data: data.clone(), fua }, Some((span, data)))
    }

    fn send(&mut self, worker: u32, span: Span, command: Command<Stamps>, bytes: Option<Bytes>) -> Request<Stamps> {
        self.next_id += 1;
        let id = RequestId(self.next_id);
        self.in_flight.insert(id, (worker, bytes));
        Request { id, span, command }
    }

    /// A reply has come: the worker that waited for it, if it was one.
    pub fn replied(&mut self, id: RequestId) -> Option<u32> {
        let (worker, _) = self.in_flight.remove(&id)?;
        (worker != u32::MAX).then_some(worker)
    }

    /// Where a request falls.
    fn span(&mut self) -> Span {
        let (mix, block) = (self.mix, self.block_atoms);
        let blocks = self.chance.spread(1, mix.blocks_max);
        let atoms = if block > 1 && self.chance.percent(mix.small_percent) {
            self.chance.between(1, block - 1)
        } else if self.chance.percent(mix.ragged_percent) {
            self.chance.between(1, blocks * block)
        } else {
            return self.aligned(blocks);
        };
        let area = self.area();
        let atoms = atoms.min(area.atoms);
        Span::new(area.start + self.chance.below(area.atoms - atoms + 1), atoms)
    }

    fn aligned(&mut self, blocks: u64) -> Span {
        let block = self.block_atoms;
        if self.chance.percent(self.mix.sequential_percent) {
            let start = if self.cursor >= self.volume_atoms { 0 } else { self.cursor };
            let atoms = (blocks * block).min(self.volume_atoms - start);
            self.cursor = start + atoms;
            return Span::new(start, atoms);
        }
        let area = self.area();
        let first = area.start / block + self.chance.below(area.atoms.div_ceil(block));
        let start = first * block;
        Span::new(start, (blocks * block).min(self.volume_atoms - start))
    }

    /// The hot blocks, or the volume.
    fn area(&mut self) -> Span {
        let hot = self.mix.hot_blocks * self.block_atoms;
        if self.chance.percent(self.mix.hot_percent) && hot < self.volume_atoms {
            Span::new(0, hot)
        } else {
            Span::new(0, self.volume_atoms)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_engine::payload::Payload;

    #[test]
    fn requests_lie_in_the_volume_and_are_the_same_every_time() {
        for seed in 0..200 {
            let mut chance = Chance::new(seed, "mix");
            let mix = Mix::draw(&mut chance);
            let (block_atoms, volume_atoms) = (chance.pick(&[1, 8, 128]), chance.between(1_500, 3_000));
            let load = || Load::new(mix, Checksum::CrcAndSum, block_atoms, volume_atoms, 300, Chance::new(seed, "load"));
            let (mut one, mut other) = (load(), load());
            one.sweep(50);
            other.sweep(50);
            while let Some(request) = one.next(0) {
                let again = other.next(0).expect("the same");
                assert_eq!((request.id, request.span), (again.id, again.span));
                assert!(request.span.end() <= volume_atoms, "{:?} of {volume_atoms}", request.span);
                assert_eq!(request.span.is_empty(), matches!(request.command, Command::Flush));
                if let Command::Write { data, .. } = &request.command {
                    assert_eq!(data.atoms(), request.span.atoms);
                }
                let [wake, same] = [&mut one, &mut other].map(|load| load.wake(Instant(1_000)));
                assert!(wake > Instant(1_000) && wake == same);
                assert_eq!(one.replied(request.id), Some(0));
            }
            assert!(one.is_done() && one.replied(RequestId(1)).is_none());
        }
    }

    #[test]
    fn what_a_crash_cut_off_may_be_sent_again_with_the_same_bytes() {
        let mix = Mix { write: 100, read: 0, repeat_percent: 0, ..BASE };
        let mut load = Load::new(mix, Checksum::CrcAndSum, 8, 800, 400, Chance::new(3, "load"));
        let mut written = Vec::new();
        let mut again = 0;
        for round in 0..200 {
            if let Some(Request { command: Command::Write { data, .. }, .. }) = load.next(round) {
                let first = data.stamp(0);
                again += u32::from(written.contains(&first));
                written.push(first);
            }
            if round % 5 == 4 {
                load.cut_off();
            }
        }
        assert!(again > 10, "{again} writes were sent again");
    }
}
