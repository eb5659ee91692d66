//! Flashcache, paper 001's peer, as its own document and the paper describe it: blocks of 4 KiB in sets of 512, found by a hash and a linear
//! search, LRU within a set, write-back; a block of metadata is written at each change between clean and dirty, and waited for.
//!
//! ```text
//!   request, cut into blocks ─▶ set = (block / 512) mod sets
//!     write ─▶ SSD ─▶ metadata, if it was not dirty ─▶ done          read hit ─▶ SSD ─▶ done
//!     no block to be had ─▶ disk ─▶ done                             read miss ─▶ disk ─▶ SSD ─▶ done
//!   a set with more than a fifth dirty ─▶ the oldest of it: SSD ─▶ disk ─▶ metadata      two in a set, four in all, at once
//! ```
//! Metadata updates that come while their block is being written go with its next write. Requests for a block that is under way wait for it.
//! What is asked at one moment and lies side by side on a device the block layer joins, up to 512 KiB. No contents: the peer is measured, not
//! judged. Assumed: a read miss is answered when it has been filled.

use super::{Front, Stillness};
use crate::back::model::{Cause, Command, Model, What};
use crate::experiment::load::{Access, Ask, Load};
use crate::experiment::measure::{Measure, Measured, Watch};
use crate::experiment::plan::{Device, Run};
use std::collections::{BTreeMap, VecDeque};
use tidegate_engine::time::Instant;

const BLOCK_ATOMS: u64 = 8;
const SET: usize = 512;
/// Entries of 16 bytes in a block of metadata.
const ENTRIES: u64 = 256;
/// Of a set, in per cent: more is cleaned (`dirty_thresh_pct`); how many blocks at once in it, and in all.
const DIRTY_PERCENT: usize = 20;
const CLEANING_SET: u32 = 2;
const CLEANING_ALL: u32 = 4;
/// What the block layer joins, in atoms.
const JOINED_ATOMS: u64 = 1_024;
/// Requests taken at once: what two queues of a block device hold.
const REQUESTS: usize = 256;

/// One block of the cache.
#[derive(Clone, Copy, Debug)]
struct Block {
    lbn: u64,
    used: u64,
    dirty: bool,
    busy: bool,
}

#[derive(Default)]
struct Set {
    blocks: Vec<Block>,
    dirty: usize,
    cleaning: u32,
}

/// Where a block of the cache is: the set, and the place in it.
type Place = (usize, usize);

/// What a command of a device is for.
#[derive(Clone, Copy, Debug)]
enum Job {
    /// The data of a write is on the SSD; it was dirty before, or not.
    Written {
        request: u64,
        place: Place,
        was_dirty: bool,
    },
    Read {
        request: u64,
        place: Place,
    },
    Missed {
        request: u64,
        place: Place,
    },
    Filled {
        request: u64,
        place: Place,
    },
    /// Straight to the disk.
    Direct {
        request: u64,
    },
    Metadata {
        block: u64,
    },
    CleanRead {
        place: Place,
    },
    CleanWritten {
        place: Place,
    },
}

/// Who waits for a block of metadata.
#[derive(Clone, Copy, Debug)]
enum Waiter {
    Write { request: u64, place: Place },
    Clean { place: Place },
}

#[derive(Default)]
struct Metadata {
    /// Of the write under way, and of the next one.
    now: Vec<Waiter>,
    next: Vec<Waiter>,
}

struct Request {
    access: Access,
    left: u64,
}

struct Flashcache<'a> {
    models: [Model; 2],
    watches: [Watch; 2],
    front: Front<'a>,
    sets: Vec<Set>,
    data: u64,
    /// Pieces that wait for a block under way: request, ask, block number.
    waiting: BTreeMap<u64, VecDeque<(u64, Ask)>>,
    jobs: BTreeMap<u64, Vec<Job>>,
    /// What has been asked at this moment: device, command, what for.
    plug: Vec<(usize, Command, Vec<Job>)>,
    metadata: BTreeMap<u64, Metadata>,
    requests: BTreeMap<u64, Request>,
    cleaning: u32,
    /// Sets with too much dirty.
    to_clean: VecDeque<usize>,
    clock: u64,
    count: u64,
    measure: Measure,
    now: Instant,
    ended: Vec<u64>,
}

