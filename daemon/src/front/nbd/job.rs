//! Jobs: commands that take the engine several requests, one after the other. A job has one request in the engine at a time.
//!
//! ```text
//! write part of an atom   Read (first atom) → Read (last atom) → Write (all) → done
//! zero part of an atom    Zero (the whole atoms) → for each edge: Read (its atom) → Write (its atom) → done
//! cache                   Cache (a piece) → … → done
//! ```
//! What a job changes it has to itself: it begins when no earlier change of that place is under way, and later ones wait for it, those
//! of all connections. Otherwise two clients that write neighbouring bytes of one atom could undo each other's.

use std::collections::VecDeque;
use std::sync::Weak;

use tidegate_engine::Event;
use tidegate_engine::block::{ATOM_BYTES, Span};
use tidegate_engine::request::{Command, Kind, Outcome, Reply, Request, RequestId, Room};

use crate::back::run::{Run, RunMut};

const ATOM: usize = ATOM_BYTES as usize;
/// What is asked to be cached is read in pieces of this many atoms: 4 MiB.
pub const PIECE_ATOMS: u64 = (4 << 20) / ATOM_BYTES;
/// Jobs of all connections at once that change something; the clients of further ones wait. Every reply is looked up among them.
const CHANGING_JOBS_MAX: usize = 240;
/// Bytes of contents that they hold, but for what one more brings along.
const JOBS_BYTES_MAX: u64 = 64 << 20;
/// Jobs of a front's connections that cache, likewise. They have places of their own: one keeps its place until gigabytes are read.
const CACHING_JOBS_MAX: usize = 16;
/// Atoms that are being cached at once, 16 MiB: others want the engine's memory, too.
const CACHING_ATOMS_MAX: u64 = 4 * PIECE_ATOMS;

/// What is left to be done for one command.
#[derive(Debug)]
pub struct Job {
    /// What it changes; empty if nothing.
    span: Span,
    zero: Option<(Span, Command<Run>)>,
    patches: VecDeque<Patch>,
    cache: Span,
    fua: bool,
    /// Whose it is, as long as he is there; nobody in particular if nothing is said.
    client: Option<Weak<()>>,
}

/// Contents to be written once their edges are known.
#[derive(Debug)]
struct Patch {
    span: Span,
    run: RunMut,
    edges: Vec<Edge>,
}

/// An atom of which some bytes stay as they are: those before `start` and those from `end` on.
#[derive(Debug)]
struct Edge {
    atom: u64,
    start: usize,
    end: usize,
}

impl Patch {
    /// Bytes `start..end` of `run` are new, the rest of its first and last atom is not known yet.
    fn new(span: Span, run: RunMut, start: usize, end: usize) -> Patch {
        let last = (span.atoms as usize - 1) * ATOM;
        assert!(start < ATOM && start < end && end > last && end <= last + ATOM, "only the first and the last atom are written in part");
        let first_end = end.min(ATOM);
        let mut edges = vec![Edge { atom: span.start, start, end: first_end }];
        if span.atoms > 1 {
            edges.push(Edge { atom: span.end() - 1, start: 0, end: end - last });
        }
        edges.retain(|edge| (edge.start, edge.end) != (0, ATOM));
        Patch { span, run, edges }
    }

    /// What the last edge looks like now.
    fn learn(&mut self, atom: &[u8]) {
        let edge = self.edges.pop().expect("an edge was asked for");
        let at = (edge.atom - self.span.start) as usize * ATOM;
        let here = &mut self.run.as_mut_slice()[at..at + ATOM];
        here[..edge.start].copy_from_slice(&atom[..edge.start]);
        here[edge.end..].copy_from_slice(&atom[edge.end..]);
    }
}

impl Job {
    /// Bytes `start..end` of `run`, which lies at `span`, are to be written.
    pub fn write(span: Span, run: RunMut, start: usize, end: usize, fua: bool) -> Job {
        Job { span, zero: None, patches: VecDeque::from([Patch::new(span, run, start, end)]), cache: Span::default(), fua, client: None }
    }

