//! The oracle: what every atom of the volume may hold. This file is the specification of durability; it knows nothing of the engine.
//!
//! Each atom has a list of **versions**: what it held at first, and what each write, zeroing or trim put there. Each write has a moment
//! of submission and one of acknowledgement; write A **precedes** B if A was acknowledged before B was submitted (or a read has shown
//! their order). A write is **durable** once a FLUSH that arrived after its acknowledgement succeeded, or its own FUA did.
//!
//! *Live*: a read returns a version that was current at some moment between its arrival and its reply. A version stops being current
//! when one that it precedes is acknowledged, or when a read that began after its acknowledgement has returned another.
//!
//! *After a crash*, what is read must be explained by a **prefix of what was logged**:
//! 1. no atom holds a version that precedes a durable one;
//! 2. if write B survived, everything acknowledged before B was submitted survived too;
//! 3. a write survived everywhere or nowhere (but for the parts of blocks at its ends: what it brings to such a block may be logged together
//!    with an earlier write of the rest of that block, and survive without it; and but for ranges of zeros that the engine does in parts);
//! 4. what was read once after the crash is settled: it is read again, after further crashes too.
//!
//! "Survived everywhere" means: wherever no later survivor overwrote it. Two versions may hold the same stamp (zeros, or a retry of the
//! same bytes); where they cannot be told apart, the reading that accuses least counts.
//!
//! Of a write of which something went past the log, straight to the origin, or in place, rules 2 and 3 say nothing: of it any subset of the
//! atoms survives, and nothing follows from those. The others of the same run keep both rules.
//!
//! A trim takes effect on whole blocks or not at all, block by block: its versions are **optional** until a read has shown them, or the engine has
//! acknowledged it and not said that it was ignored (`oracle/trim.rs`). So are the versions of a write that was answered with an error. Where that
//! had gone past the log, any part of it may be on the origin without anybody's promise: an origin that forgets what was not flushed may show the
//! older contents again, and a crash either these or those.
//!
//! Without the cache the origin is the only medium. What only the failed cache has is given up, and the next FLUSH says so, once.

mod faults;
mod grow;
mod loss;
mod parts;
mod refusal;
mod status;
mod trim;

use self::refusal::Promise;
use self::trim::Trimmed;
use super::prefix::{FIRST, Moment, NEVER, Tally, Write};
use crate::stamp::{Stamps, meaning};
use std::collections::BTreeMap;
use tidegate_engine::block::Span;
use tidegate_engine::cache::format::Geometry;
use tidegate_engine::request::{Command, Outcome, Reply, Request, RequestError, RequestId};
use tidegate_engine::time::{Duration, Instant};

/// An atom is tidied whenever it has a multiple of so many versions.
const TIDY: usize = 6;

const WRITE: &str = "write";
/// A trim of which nobody knows whether it was let pass, and one that was not.
const TRIM: &str = "trim";
const TAKEN_TRIM: &str = "trim that was taken";
/// Zeroes that may be refused for not being fast.
const FAST_ZERO: &str = "fast zero";

/// A promise was broken: one line that says how.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Broken(pub String);

type Verdict = Result<(), Broken>;

#[derive(Clone, Copy, Debug)]
struct Version {
    stamp: u64,
    write: u32,
    /// From when on it is not current any more; reads that arrive later must not see it.
    dead: Moment,
    /// A write that a read has shown to be newer, though one was submitted before the other was acknowledged.
    newer: u32,
    /// When a read first showed it, and nothing else can have: what is submitted later comes after it, though it may not be answered yet.
    shown: Moment,
    optional: bool,
    /// It was read after a crash: as good as durable, whatever became of its write elsewhere.
    settled: bool,
}

impl Version {
    fn new(stamp: u64, write: u32) -> Self {
        Version { stamp, write, dead: NEVER, newer: NEVER, shown: NEVER, optional: false, settled: false }
    }
}

#[derive(Clone, Debug)]
enum Pending {
    Read { span: Span, arrived: Moment },
    Cache { span: Span, arrived: Moment },
    Status { span: Span, arrived: Moment, tiers: bool },
    Write { write: u32, fua: bool, since: Instant, ignored: u64 },
    Flush { arrived: Moment, since: Instant },
}