pub(super) fn run(run: &Run, devices: [&Device; 2], seed: u64, told: &mut dyn FnMut(u64)) -> Result<Measured, String> {
    let models = devices.map(|device| device.spec.build(seed));
    let blocks = devices[0].atoms() / BLOCK_ATOMS;
    let metadata = (blocks.div_ceil(ENTRIES)) * BLOCK_ATOMS;
    let sets = (devices[0].atoms() - metadata) / BLOCK_ATOMS / SET as u64;
    let spin_down = [None, run.configuration.spin_down];
    let watches = [0, 1].map(|index| Watch::new(&devices[index].name, &models[index], spin_down[index], Instant::ZERO));
    let mut peer = Flashcache {
        models,
        watches,
        front: Front::new(told),
        sets: (0..sets).map(|_| Set::default()).collect(),
        data: metadata,
        waiting: BTreeMap::new(),
        jobs: BTreeMap::new(),
        plug: Vec::new(),
        metadata: BTreeMap::new(),
        requests: BTreeMap::new(),
        cleaning: 0,
        to_clean: VecDeque::new(),
        clock: 0,
        count: 0,
        measure: Measure::new(Instant::ZERO),
        now: Instant::ZERO,
        ended: Vec::new(),
    };
    for load in &run.before {
        peer.play(load, seed, devices[1].atoms())?;
        peer.rest(peer.now + run.rest);
    }
    peer.measure = Measure::new(peer.now);
    for (watch, model) in peer.watches.iter_mut().zip(&peer.models) {
        watch.restart(model, peer.now);
    }
    peer.play(&run.load, seed, devices[1].atoms())?;
    peer.measure.ran(peer.now, peer.front.operations());
    let Flashcache { measure, watches, models, .. } = peer;
    let end = measure.ended;
    let devices = watches.into_iter().zip(&models).map(|(watch, model)| watch.report(model, end)).collect();
    Ok(Measured { measure, devices, gate: None, writes: None })
}