    /// `length` bytes at `offset` are to be zero. The whole atoms come first: if they cannot be had fast, nothing has changed.
    pub fn zero(offset: u64, length: u64, no_hole: bool, fua: bool, fast: bool) -> Job {
        let end = offset + length;
        let (first, last) = (offset / ATOM_BYTES, (end - 1) / ATOM_BYTES);
        let span = Span::new(first, last + 1 - first);
        let whole = Span::new(offset.div_ceil(ATOM_BYTES), (end / ATOM_BYTES).saturating_sub(offset.div_ceil(ATOM_BYTES)));
        let in_atom = |byte: u64, atom: u64| byte.saturating_sub(atom * ATOM_BYTES).min(ATOM_BYTES) as usize;
        let mut edges = vec![first, last];
        edges.dedup();
        edges.retain(|atom| !whole.contains(Span::new(*atom, 1)));
        let patch = |atom: u64| {
            let mut run = RunMut::new(1);
            run.as_mut_slice().fill(0);
            Patch::new(Span::new(atom, 1), run, in_atom(offset, atom), in_atom(end, atom))
        };
        let zero = (!whole.is_empty()).then_some((whole, Command::Zero { no_hole, fua, fast }));
        Job { span, zero, patches: edges.into_iter().map(patch).collect(), cache: Span::default(), fua, client: None }
    }

    /// What only the origin has of these atoms is to be kept.
    pub fn cache(span: Span) -> Job {
        Job { span: Span::default(), zero: None, patches: VecDeque::new(), cache: span, fua: false, client: None }
    }

    /// It is of this client: where several requests only read for him, the rest of them goes with him.
    pub fn of(self, client: Weak<()>) -> Job {
        Job { client: Some(client), ..self }
    }

    /// Nobody wants it any more.
    fn is_orphaned(&self) -> bool {
        self.is_caching() && self.has_lost_client()
    }

    /// Has the client gone whose it is?
    pub fn has_lost_client(&self) -> bool {
        self.client.as_ref().is_some_and(|client| client.strong_count() == 0)
    }

    /// What it changes; empty if nothing.
    pub fn change(&self) -> Span {
        self.span
    }

    /// Bytes of contents that it holds, at most.
    pub fn bytes(&self) -> u64 {
        self.patches.iter().map(|patch| patch.span.bytes()).sum()
    }

    pub fn kind(&self) -> Kind {
        if self.is_caching() { Kind::Read } else { Kind::Change }
    }

    /// It changes nothing.
    pub fn is_caching(&self) -> bool {
        self.span.is_empty()
    }

    /// The next request's span; `None`: all is done.
    fn next_span(&self) -> Option<Span> {
        let patch = self.patches.front().map(|patch| patch.edges.last().map_or(patch.span, |edge| Span::new(edge.atom, 1)));
        let piece = Span::new(self.cache.start, self.cache.atoms.min(PIECE_ATOMS));
        self.zero.as_ref().map(|(span, _)| *span).or(patch).or((!piece.is_empty()).then_some(piece))
    }

    /// Bytes that the next request takes of the engine's room. What cannot be said exactly before the command is known is said too high: zeroes
    /// hold no memory.
    fn next_bytes(&self) -> u64 {
        if self.zero.is_some() { 0 } else { self.next_span().map_or(0, Span::bytes) }
    }

    /// Does the next request only read? Not zeroes, nor contents whose edges are known.
    fn next_reads(&self) -> bool {
        self.zero.is_none() && self.patches.front().is_none_or(|patch| !patch.edges.is_empty())
    }

    fn next_kind(&self) -> Kind {
        if self.next_reads() { Kind::Read } else { Kind::Change }
    }

    /// The next request, at [`Job::next_span`].
    fn next_command(&mut self) -> Command<Run> {
        if let Some((_, zero)) = self.zero.take() {
            return zero;
        }
        match self.patches.front() {
            Some(patch) if !patch.edges.is_empty() => return Command::Read,
            Some(_) => {}
            None => {
                let piece = self.cache.atoms.min(PIECE_ATOMS);
                self.cache = Span::new(self.cache.start + piece, self.cache.atoms - piece);
                return Command::Cache;
            }
        }
        let patch = self.patches.pop_front().expect("looked at above");
        Command::Write { data: patch.run.freeze(), fua: self.fua }
    }