/// Knows what every atom of one volume may hold.
#[derive(Clone, Debug)]
pub struct Oracle {
    block_atoms: u64,
    atoms: Vec<Vec<Version>>,
    writes: Vec<Write>,
    now: Moment,
    life: u32,
    pending: BTreeMap<RequestId, Pending>,
    /// Acknowledged and not durable.
    undurable: Vec<u32>,
    /// Became durable since somebody last asked.
    newly_durable: Vec<u32>,
    /// Of writes with a number below, a FLUSH has said that they may be lost.
    told: u32,
    /// Writes with a number below were hit by a fault that may cost this atom; grown when the first fault comes.
    hurt: Vec<u32>,
    /// When a device last failed to give this atom of the origin.
    unread: Vec<Moment>,
    /// When the origin last lost what was not flushed there.
    forgot: Moment,
    /// The time, as clients see it.
    pub clock: Instant,
    /// Writes and FLUSHes may fail for reasons that only whoever tells the story knows.
    pub writes_may_fail: bool,
    /// The cache has failed, and the host cannot write that down: nothing is acknowledged.
    pub unfenced: bool,
    /// The host has that in writing: the origin is the only medium.
    pub alone: bool,
    /// When a device last failed what a write or a FLUSH may have needed; whether no promise has failed for it since; when one last did.
    failed: Moment,
    untold: bool,
    /// The same as `failed`, of what a FUA may have needed: whatever it changes; and, block by block, what the origin did not take.
    failed_for_all: Moment,
    refused: Vec<Moment>,
    told_at: Option<Instant>,
    /// A FLUSH has failed since somebody last asked, and only a lost block may be why.
    told_of_loss: bool,
    /// FLUSHes promise the origin, and fail with it.
    pub promises_origin: bool,
    /// When the origin last took something, and for how long a request waits without that.
    pub alive: Instant,
    pub patience: Duration,
    /// How long a FLUSH may take, whatever the origin does, if no device fails meanwhile; and since when the engine serves.
    pub flush_bound: Option<Duration>,
    pub serving_since: Option<Instant>,
    /// The engine stops, or was asked to detach its cache: it refuses requests.
    pub closing: bool,
    /// The origin runs out of space now and then.
    pub may_be_full: bool,
    /// Every new write may go past the log, or in place, and nobody sees which: rules 2 and 3 are waived for it.
    pub waives_order: bool,
    /// Only ranges of zeros of more atoms than these are zeroed part by part.
    pub parts_beyond: u64,
    /// Some writes may go past the log. Which, is seen when they do ([`Oracle::bypass`]); of one that has no answer yet it may come.
    pub may_bypass: bool,
    /// Trims that the engine has ignored so far, and those that were acknowledged since that was last told.
    ignored_trims: u64,
    trimmed: Vec<Trimmed>,
    tally: Tally,
}

impl Oracle {
    /// Of a volume whose atoms hold `first` in the beginning, durably.
    pub fn new(geometry: &Geometry, first: impl Fn(u64) -> u64) -> Self {
        let version = |atom| Version { settled: true, ..Version::new(first(atom), FIRST) };
        let span = Span::new(0, geometry.volume_atoms);
        let origin = Write { acknowledged: 0, durable: true, ..Write::new(span, "origin", 0) };
        Oracle {
            block_atoms: u64::from(geometry.block_atoms),
            atoms: (0..geometry.volume_atoms).map(|atom| vec![version(atom)]).collect(),
            writes: vec![origin],
            now: 0,
            life: 0,
            pending: BTreeMap::new(),
            undurable: Vec::new(),
            newly_durable: Vec::new(),
            told: 0,
            hurt: Vec::new(),
            unread: Vec::new(),
            forgot: 0,
            clock: Instant::ZERO,
            writes_may_fail: false,
            unfenced: false,
            alone: false,
            failed: 0,
            untold: false,
            failed_for_all: 0,
            refused: Vec::new(),
            told_at: None,
            told_of_loss: false,
            promises_origin: false,
            alive: Instant::ZERO,
            patience: Duration(u64::MAX),
            flush_bound: None,
            serving_since: None,
            closing: false,
            may_be_full: false,
            waives_order: false,
            parts_beyond: u64::MAX,
            may_bypass: false,
            ignored_trims: 0,
            trimmed: Vec::new(),
            tally: Tally::new(),
        }
    }