impl Flashcache<'_> {
    fn play(&mut self, load: &Load, seed: u64, atoms: u64) -> Result<(), String> {
        self.front.start(load, seed, atoms, self.now);
        let mut stillness = Stillness::default();
        loop {
            self.front.arrive(self.now);
            self.admit();
            if self.requests.is_empty() && self.front.is_done() {
                return Ok(());
            }
            let next = self.front.next_time().into_iter().chain(self.device_time()).min();
            self.pass(next.ok_or("the devices never end a command")?);
            stillness.check(self.now)?;
        }
    }

    fn rest(&mut self, until: Instant) {
        while let Some(next) = self.device_time().filter(|&next| next <= until) {
            self.pass(next);
        }
        self.pass(until);
    }

    fn device_time(&self) -> Option<Instant> {
        let models = self.models.iter().map(Model::next);
        models.chain(self.watches.iter().map(Watch::next)).flatten().min()
    }

    fn pass(&mut self, when: Instant) {
        self.now = when.max(self.now);
        for index in 0..self.models.len() {
            let mut ended = std::mem::take(&mut self.ended);
            self.models[index].advance(self.now, &mut ended);
            for command in ended.drain(..) {
                let jobs = self.jobs.remove(&command).expect("only what was submitted ends");
                jobs.into_iter().for_each(|job| self.end(job));
            }
            self.ended = ended;
        }
        self.unplug();
        for (watch, model) in self.watches.iter_mut().zip(&mut self.models) {
            watch.look(model, self.now);
        }
    }

    fn admit(&mut self) {
        while self.requests.len() < REQUESTS
            && let Some(access) = self.front.waiting.pop_front()
        {
            self.count += 1;
            let (request, span) = (self.count, access.span);
            let blocks = span.start / BLOCK_ATOMS..span.end().div_ceil(BLOCK_ATOMS);
            self.requests.insert(request, Request { access, left: (blocks.end - blocks.start).max(1) });
            if access.ask == Ask::Flush {
                // Refused, and no harm done.
                self.piece_done(request);
            }
            blocks.for_each(|lbn| self.begin(request, access.ask, lbn));
        }
        self.unplug();
        for (watch, model) in self.watches.iter_mut().zip(&mut self.models) {
            watch.look(model, self.now);
        }
    }

    fn submit(&mut self, device: usize, what: What, start: u64, cause: Cause, job: Job) {
        if let Some((of, last, jobs)) = self.plug.last_mut()
            && (*of, last.what, last.cause, last.end()) == (device, what, cause, start)
            && last.atoms < JOINED_ATOMS
        {
            last.atoms += BLOCK_ATOMS;
            return jobs.push(job);
        }
        self.count += 1;
        self.plug.push((device, Command { id: self.count, what, start, atoms: BLOCK_ATOMS, cause }, vec![job]));
    }

    /// The devices are given what has been asked.
    fn unplug(&mut self) {
        for (device, command, jobs) in std::mem::take(&mut self.plug) {
            self.jobs.insert(command.id, jobs);
            self.models[device].submit(self.now, command);
        }
    }

    fn slot(&self, (set, at): Place) -> u64 {
        self.data + (set * SET + at) as u64 * BLOCK_ATOMS
    }

    fn block(&mut self, (set, at): Place) -> &mut Block {
        &mut self.sets[set].blocks[at]
    }

    // --- requests ---

    fn begin(&mut self, request: u64, ask: Ask, lbn: u64) {
        let set = (lbn / SET as u64 % self.sets.len() as u64) as usize;
        let found = self.sets[set].blocks.iter().position(|block| block.lbn == lbn);
        if found.is_some_and(|at| self.sets[set].blocks[at].busy) {
            return self.waiting.entry(lbn).or_default().push_back((request, ask));
        }
        let is_hit = found.is_some();
        let Some(at) = found.or_else(|| self.allocate(set, lbn)) else {
            let (what, cause) = if ask == Ask::Read { (What::Read, Cause::HostRead) } else { (What::Write, Cause::HostWrite) };
            return self.submit(1, what, lbn * BLOCK_ATOMS, cause, Job::Direct { request });
        };
        let place = (set, at);
        self.clock += 1;
        let clock = self.clock;
        let block = self.block(place);
        (block.used, block.busy) = (clock, true);
        let was_dirty = block.dirty;
        let slot = self.slot(place);
        match ask {
            Ask::Write => self.submit(0, What::Write, slot, Cause::HostWrite, Job::Written { request, place, was_dirty }),
            Ask::Read if is_hit => self.submit(0, What::Read, slot, Cause::HostRead, Job::Read { request, place }),
            Ask::Read => self.submit(1, What::Read, lbn * BLOCK_ATOMS, Cause::HostRead, Job::Missed { request, place }),
            Ask::Flush => unreachable!("it has no blocks"),
        }
    }

    /// A place for a block: one that is free, or the least recently used clean one.
    fn allocate(&mut self, set: usize, lbn: u64) -> Option<usize> {
        let blocks = &mut self.sets[set].blocks;
        let new = Block { lbn, used: 0, dirty: false, busy: false };
        if blocks.len() < SET {
            blocks.push(new);
            return Some(blocks.len() - 1);
        }
        let candidates = blocks.iter().enumerate().filter(|(_, block)| !block.dirty && !block.busy);
        let (at, _) = candidates.min_by_key(|(_, block)| block.used)?;
        blocks[at] = new;
        Some(at)
    }

    fn end(&mut self, job: Job) {
        match job {
            Job::Written { request, place, was_dirty: true } | Job::Read { request, place } | Job::Filled { request, place } => {
                self.piece_done(request);
                self.let_go(place);
            }
            Job::Written { request, place, was_dirty: false } => self.note(place, Waiter::Write { request, place }),
            Job::Missed { request, place } => {
                let slot = self.slot(place);
                self.submit(0, What::Write, slot, Cause::Fill, Job::Filled { request, place });
            }
            Job::Direct { request } => self.piece_done(request),
            Job::Metadata { block } => self.noted(block),
            Job::CleanRead { place } => {
                let lbn = self.block(place).lbn;
                self.submit(1, What::Write, lbn * BLOCK_ATOMS, Cause::Destage, Job::CleanWritten { place });
            }
            Job::CleanWritten { place } => self.note(place, Waiter::Clean { place }),
        }
    }

    fn piece_done(&mut self, request: u64) {
        let of = self.requests.get_mut(&request).expect("a request is answered once");
        of.left -= 1;
        if of.left == 0 {
            let Request { access, .. } = self.requests.remove(&request).expect("it was just seen");
            self.measure.answered(self.now, access.due, access.ask, access.span.bytes());
            self.front.answered(self.now, &access);
        }
    }

    /// Nothing is under way at this block any more: who waits for it goes on.
    fn let_go(&mut self, place: Place) {
        let block = self.block(place);
        block.busy = false;
        let lbn = block.lbn;
        if let Some(mut waiting) = self.waiting.remove(&lbn) {
            let (request, ask) = waiting.pop_front().expect("nobody waits in an empty queue");
            self.begin(request, ask, lbn);
            if !waiting.is_empty() {
                // Behind whoever has come since.
                self.waiting.entry(lbn).or_default().extend(waiting);
            }
        }
        self.clean();
    }

    // --- metadata ---

    /// The entry of a block has changed, and somebody waits until that is written.
    fn note(&mut self, (set, at): Place, waiter: Waiter) {
        let number = (set * SET + at) as u64 / ENTRIES;
        let metadata = self.metadata.entry(number).or_default();
        metadata.next.push(waiter);
        if metadata.now.is_empty() {
            self.write_metadata(number);
        }
    }

    fn write_metadata(&mut self, number: u64) {
        let metadata = self.metadata.get_mut(&number).expect("somebody waits for it");
        metadata.now = std::mem::take(&mut metadata.next);
        if metadata.now.is_empty() {
            self.metadata.remove(&number);
        } else {
            self.submit(0, What::Write, number * BLOCK_ATOMS, Cause::Log, Job::Metadata { block: number });
        }
    }

    fn noted(&mut self, number: u64) {
        let waiters = std::mem::take(&mut self.metadata.get_mut(&number).expect("it was being written").now);
        for waiter in waiters {
            match waiter {
                Waiter::Write { request, place } => {
                    self.block(place).dirty = true;
                    self.sets[place.0].dirty += 1;
                    if self.sets[place.0].dirty > SET * DIRTY_PERCENT / 100 {
                        self.to_clean.push_back(place.0);
                    }
                    self.piece_done(request);
                    self.let_go(place);
                }
                Waiter::Clean { place } => {
                    self.block(place).dirty = false;
                    let set = &mut self.sets[place.0];
                    (set.dirty, set.cleaning) = (set.dirty - 1, set.cleaning - 1);
                    self.cleaning -= 1;
                    if self.sets[place.0].dirty > SET * DIRTY_PERCENT / 100 {
                        self.to_clean.push_back(place.0);
                    }
                    self.let_go(place);
                }
            }
        }
        if self.metadata.contains_key(&number) {
            self.write_metadata(number);
        }
    }

    // --- cleaning ---

    fn clean(&mut self) {
        while self.cleaning < CLEANING_ALL
            && let Some(number) = self.to_clean.pop_front()
        {
            let set = &mut self.sets[number];
            if set.dirty <= SET * DIRTY_PERCENT / 100 || set.cleaning >= CLEANING_SET {
                continue;
            }
            let oldest = set.blocks.iter().enumerate().filter(|(_, block)| block.dirty && !block.busy).min_by_key(|(_, block)| block.used);
            let Some((at, _)) = oldest else { continue };
            set.blocks[at].busy = true;
            set.cleaning += 1;
            self.cleaning += 1;
            self.to_clean.push_back(number);
            let place = (number, at);
            let slot = self.slot(place);
            self.submit(0, What::Read, slot, Cause::Destage, Job::CleanRead { place });
        }
    }
}