    /// The engine has answered the request.
    fn learn(&mut self, outcome: Outcome<Run>) {
        match outcome {
            Outcome::Data(parts) => {
                let [atom] = &parts[..] else { panic!("an atom comes in one part") };
                self.patches.front_mut().expect("only patches read").learn(atom.as_slice());
            }
            Outcome::Done => {}
            Outcome::Status { .. } => panic!("a job asks for no status"),
        }
    }
}

/// What becomes of room that comes free and is not enough for whoever lacks it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keep {
    /// Whoever needs less takes it.
    Nothing,
    /// It is kept for the first job that lacks it: later ones take none, nor does what only caches.
    ForJobs,
    /// Somebody who is no job lacks it as well: what only caches takes none.
    ForAll,
    /// The same, and he comes first: jobs take none.
    ForOthers,
}

/// The jobs of all connections.
#[derive(Default)]
pub struct Jobs {
    /// Somebody else runs them ([`Jobs::take`]).
    elsewhere: bool,
    running: Vec<Running>,
    /// What somebody else runs: those that cache, until they are answered.
    caching_elsewhere: Vec<RequestId>,
    /// What the running ones change: others wait.
    spans: Vec<Span>,
    /// Changes in the engine whose client has gone.
    orphans: Vec<(RequestId, Span)>,
    /// The first that changes something and lacks so much of the engine's room for its contents. It would never get that if others took what comes
    /// free.
    cramped: Option<(RequestId, u64)>,
}

struct Running {
    id: RequestId,
    job: Job,
    state: State,
    /// Atoms of its request in the engine.
    asked: u64,
}

impl Running {
    /// Its next request goes to the engine.
    fn ask(&mut self, room: &mut Room, events: &mut Vec<Event<Run>>) {
        let span = self.job.next_span().expect("it is not done");
        room.take(self.job.next_kind(), self.job.next_bytes());
        (self.state, self.asked) = (State::Asked, span.atoms);
        events.push(Event::Arrived(Request { id: self.id, span, command: self.job.next_command() }));
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Earlier changes of the same place may be under way.
    Waiting,
    /// The next request may go to the engine.
    Ready,
    /// A request is in the engine.
    Asked,
}

/// Whose reply it was.
pub enum Answered {
    /// Of no job; or the last one of a job.
    Client(Reply<Run>),
    /// The job goes on.
    Job,
}

impl Jobs {
    /// Of a front whose jobs somebody else runs.
    pub fn elsewhere() -> Jobs {
        Jobs { elsewhere: true, ..Jobs::default() }
    }

    /// Does somebody else run them?
    pub fn are_elsewhere(&self) -> bool {
        self.elsewhere
    }

    /// What nobody else may change now.
    pub fn spans(&self) -> &[Span] {
        &self.spans
    }

    /// Is there place for one more that changes something?
    pub fn has_place(&self) -> bool {
        let changing = self.running.iter().filter(|running| !running.job.is_caching());
        let (count, bytes) = changing.fold((0, 0), |(count, bytes), running| (count + 1, bytes + running.job.bytes()));
        count < CHANGING_JOBS_MAX && bytes < JOBS_BYTES_MAX
    }

    /// Is there place for one more that caches?
    pub fn has_place_to_cache(&self) -> bool {
        let here = self.running.iter().filter(|running| running.job.is_caching()).count();
        here + self.caching_elsewhere.len() < CACHING_JOBS_MAX
    }

    /// Has anything come that changes something, and is not done?
    pub fn is_changing(&self) -> bool {
        self.running.iter().any(|running| !running.job.is_caching())
    }

    /// Is there anything to be started?
    pub fn is_idle(&self) -> bool {
        self.elsewhere || self.running.iter().all(|running| running.state == State::Asked)
    }

    /// Does one lack the engine's room for its contents? What comes free is to be kept for it.
    pub fn is_cramped(&self) -> bool {
        self.cramped.is_some()
    }