    pub fn volume_atoms(&self) -> u64 {
        self.atoms.len() as u64
    }

    /// Requests that have no reply yet.
    pub fn pending(&self) -> usize {
        self.pending.len()
    }

    fn tick(&mut self) -> Moment {
        self.now += 1;
        self.now
    }

    // --- requests and replies ---

    /// A request arrives at the engine.
    pub fn submit(&mut self, request: &Request<Stamps>) {
        let now = self.tick();
        let span = request.span;
        let pending = match &request.command {
            Command::Read => Pending::Read { span, arrived: now },
            Command::Cache => Pending::Cache { span, arrived: now },
            Command::Status { tiers, .. } => Pending::Status { span, arrived: now, tiers: *tiers },
            Command::Flush => Pending::Flush { arrived: now, since: self.clock },
            Command::Write { data, fua } => self.note_write(span, WRITE, *fua, |atom| data.stamp(atom - span.start)),
            Command::Zero { fua, fast, .. } => self.note_write(span, if *fast { FAST_ZERO } else { "zero" }, *fua, |_| 0),
            Command::Trim { fua } => self.note_write(self.whole_blocks(span), TRIM, *fua, |_| 0),
        };
        assert!(self.pending.insert(request.id, pending).is_none(), "ids of requests in flight are unique");
    }

    fn whole_blocks(&self, span: Span) -> Span {
        let start = span.start.next_multiple_of(self.block_atoms);
        let end = if span.end() == self.volume_atoms() { span.end() } else { span.end() / self.block_atoms * self.block_atoms };
        Span::new(start, end.saturating_sub(start))
    }

    fn note_write(&mut self, span: Span, what: &'static str, fua: bool, stamp: impl Fn(u64) -> u64) -> Pending {
        let write = self.writes.len() as u32;
        let submitted = self.now;
        let (bypassed, life) = (self.waives_order, self.life);
        self.writes.push(Write { bypassed, life, ..Write::new(span, what, submitted) });
        self.tally.add_write();
        let oldest_read = self.oldest_read();
        for atom in span.start..span.end() {
            if self.atoms[atom as usize].len().is_multiple_of(TIDY) {
                self.tidy(atom, oldest_read);
            }
            self.atoms[atom as usize].push(Version { optional: what == TRIM, ..Version::new(stamp(atom), write) });
        }
        Pending::Write { write, fua, since: self.clock, ignored: self.ignored_trims }
    }

    /// A reply reaches the client. Broken: it is not what was promised.
    pub fn reply(&mut self, reply: &Reply<Stamps>) -> Verdict {
        let now = self.tick();
        let pending = self.pending.remove(&reply.id).ok_or_else(|| Broken(format!("a reply to {:?}, which is not in flight", reply.id)))?;
        match (pending, &reply.result) {
            (Pending::Read { span, arrived }, Ok(Outcome::Data(parts))) => self.read_reply(span, arrived, parts),
            (Pending::Read { span, arrived }, Err(RequestError::Io)) => self.may_fail(span, arrived),
            (Pending::Status { span, arrived, .. }, Ok(Outcome::Status { allocation, .. })) => self.status_reply(span, arrived, allocation),
            (Pending::Status { span, arrived, .. }, Err(RequestError::Io)) => self.may_fail(span, arrived),
            (Pending::Write { write, fua, ignored, .. }, Ok(Outcome::Done)) => {
                if self.writes[write as usize].what == TRIM {
                    self.trimmed.push(Trimmed { write, ignored, at: now });
                }
                self.acknowledge(write, now);
                // A trim without a whole block leaves nothing that could be durable.
                if !self.writes[write as usize].span.is_empty() {
                    self.undurable.push(write);
                }
                if fua {
                    self.make_durable(|number, _| number == write);
                }
                Ok(())
            }
            (Pending::Flush { arrived, since }, Ok(Outcome::Done)) => {
                if let (Some(bound), Some(serving)) = (self.flush_bound, self.serving_since)
                    && self.failed <= arrived
                    && self.clock.since(since.max(serving)) > bound
                {
                    return Err(Broken(format!("a FLUSH took {:?}, although no device that it needs was slow", self.clock.since(since))));
                }
                self.make_durable(|_, write| write.acknowledged < arrived);
                self.flush_told(arrived);
                Ok(())
            }
            (Pending::Write { write, fua, since, .. }, Err(error)) => {
                self.writes[write as usize].failed = true;
                self.writes[write as usize].acknowledged = now;
                self.each_version(write, |version| version.optional = true);
                let Write { span, what, submitted, .. } = self.writes[write as usize];
                if *error == RequestError::NotFast && what == FAST_ZERO {
                    self.forget(write);
                    return Ok(());
                }
                // A write to part of a block whose rest is lost may fail.
                if self.touches_hurt(span) {
                    Ok(())
                } else {
                    self.may_refuse(*error, (submitted, since), fua.then_some(Promise::Fua(span)))
                }
            }
            (Pending::Flush { arrived, since }, Err(error)) => {
                self.told = self.writes.len() as u32;
                self.may_refuse(*error, (arrived, since), Some(Promise::Flush))
            }
            (Pending::Cache { .. }, Ok(Outcome::Done)) => Ok(()),
            (Pending::Cache { span, arrived }, Err(RequestError::Io)) => self.may_fail(span, arrived),
            (Pending::Read { .. } | Pending::Cache { .. } | Pending::Status { .. }, Err(RequestError::Shutdown)) if self.closing => Ok(()),
            (pending, result) => Err(Broken(format!("{pending:?} was answered with {result:?}"))),
        }
    }

    fn each_version(&mut self, write: u32, mut change: impl FnMut(&mut Version)) {
        let span = self.writes[write as usize].span;
        for atom in span.start..span.end() {
            self.atoms[atom as usize].iter_mut().filter(|version| version.write == write).for_each(&mut change);
        }
    }

    /// Nothing of `write` was done, and nothing will be.
    fn forget(&mut self, write: u32) {
        let span = self.writes[write as usize].span;
        for atom in span.start..span.end() {
            self.atoms[atom as usize].retain(|version| version.write != write);
        }
    }

    /// What `write` overwrote is not current any more.
    fn acknowledge(&mut self, write: u32, now: Moment) {
        let Write { span, what, submitted, .. } = self.writes[write as usize];
        self.writes[write as usize].acknowledged = now;
        if what == TRIM {
            return;
        }
        for atom in span.start..span.end() {
            for version in self.atoms[atom as usize].iter_mut().rev() {
                let answered = self.writes[version.write as usize].acknowledged;
                if version.dead == NEVER && version.write != write && answered.min(version.shown) < submitted {
                    version.dead = now;
                    if answered >= submitted {
                        version.newer = write;
                    }
                }
            }
        }
    }

    /// These contents of `span` go past the log just now: the writes that put them there, and are not durable, are as on a bare disk.
    pub fn bypass(&mut self, span: Span, stamps: impl Iterator<Item = u64>) {
        for (atom, stamp) in (span.start..span.end()).zip(stamps) {
            for version in self.atoms[atom as usize].iter().filter(|version| version.stamp == stamp) {
                let write = &mut self.writes[version.write as usize];
                write.bypassed |= !write.durable;
            }
        }
    }

    /// The log is lost, or about to be: of what is not durable any part may be on the origin.
    pub fn bypass_all(&mut self) {
        self.writes.iter_mut().for_each(|write| write.bypassed |= !write.durable);
        self.tally.forget_order();
    }

    fn make_durable(&mut self, covered: impl Fn(u32, &Write) -> bool) {
        let (writes, tally, newly_durable) = (&mut self.writes, &mut self.tally, &mut self.newly_durable);
        self.undurable.retain(|&number| {
            let write = &mut writes[number as usize];
            let covered = covered(number, write);
            if covered {
                write.durable = true;
                newly_durable.push(number);
                // A trim may have been let pass: there is nothing of it that could survive.
                if write.what != TRIM {
                    tally.will_survive(number, write);
                }
            }
            !covered
        });
    }