    /// So much does it lack; or 0.
    pub fn lacking(&self) -> u64 {
        self.cramped.map_or(0, |(_, bytes)| bytes)
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.running.len()
    }

    pub fn push(&mut self, id: RequestId, job: Job) {
        if !job.span.is_empty() {
            self.spans.push(job.span);
        }
        self.running.push(Running { id, job, state: State::Waiting, asked: 0 });
    }

    /// Gives away what has come and not begun.
    pub fn take(&mut self) -> Vec<(RequestId, Job)> {
        assert!(self.elsewhere, "a job is begun by one of us");
        self.spans.clear();
        self.caching_elsewhere.extend(self.running.iter().filter(|running| running.job.is_caching()).map(|running| running.id));
        self.running.drain(..).map(|Running { id, job, .. }| (id, job)).collect()
    }

    /// Starts what can be started: first what changes something, then what only caches. `changes`: what is under way besides jobs.
    pub fn start(&mut self, changes: impl Fn(Span) -> bool, keep: Keep, room: &mut Room, events: &mut Vec<Event<Run>>) {
        if !room.has_place(Kind::Change) {
            return;
        }
        self.cramped = None;
        for place in 0..self.running.len() {
            let (earlier, rest) = self.running.split_at_mut(place);
            let Running { id, job, state, .. } = &mut rest[0];
            let orphans = || self.orphans.iter().any(|(_, span)| span.overlaps(job.span));
            let earlier = || earlier.iter().any(|earlier| earlier.job.span.overlaps(job.span));
            if room.has_place(Kind::Change)
                && *state == State::Waiting
                && (job.is_caching() || !(changes(job.span) || orphans() || earlier()))
            {
                *state = State::Ready;
            }
            if *state != State::Ready || job.is_caching() {
                continue;
            }
            let bytes = job.next_bytes();
            if room.bytes < bytes || (bytes > 0 && keep == Keep::ForOthers) {
                self.cramped.get_or_insert((*id, bytes));
            } else if job.next_reads() && room.for_reads().is_none_or(|most| most < bytes) {
                // It waits, as the first, for a read of others to end: that may be for the origin, and nothing else is kept for it.
                continue;
            } else if room.has_place(Kind::Change) && (bytes == 0 || keep == Keep::Nothing || self.cramped.is_none()) {
                rest[0].ask(room, events);
            }
        }
        if keep == Keep::Nothing || (keep == Keep::ForJobs && !self.is_cramped()) {
            self.start_caching(room, events);
        }
    }

    fn start_caching(&mut self, room: &mut Room, events: &mut Vec<Event<Run>>) {
        let caching = |running: &&mut Running| running.job.is_caching();
        let under_way = self.running.iter_mut().filter(caching).filter(|running| running.state == State::Asked);
        let mut atoms: u64 = under_way.map(|running| running.asked).sum();
        for running in self.running.iter_mut().filter(caching).filter(|running| running.state == State::Ready) {
            let Some(span) = running.job.next_span() else { continue };
            if room.for_reads().is_some_and(|bytes| span.bytes() <= bytes) && atoms + span.atoms <= CACHING_ATOMS_MAX {
                atoms += span.atoms;
                running.ask(room, events);
            }
        }
    }

    /// A reply of the engine. Failures end a job.
    pub fn handle(&mut self, reply: Reply<Run>) -> Answered {
        let Some(place) = self.running.iter().position(|running| running.id == reply.id) else {
            self.caching_elsewhere.retain(|id| *id != reply.id);
            return Answered::Client(reply);
        };
        let running = &mut self.running[place];
        assert!(running.state == State::Asked, "a job is answered what it asked");
        let result = match reply.result {
            Ok(outcome) => {
                running.job.learn(outcome);
                if running.job.next_span().is_some() && !running.job.is_orphaned() {
                    running.state = State::Ready;
                    return Answered::Job;
                }
                Ok(Outcome::Done)
            }
            Err(error) => Err(error),
        };
        self.remove(place);
        Answered::Client(Reply { id: reply.id, result })
    }