    /// The writes that have become durable since the last call.
    pub fn take_newly_durable(&mut self) -> Vec<u32> {
        std::mem::take(&mut self.newly_durable)
    }

    /// These spans may be newer on a failed cache than on the origin. Writes promised just now must be durable there, where they are the
    /// newest, unless a FLUSH has failed for them. (A trim is a hint.)
    pub fn check_given_up(&self, promised: &[u32], spans: &[Span], durable: impl Fn(u64) -> u64) -> Verdict {
        for &number in promised.iter().filter(|&&number| number >= self.told && self.writes[number as usize].what != TRIM) {
            let write = &self.writes[number as usize];
            let parts = spans.iter().map(|span| span.intersection(write.span));
            let is_lost = |&atom: &u64| match self.atoms[atom as usize].last() {
                Some(last) => last.write == number && !last.optional && last.stamp != durable(atom),
                None => false,
            };
            if let Some(atom) = parts.flat_map(|part| part.start..part.end()).find(is_lost) {
                let what = "what only the failed cache has was promised";
                return Err(Broken(format!("{what}: write {number}, atom {atom} of {spans:?}; {}", self.story(atom))));
            }
        }
        Ok(())
    }

    /// The engine has stopped in order: everything acknowledged is durable.
    pub fn stopped(&mut self) {
        self.make_durable(|_, _| true);
    }

    // --- reading ---

    fn read_reply(&mut self, span: Span, arrived: Moment, parts: &[Stamps]) -> Verdict {
        let mut atom = span.start;
        for part in parts {
            for stamp in part.stamps() {
                if atom < span.end() {
                    self.read_atom(atom, stamp, arrived)?;
                }
                atom += 1;
            }
        }
        if atom == span.end() { Ok(()) } else { Err(Broken(format!("a read of {span:?} got {} atoms", atom - span.start))) }
    }

    fn read_atom(&mut self, atom: u64, stamp: u64, arrived: Moment) -> Verdict {
        // Almost always: one version, or the last one is the only one that is current.
        let versions = &self.atoms[atom as usize];
        let last = versions.last().expect("an atom has a version");
        let matches = |version: &&Version| version.stamp == stamp && version.dead > arrived;
        if versions.len() == 1 && matches(&last) && !last.optional && self.is_final(last) {
            return Ok(());
        }
        let mut found = versions.iter().filter(matches);
        let Some(first) = found.next() else {
            return Err(Broken(format!("atom {atom} was read as {}; {}", show(stamp), self.story(atom))));
        };
        // What the crash left is settled by its first reading, unless a write of this life says the same.
        let (first_write, newest) = (first.write, *found.next_back().unwrap_or(first));
        let of_a_former_life = |version: &Version| self.writes[version.write as usize].life < self.life;
        if of_a_former_life(&newest) && versions.iter().any(|version| of_a_former_life(version) && !version.settled) {
            self.settle(atom, stamp)?;
        }
        let (atoms, writes) = (&self.atoms[atom as usize], &self.writes);
        let failed = || atoms.iter().filter(matches).map(|version| version.write).find(|&write| writes[write as usize].failed);
        let shown = if first_write == newest.write { newest.write } else { failed().unwrap_or(NEVER) };
        self.observe(atom, stamp, (newest.write, shown), arrived);
        Ok(())
    }

    fn is_final(&self, version: &Version) -> bool {
        version.settled || self.writes[version.write as usize].life == self.life
    }

    /// A read that arrived at `arrived` has shown that `stamp`, put there by `write`, is current: what was acknowledged before and says
    /// something else is not. `shown`: the same one; or, where an older write may have put it there as well, one that has failed, if any.
    fn observe(&mut self, atom: u64, stamp: u64, (write, shown): (u32, u32), arrived: Moment) {
        let (now, writes) = (self.now, &self.writes);
        let acknowledged = writes[write as usize].acknowledged;
        // What it has seen there may be gone since.
        let is_overtaken = arrived <= self.forgot && is_unpromised(writes, shown);
        // An earlier write of the same block that is on its way may carry it, if it is a part of that (seed 4746197).
        let all = self.block(atom / self.block_atoms);
        let block = Span::new(all.start, all.end - all.start);
        let is_carried = |number: u32| {
            let is_before = |write: u32| write < number && writes[write as usize].span.overlaps(block);
            let carries = |pending: &Pending| matches!(pending, Pending::Write { write, .. } if is_before(*write));
            let Write { failed, span, .. } = writes[number as usize];
            failed && span.intersection(block) != block && self.pending.values().any(carries)
        };
        self.atoms[atom as usize].retain_mut(|version| {
            let of = &writes[version.write as usize];
            if version.write == write {
                version.optional &= of.failed || shown != write;
                if shown == write {
                    version.shown = now.min(version.shown);
                }
            } else if version.dead == NEVER
                && version.stamp != stamp
                && of.acknowledged < arrived
                && !is_overtaken
                && !is_carried(version.write)
            {
                // A trim that did not take effect never will. Of what an origin has taken without a promise, nobody knows.
                if version.optional && acknowledged < of.submitted && !(of.failed && of.bypassed) {
                    return false;
                }
                version.dead = now;
                version.newer = shown;
            }
            true
        });
    }

    /// May `atom` hold `stamp`, read by somebody who asked at `arrived`?
    fn may_hold(&self, atom: u64, stamp: u64, arrived: Moment) -> bool {
        self.atoms[atom as usize].iter().any(|version| version.stamp == stamp && version.dead > arrived)
    }

    /// Are these stamps what `span` is to hold now?
    pub fn is_intact(&self, span: Span, stamps: &Stamps) -> bool {
        (span.start..span.end()).zip(stamps.stamps()).all(|(atom, stamp)| self.may_hold(atom, stamp, self.now))
    }

    /// Was a slot hit that holds, or should hold, some of what `span` is to hold now?
    pub fn may_be_lost(&self, span: Span) -> bool {
        (span.start..span.end()).any(|atom| self.is_hurt(atom, self.now))
    }

    /// The whole volume as it is now, for instance on the origin after a drain. Blocks that faults may have cost are left out.
    pub fn check_all(&self, holds: impl Fn(u64) -> u64) -> Verdict {
        self.check(0..self.volume_atoms(), holds)
    }

    /// The same of some atoms.
    pub fn check(&self, atoms: impl Iterator<Item = u64>, holds: impl Fn(u64) -> u64) -> Verdict {
        for atom in atoms {
            if !self.is_hurt(atom, self.now) && !self.may_hold(atom, holds(atom), self.now) {
                return Err(Broken(format!("atom {atom} holds {}; {}", show(holds(atom)), self.story(atom))));
            }
        }
        Ok(())
    }

    // --- crashes ---

    /// The engine ends here and now, without a word.
    pub fn crash(&mut self) {
        let now = self.tick();
        for pending in std::mem::take(&mut self.pending).into_values() {
            if let Pending::Write { write, .. } = pending {
                let write = &mut self.writes[write as usize];
                write.acknowledged = now;
                write.bypassed |= self.may_bypass;
            }
        }
        self.undurable.clear();
        self.newly_durable.clear();
        self.untold = false;
        self.trimmed.clear();
        self.ignored_trims = 0;
        for atom in 0..self.volume_atoms() {
            if self.atoms[atom as usize].len() > 1 {
                self.tidy(atom, NEVER);
                self.atoms[atom as usize].iter_mut().for_each(|version| version.dead = NEVER);
            }
        }
        self.life += 1;
        self.tally.add_life();
    }

    fn is_durable(&self, version: &Version) -> bool {
        version.settled || (self.writes[version.write as usize].durable && !version.optional)
    }

    /// The latest submission of a durable version of the lives before `life`: what was acknowledged before it cannot come back.
    fn durable_since(&self, versions: &[Version], life: u32) -> Moment {
        let of = |version: &&Version| &self.writes[version.write as usize];
        let durable = versions.iter().filter(|version| of(version).life < life && self.is_durable(version));
        durable.map(|version| of(&version).submitted).max().unwrap_or(0)
    }

    /// Can a crash after the lives before `life` have left this version?
    fn can_come_back(&self, version: &Version, durable_since: Moment, life: u32) -> bool {
        let of = &self.writes[version.write as usize];
        let superseded = self.writes.get(version.newer as usize).is_some_and(|newer| newer.durable && newer.life < life);
        // What a failed write has left on the origin lies there until something is written over it, whatever was shown instead.
        of.acknowledged >= durable_since && (!superseded || of.failed && of.bypassed)
    }