    fn remove(&mut self, place: usize) -> Running {
        let running = self.running.remove(place);
        self.cramped = self.cramped.filter(|(id, _)| *id != running.id);
        if let Some(place) = self.spans.iter().position(|span| *span == running.job.span) {
            self.spans.swap_remove(place);
        }
        running
    }

    /// The client with these ids has gone: what it has in the engine goes on. Nothing more is started for it, unless it has said that it goes
    /// (`is_over`: it has not): then what it has asked to be changed is.
    pub fn abandon(&mut self, is_its: impl Fn(RequestId) -> bool, is_over: bool, changes: impl Iterator<Item = (RequestId, Span)>) {
        if self.elsewhere {
            return;
        }
        self.orphans.extend(changes);
        let ends = |running: &Running| is_its(running.id) && (is_over || running.job.is_caching());
        while let Some(place) = self.running.iter().position(ends) {
            let Running { id, job, state, .. } = self.remove(place);
            if state == State::Asked && !job.span.is_empty() {
                self.orphans.push((id, job.span));
            }
        }
    }

    /// The engine has answered somebody who has gone.
    pub fn bury(&mut self, id: RequestId) {
        self.orphans.retain(|(orphan, _)| *orphan != id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::sync::Arc;
    use tidegate_engine::payload::Payload;
    use tidegate_engine::request::RequestError;

    /// Runs a job to its end against a disk in memory.
    fn done(mut job: Job, disk: &mut [u8]) -> Vec<String> {
        let mut asked = Vec::new();
        while let Some(span) = job.next_span() {
            let bytes = span.offset() as usize..(span.end() * ATOM_BYTES) as usize;
            let command = job.next_command();
            let name = format!("{command:?}");
            asked.push(format!("{} {}+{}", name.split(' ').next().expect("a name"), span.start, span.atoms));
            let outcome = match command {
                Command::Read => Outcome::Data([Run::from_bytes(&disk[bytes])].into()),
                Command::Write { data, .. } => {
                    disk[bytes].copy_from_slice(data.as_slice());
                    Outcome::Done
                }
                Command::Zero { .. } => {
                    disk[bytes].fill(0);
                    Outcome::Done
                }
                Command::Cache => Outcome::Done,
                Command::Trim { .. } | Command::Flush | Command::Status { .. } => panic!("no job does that"),
            };
            job.learn(outcome);
        }
        asked
    }

    fn write_job(offset: usize, data: &[u8]) -> Job {
        let first = offset / ATOM;
        let span = Span::new(first as u64, ((offset + data.len()).div_ceil(ATOM) - first) as u64);
        let mut run = RunMut::new(span.atoms);
        let start = offset - first * ATOM;
        run.as_mut_slice().fill(0xee);
        run.as_mut_slice()[start..start + data.len()].copy_from_slice(data);
        Job::write(span, run, start, start + data.len(), false)
    }

    #[test]
    fn each_edge_is_read_once_and_whole_atoms_never() {
        let mut disk = vec![7; 8 * ATOM];
        assert_eq!(done(write_job(100, &[1; 10]), &mut disk), ["Read 0+1", "Write 0+1"]);
        assert_eq!(done(write_job(100, &[1; 1000]), &mut disk), ["Read 2+1", "Read 0+1", "Write 0+3"]);
        assert_eq!(done(write_job(100, &[1; 412]), &mut disk), ["Read 0+1", "Write 0+1"]);
        assert_eq!(done(write_job(512, &[1; 600]), &mut disk), ["Read 2+1", "Write 1+2"]);
        assert_eq!(
            done(Job::zero(100, 2000, false, false, true), &mut disk),
            ["Zero 1+3", "Read 0+1", "Write 0+1", "Read 4+1", "Write 4+1"]
        );
        assert_eq!(done(Job::zero(10, 20, false, false, false), &mut disk), ["Read 0+1", "Write 0+1"]);
        assert_eq!(done(Job::zero(512, 1025, false, false, false), &mut disk), ["Zero 1+2", "Read 3+1", "Write 3+1"]);
    }

    #[test]
    fn what_is_to_be_cached_comes_in_pieces() {
        let asked = done(Job::cache(Span::new(8, 2 * PIECE_ATOMS + 8)), &mut vec![0; 20 << 20]);
        assert_eq!(asked, ["Cache 8+8192", "Cache 8200+8192", "Cache 16392+8"]);
    }

    proptest! {
        #[test]
        fn writes_and_zeroes_of_any_bytes_change_just_these(
            steps in prop::collection::vec((0usize..4000, 1usize..1500, any::<u8>(), any::<bool>()), 1..30),
        ) {
            let mut disk = vec![0x55; 12 * ATOM];
            let mut naive = disk.clone();
            for (offset, length, byte, zero) in steps {
                let job = match zero {
                    true => Job::zero(offset as u64, length as u64, false, false, false),
                    false => write_job(offset, &vec![byte; length]),
                };
                done(job, &mut disk);
                naive[offset..offset + length].fill(if zero { 0 } else { byte });
                prop_assert!(disk == naive);
            }
        }
    }

    fn ids(events: &[Event<Run>]) -> Vec<u64> {
        let id = |event: &Event<Run>| if let Event::Arrived(request) = event { request.id.0 } else { panic!("only requests") };
        events.iter().map(id).collect()
    }

    #[test]
    fn a_job_waits_for_the_changes_under_way_also_of_those_who_have_gone() {
        let (mut jobs, mut events, mut room) = (Jobs::default(), Vec::new(), Room::whole(9, 1 << 20));
        jobs.abandon(|_| false, true, [(RequestId(1), Span::new(0, 8))].into_iter());
        jobs.push(RequestId(2), write_job(100, &[1; 10]));
        jobs.start(|_| false, Keep::ForJobs, &mut room, &mut events);
        assert!(events.is_empty() && !jobs.is_idle());
        jobs.bury(RequestId(1));
        jobs.start(|span| span == Span::new(0, 1), Keep::ForJobs, &mut room, &mut events);
        assert!(events.is_empty(), "somebody else writes there");
        jobs.start(|_| false, Keep::ForJobs, &mut room, &mut events);
        assert_eq!((ids(&events), jobs.spans()), (vec![2], &[Span::new(0, 1)][..]));
        let failed = Reply { id: RequestId(2), result: Err(RequestError::Io) };
        assert!(matches!(jobs.handle(failed), Answered::Client(Reply { result: Err(RequestError::Io), .. })));
        assert!(jobs.spans().is_empty() && jobs.running.is_empty());
    }

    #[test]
    fn what_is_cached_for_a_client_ends_when_he_goes() {
        let (mut jobs, mut events, client) = (Jobs::default(), Vec::new(), Arc::new(()));
        jobs.push(RequestId(1), Job::cache(Span::new(0, 10 * PIECE_ATOMS)).of(Arc::downgrade(&client)));
        let done = |jobs: &mut Jobs| jobs.handle(Reply { id: RequestId(1), result: Ok(Outcome::Done) });
        let mut room = Room::whole(9, 1 << 30);
        jobs.start(|_| false, Keep::ForJobs, &mut room, &mut events);
        assert!(matches!(done(&mut jobs), Answered::Job));
        jobs.start(|_| false, Keep::ForJobs, &mut room, &mut events);
        drop(client);
        assert!(matches!(done(&mut jobs), Answered::Client(_)) && jobs.running.is_empty());
        assert_eq!(events.len(), 2);
    }

    #[test]
    fn what_caches_takes_no_place_from_what_changes_and_holds_it_up_nowhere() {
        let (mut jobs, mut events) = (Jobs::default(), Vec::new());
        (0..CACHING_JOBS_MAX as u64).for_each(|id| jobs.push(RequestId(id), Job::cache(Span::new(0, 10 * PIECE_ATOMS))));
        assert!(!jobs.has_place_to_cache() && jobs.has_place());
        (0..CHANGING_JOBS_MAX as u64).for_each(|id| jobs.push(RequestId(100 + id), write_job(1000 * id as usize, &[1; 10])));
        assert!(!jobs.has_place());
        jobs.start(|_| false, Keep::ForJobs, &mut Room::whole(10, 1 << 20), &mut events);
        assert_eq!(ids(&events), (100..109).collect::<Vec<_>>(), "there is no room for a piece of 4 MiB");
    }

    #[test]
    fn what_comes_free_is_kept_for_the_first_job_that_lacks_it_and_for_the_next_one_when_it_has_gone() {
        let (mut jobs, mut events) = (Jobs::default(), Vec::new());
        jobs.push(RequestId(1), Job::cache(Span::new(0, 8)));
        jobs.push(RequestId(2), Job::write(Span::new(100, 9), RunMut::new(9), 0, 9 * ATOM - 1, false));
        jobs.push(RequestId(3), Job::zero(512 * 200, 1000, false, false, false));
        jobs.push(RequestId(4), write_job(512 * 300, &[1; 10]));
        let mut start = |jobs: &mut Jobs, keep: Keep, bytes: u64| {
            jobs.start(|_| false, keep, &mut Room::whole(9, bytes), &mut events);
            ids(&std::mem::take(&mut events))
        };
        let learn = |jobs: &mut Jobs, id: u64| {
            let data = Outcome::Data([RunMut::new(1).freeze()].into());
            assert!(matches!(jobs.handle(Reply { id: RequestId(id), result: Ok(data) }), Answered::Job));
        };
        assert_eq!(start(&mut jobs, Keep::ForJobs, 0), [3], "zeroes need none");
        assert_eq!(start(&mut jobs, Keep::ForAll, 9 * 512), [2, 4], "the edges; what caches is nobody's hurry");
        [2, 4].into_iter().for_each(|id| learn(&mut jobs, id));
        assert!(start(&mut jobs, Keep::ForJobs, 8 * 512).is_empty() && jobs.is_cramped());
        jobs.start(|_| false, Keep::ForJobs, &mut Room::none(), &mut Vec::new());
        assert!(jobs.is_cramped(), "nobody has looked");
        assert_eq!(start(&mut jobs, Keep::Nothing, 9 * 512 - 1), [4], "others pass");
        assert!(jobs.is_cramped());
        jobs.abandon(|id| id.0 == 2, true, std::iter::empty());
        assert!(!jobs.is_cramped(), "there is nobody any more for whom to keep it");
        assert_eq!(start(&mut jobs, Keep::ForJobs, 8 * 512), [1]);
    }

    #[test]
    fn what_somebody_else_caches_has_its_place_here_until_it_is_answered() {
        let mut jobs = Jobs::elsewhere();
        for id in 0..CACHING_JOBS_MAX as u64 {
            assert!(jobs.has_place_to_cache());
            jobs.push(RequestId(id), Job::cache(Span::new(0, 8)));
            jobs.push(RequestId(100 + id), write_job(100, &[1; 10]));
            assert_eq!(jobs.take().len(), 2);
        }
        assert!(!jobs.has_place_to_cache() && jobs.has_place());
        assert!(matches!(jobs.handle(Reply { id: RequestId(3), result: Ok(Outcome::Done) }), Answered::Client(_)));
        assert!(jobs.has_place_to_cache());
    }

    #[test]
    fn nothing_is_started_without_room_or_for_a_client_that_has_gone() {
        let (mut jobs, mut events) = (Jobs::default(), Vec::new());
        jobs.push(RequestId(1), write_job(100, &[1; 10]));
        jobs.push(RequestId(2), write_job(5000, &[1; 10]));
        jobs.start(|_| false, Keep::ForJobs, &mut Room::whole(0, 1 << 20), &mut events);
        jobs.start(|_| false, Keep::ForJobs, &mut Room::whole(9, 511), &mut events);
        assert!(events.is_empty());
        let mut room = Room::whole(1, 1 << 20);
        jobs.start(|_| false, Keep::ForJobs, &mut room, &mut events);
        assert_eq!((ids(&events), room), (vec![1], Room::whole(0, (1 << 20) - 512)));
        jobs.abandon(|id| id.0 < 3, true, std::iter::empty());
        assert_eq!(jobs.orphans, [(RequestId(1), Span::new(0, 1))], "what is in the engine is waited for");
        assert!(jobs.spans().is_empty() && jobs.running.is_empty());
    }
}