    /// Drops versions that no crash can bring back and no read in flight may still see.
    fn tidy(&mut self, atom: u64, oldest_read: Moment) {
        let mut versions = std::mem::take(&mut self.atoms[atom as usize]);
        let since = self.durable_since(&versions, self.life + 1);
        versions
            .retain(|version| self.can_come_back(version, since, self.life + 1) || (oldest_read != NEVER && version.dead > oldest_read));
        self.atoms[atom as usize] = versions;
    }

    fn oldest_read(&self) -> Moment {
        let arrived = |pending: &Pending| match pending {
            Pending::Read { arrived, .. } | Pending::Cache { arrived, .. } | Pending::Status { arrived, .. } => Some(*arrived),
            Pending::Write { .. } | Pending::Flush { .. } => None,
        };
        self.pending.values().filter_map(arrived).min().unwrap_or(self.now)
    }

    /// The first reading of an atom after a crash: it is what survived.
    fn settle(&mut self, atom: u64, stamp: u64) -> Verdict {
        let mut tally = std::mem::take(&mut self.tally);
        let survivor = self.explain(atom, stamp, self.life, Some(&mut tally));
        self.tally = tally;
        let survivor = survivor?;
        let (writes, life) = (&self.writes, self.life);
        self.atoms[atom as usize].retain_mut(|version| {
            let survives = version.write == survivor;
            if survives {
                (version.settled, version.optional) = (true, false);
            }
            survives || writes[version.write as usize].life == life
        });
        Ok(())
    }

    /// Explains `stamp` on `atom` by what was written in lives before `life`. Returns the write that survived there.
    /// `tally`: where the order of what survived counts.
    fn explain(&self, atom: u64, stamp: u64, life: u32, tally: Option<&mut Tally>) -> Result<u32, Broken> {
        let versions = &self.atoms[atom as usize];
        let of = |version: &Version| &self.writes[version.write as usize];
        let since = self.durable_since(versions, life);
        let possible = |version: &&Version| version.stamp == stamp && of(version).life < life && self.can_come_back(version, since, life);
        let found: Vec<&Version> = versions.iter().filter(possible).collect();
        let [first, ..] = found[..] else {
            return Err(Broken(format!("after a crash atom {atom} holds {}; {}", show(stamp), self.story(atom))));
        };
        let newest = found[found.len() - 1];
        let Some(tally) = tally else { return Ok(newest.write) };
        let told_apart = newest.write == first.write;
        let is_bypassed = |version: &&Version| of(version).bypassed || self.may_bypass && of(version).acknowledged == NEVER;
        let wrong = |what: String| Broken(format!("{what}; {}", self.story(atom)));
        // One of them survived: that says something if all are of one life.
        if of(first).life == of(newest).life && !first.settled && !of(first).durable && !found.iter().any(|&version| is_bypassed(&version))
        {
            let tells = told_apart && !first.optional && !self.is_at_an_end(first.write, atom);
            tally.survived(first.write, tells, &self.writes).map_err(wrong)?;
        }
        // Whichever it was: what one came after, another of the same stamp may have replaced. (What is durable no crash has lost: where what a failed
        // write has left comes back, something that had replaced both is lost.)
        let may_be_lost = |lost: &&Version| !lost.optional && !self.is_durable(lost) && of(lost).life < life && !is_bypassed(lost);
        for lost in versions.iter().filter(may_be_lost) {
            let is_older = |survivor: &&Version| of(survivor).acknowledged < of(lost).submitted || survivor.newer == lost.write;
            if found.iter().all(|survivor| survivor.write != lost.write && is_older(survivor)) {
                tally.lost(lost.write, &self.writes).map_err(wrong)?;
            }
        }
        Ok(newest.write)
    }

    /// If there were a crash now and `holds` were read everywhere after it (`None`: with an error), would that be as promised?
    pub fn judge(&self, holds: impl Fn(u64) -> Option<u64>) -> Verdict {
        self.judge_in_order(false, 0..self.volume_atoms(), holds)
    }

    fn judge_in_order(&self, waives_order: bool, atoms: impl Iterator<Item = u64>, holds: impl Fn(u64) -> Option<u64>) -> Verdict {
        let mut tally = self.tally.clone();
        for atom in atoms {
            match holds(atom) {
                None if self.may_come_back_hurt(atom) => {}
                None => return Err(Broken(format!("after a crash atom {atom} cannot be read; {}", self.story(atom)))),
                Some(stamp) => {
                    if let [only] = &self.atoms[atom as usize][..]
                        && only.settled
                        && only.stamp == stamp
                    {
                        continue;
                    }
                    self.explain(atom, stamp, self.life + 1, (!waives_order).then_some(&mut tally))?;
                }
            }
        }
        Ok(())
    }

    /// If the cache were lost now, and the origin held this: would everything be there that was flushed, but for what was `given_up`? In
    /// which order the rest went home, nobody has promised.
    pub fn judge_alone(&self, given_up: &[Span], holds: impl Fn(u64) -> u64) -> Verdict {
        let is_given_up = |atom| given_up.iter().any(|span| (span.start..span.end()).contains(&atom));
        let kept = (0..self.volume_atoms()).filter(|&atom| !is_given_up(atom));
        let judged = self.judge_in_order(true, kept, |atom| Some(holds(atom)));
        judged.map_err(|broken| Broken(format!("the origin alone: {}", broken.0)))
    }

    // --- blocks ---

    /// Is this atom in a block of which the write has a part only, beside other blocks?
    fn is_at_an_end(&self, write: u32, atom: u64) -> bool {
        let (span, block) = (self.writes[write as usize].span, self.block(atom / self.block_atoms));
        let is_whole = span.start <= block.start && block.end <= span.end();
        let is_alone = block.start <= span.start && span.end() <= block.end;
        !is_whole && !is_alone
    }

    fn block(&self, block: u64) -> std::ops::Range<u64> {
        block * self.block_atoms..((block + 1) * self.block_atoms).min(self.volume_atoms())
    }

    // --- words ---

    /// The history of an atom and what it may hold.
    pub fn story(&self, atom: u64) -> String {
        let mut history: Vec<String> = Vec::new();
        for (number, write) in self.writes.iter().enumerate().filter(|(_, write)| (write.span.start..write.span.end()).contains(&atom)) {
            let state = match write {
                Write { failed: true, .. } => "failed",
                Write { durable: true, .. } => "durable",
                Write { acknowledged: NEVER, .. } => "in flight",
                Write { .. } => "acknowledged",
            };
            let (what, life, from, to) = (write.what, write.life, write.submitted, write.acknowledged);
            let to = if to == NEVER { "…".to_string() } else { to.to_string() };
            history.push(format!("{what} {number} ({state}, moments {from}–{to}, life {life})"));
        }
        const SHOWN: usize = 8;
        let hidden = history.len().saturating_sub(SHOWN);
        let more = if hidden > 0 { format!("{hidden} older ones, ") } else { String::new() };
        let may: Vec<String> = self.atoms[atom as usize]
            .iter()
            .map(|version| {
                let over = if version.dead == NEVER { "" } else { " (over)" };
                let settled = if version.settled { " (settled)" } else { "" };
                format!("{} of write {}{over}{settled}", show(version.stamp), version.write)
            })
            .collect();
        let block = atom / self.block_atoms;
        format!("block {block}; history: {more}{}; versions: {}", history[hidden..].join(", "), may.join(", "))
    }
}

/// It was answered with an error, or not at all.
fn is_unpromised(writes: &[Write], write: u32) -> bool {
    writes.get(write as usize).is_some_and(|write| write.failed || write.acknowledged == NEVER)
}

/// A stamp in words.
pub fn show(stamp: u64) -> String {
    match meaning(stamp) {
        None if stamp == 0 => "zeros".to_string(),
        None => format!("garbage ({stamp:#x})"),
        Some((0, atom)) => format!("the origin's atom {atom}"),
        Some((write, atom)) => format!("stamp {write} of atom {atom}"),
    }
}

#[cfg(test)]
#[path = "oracle_tests.rs"]
mod tests;
