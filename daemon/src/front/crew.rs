//! The front threads of a volume, as its own thread sees them: one port. What they ask is taken from their rings, and passed on in turns, as far as
//! the engine has room. Who lacks room for a large payload would never get it there if all others took what comes free: it is set
//! aside, and they take none, but in some seconds, as in a front ([`Turns`]).
//!
//! What only reads waits by itself, and so does a FLUSH: while the origin does not answer, what clients of the same thread write and flush passes
//! those reads that the engine has no room for.
//!
//! What waits here comes before what another thread's client asks for later at the same place: it may be the same one, come back. Whoever is behind
//! that one waits, too. And nobody is let in before each thread has read its sockets, with that of whoever was let in before him: what somebody has
//! sent on a connection that he has given up lies there until then, or has just been taken from there. And no thread writes pages of memory where
//! something waits, or is in the engine and not answered ([`Claims`]).
//!
//! Parts of atoms are merged here and not there: who changes part of one has it to himself among all threads' clients. So while such a job is
//! under way no thread writes pages of memory by itself ([`Shared::must_ask`]), and none begins before each of them has been seen not to.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::sync_channel;
use std::thread::JoinHandle;

use tidegate_engine::Event;
use tidegate_engine::block::Span;
use tidegate_engine::request::{Kind, Reply, Request, RequestError, RequestId, Room};
use tidegate_engine::time::{Duration, Instant};
use tidegate_pages::Pages;

use super::claims::Claims;
use super::crossing::{Asked, Far, crossing};
use super::hand::{Hand, Word};
use super::nbd::departures::Departures;
use super::nbd::job::{self, Jobs, Keep};
use super::nbd::turns::Turns;
use super::nbd::{Export, Front, Guest};
use super::{Answered, Clients, Tally};
use crate::back::lessor::PageLessor;
use crate::back::mail::{Bell, Sender, mailbox};
use crate::back::run::Run;
use crate::port::{Interest, Port};
use crate::volume::Clock;

/// Threads of one volume at most: their number is in the high bits of request ids.
pub const HANDS_MAX: usize = 64;
/// Where the number of the thread begins in the engine's request ids.
const HAND_SHIFT: u32 = 56;
/// They take turns at what comes free for so long, whoever lacks it and all others.
const TICK: Duration = Duration::from_secs(1);
/// Clients on their way to one thread at most.
const WORDS_MAX: usize = 1024;

const _: () = assert!(HANDS_MAX <= 1 << (u64::BITS - HAND_SHIFT));

pub struct Crew {
    hands: Vec<Member>,
    /// Clients that wait to be let in, one after the other.
    arriving: VecDeque<Guest>,
    /// Those whom the threads have, and what they have left.
    departures: Arc<Departures>,
    /// How often the threads have been asked to read their sockets.
    readings: usize,
    /// What the last of these is for, until they have.
    reading: Option<Reading>,
    bell: Bell,
    /// The loop knows the bell.
    said: bool,
    /// Who is asked first next time: who got something is the last.
    turn: usize,
    /// The first request that lacks the engine's room for its payload, and of which thread it is: what is behind it in that one's ring goes on.
    aside: Option<(usize, Waiting)>,
    /// The same of the room for what only reads.
    aside_reads: Option<(usize, Waiting)>,
    /// Taken from rings, ever.
    taken: u64,
    claims: Arc<Claims>,
    /// Whether others do take some of what comes free.
    turns: Turns,
    read_turns: Turns,
    last_tick: Instant,
    /// Commands that take several requests.
    jobs: Jobs,
    /// Requests in the engine, and jobs, whose changes `jobs` knows.
    open: HashMap<RequestId, Open>,
    /// How many of them change something.
    changing: usize,
    /// What is to be changed first is not what the threads have been told.
    is_stale: bool,
    /// They may write pages.
    has_pages: bool,
}

/// The threads read their sockets.
struct Reading {
    /// Then the first who has arrived is let in.
    lets_in: bool,
    /// And what was read on connections that had been closed until this time is where it comes first.
    departures: usize,
}

/// Taken from a ring, and its place among all that were.
struct Waiting {
    place: u64,
    asked: Asked,
}

/// What waits in one queue: that has an order of its own.
enum Queue {
    /// Everything that neither only reads nor flushes; and jobs.
    Changes,
    Reads,
    Flushes,
}

impl Queue {
    fn of(asked: &Asked) -> Queue {
        match asked {
            Asked::Request(request, _) => match request.kind() {
                Kind::Change => Queue::Changes,
                Kind::Read => Queue::Reads,
                Kind::Flush => Queue::Flushes,
            },
            Asked::Job(..) => Queue::Changes,
        }
    }
}

const QUEUES: usize = Queue::Flushes as usize + 1;
/// Of one thread so many changes are looked at that others, which wait for their place, may be passed by.
const LOOKED_AT_MAX: usize = 32;

/// What becomes of what waits.
enum Verdict {
    PassOn,
    Refuse,
    /// It is set aside, and what is behind it goes on.
    Aside,
    AsideReads,
    /// It waits for its place on the volume alone: what is behind it, and changes nothing of that, goes on.
    LetPass,
    Wait,
}

/// A request in the engine.
struct Open {
    change: Span,
    bytes: u64,
    kind: Kind,
}

/// One thread, from here.
struct Member {
    far: Far,
    /// From its ring, and not passed on yet, by [`Queue`].
    waiting: [VecDeque<Waiting>; QUEUES],
    words: Sender<Word>,
    /// Clients that were sent there, ever.
    admitted: usize,
    state: Arc<Shared>,
    /// It has been seen not to write since it must ask.
    asks: bool,
    thread: Option<JoinHandle<()>>,
}

/// What a thread says of itself.
#[derive(Default)]
pub struct Shared {
    /// Clients that have gone, ever.
    pub gone: AtomicUsize,
    /// It has ended, and nobody told it to.
    pub is_lost: AtomicBool,
    pub answered: Answered,
    /// How often it has read all its sockets, of the times that it was asked to.
    pub readings: AtomicUsize,
    /// It is not to write pages: set by the volume.
    must_ask: AtomicBool,
    /// It may be writing pages.
    is_writing: AtomicBool,
    /// Where others are to change something first: all threads have the same.
    pub claims: Arc<Claims>,
}

impl Shared {
    /// Lets the thread write pages, unless it must ask. The volume is to be told of every attempt: it may be waiting for its end.
    pub fn write<T>(&self, write: impl FnOnce() -> T) -> Option<T> {
        // Either it is seen here that it must ask, or over there that this is under way: each says its own before it looks at the other's.
        self.is_writing.store(true, Ordering::SeqCst);
        let written = (!self.must_ask.load(Ordering::SeqCst)).then(write);
        // Release: who sees the end sees what was written.
        self.is_writing.store(false, Ordering::Release);
        written
    }
}

impl Crew {
    /// Starts so many threads; nobody is there before [`Clients::admit`]. Each looks for `poll` whether there is more to do before it sleeps. `clock`
    /// is what all of them go by.
    ///
    /// # Errors
    /// The system's: no thread, or no descriptor.
    pub fn new(threads: usize, export: &Export, poll: Duration, clock: Clock) -> io::Result<Crew> {
        assert!((1..=HANDS_MAX).contains(&threads), "{threads} threads");
        let bell = Bell::new()?;
        let departures = Arc::new(Departures::new(Some(bell.clone()))?);
        let claims = Arc::<Claims>::default();
        let start = |number: usize| {
            let (words, mailbox) = mailbox(WORDS_MAX)?;
            let front = Bell::new()?;
            let (near, far) = crossing(front.clone(), bell.clone());
            let state = Arc::new(Shared { claims: Arc::clone(&claims), ..Shared::default() });
            let clients = Front::one_of_several(export.clone(), Arc::clone(&departures));
            let hand = Hand::new(clients, near, front, mailbox, Arc::clone(&state), poll, clock)?;
            let thread = std::thread::Builder::new().name(format!("front {number}")).spawn(move || hand.run())?;
            Ok(Member { far, waiting: Default::default(), words, admitted: 0, state, asks: false, thread: Some(thread) })
        };
        let hands = (0..threads).map(start).collect::<io::Result<Vec<Member>>>()?;
        Ok(Crew {
            hands,
            arriving: VecDeque::new(),
            departures,
            readings: 0,
            reading: None,
            bell,
            said: false,
            turn: 0,
            aside: None,
            aside_reads: None,
            taken: 0,
            claims,
            turns: Turns::default(),
            read_turns: Turns::default(),
            last_tick: Instant::ZERO,
            jobs: Jobs::default(),
            open: HashMap::new(),
            changing: 0,
            is_stale: false,
            has_pages: false,
        })
    }

    /// From now on what is in memory is read there.
    pub fn remember(&mut self, pages: &Arc<Pages>) {
        (self.has_pages, self.is_stale) = (true, true);
        self.gather_all();
        for hand in &self.hands {
            let front = Pages::front(pages).expect("the engine was told of every thread");
            hand.words.insist(Word::Pages(Box::new(front), PageLessor::new(pages).map(Box::new)));
        }
    }

    /// Takes what was asked, as long as there is room.
    fn take(&mut self, room: &mut Room, events: &mut Vec<Event<Run>>) {
        self.read_sockets();
        self.start_jobs(room, events);
        self.take_aside(room, events);
        self.take_aside_reads(room, events);
        let first = self.turn;
        for turn in 0..self.hands.len() {
            let before = (events.len(), self.jobs.count());
            let hand = (first + turn) % self.hands.len();
            self.take_from(hand, room, events);
            if (events.len(), self.jobs.count()) != before {
                self.turn = (hand + 1) % self.hands.len();
            }
        }
        self.turns.settle(self.is_cramped());
        self.read_turns.settle(self.aside_reads.is_some());
        // Those that only now found their place: nothing else would wake us for them.
        self.start_jobs(room, events);
        let lacking = |aside: &Option<(usize, Waiting)>| aside.as_ref().map_or(0, |(_, waiting)| waiting.asked.bytes());
        self.turns.look(room.bytes, self.jobs.lacking(), lacking(&self.aside));
        self.read_turns.look(room.for_reads().unwrap_or(0), 0, lacking(&self.aside_reads));
        self.publish();
    }

    /// Lets all threads read their sockets where somebody waits for that: the first who has arrived, whom the next one waits for; or who comes
    /// behind what lies on closed connections.
    fn read_sockets(&mut self) {
        if self.hands.iter().any(|hand| hand.state.readings.load(Ordering::Acquire) < self.readings) {
            return;
        }
        if let Some(Reading { lets_in, departures }) = self.reading.take() {
            self.gather_all();
            if lets_in {
                self.let_first_in();
            }
            self.departures.finish(departures);
            self.tell_all(|| Word::GoOn);
        }
        let departures = self.departures.wanted();
        let lets_in = !self.arriving.is_empty();
        if lets_in || !self.departures.is_past(departures) {
            self.reading = Some(Reading { lets_in, departures });
            self.readings += 1;
            self.tell_all(|| Word::Read(self.readings));
        }
    }

    /// Each of them takes it within its turn, or has ended.
    fn tell_all(&self, word: impl Fn() -> Word) {
        for hand in &self.hands {
            hand.words.insist(word());
        }
    }

    fn let_first_in(&mut self) {
        let Some(guest) = self.arriving.pop_front() else { return };
        // What he asked for before, on another connection, comes before what he asks for now.
        self.gather_all();
        let least = self.hands.iter_mut().min_by_key(|hand| hand.clients()).expect("there is a thread");
        // One that is not taken is closed.
        least.admitted += usize::from(least.words.send(Word::Guest(guest)));
    }

    /// Takes all that was asked in one ring.
    fn gather(&mut self, hand: usize) {
        while let Ok(asked) = self.hands[hand].far.asked.pop() {
            self.is_stale |= !asked.change().is_empty();
            self.hands[hand].waiting[Queue::of(&asked) as usize].push_back(Waiting { place: self.taken, asked });
            self.taken += 1;
        }
    }

    /// Takes all that was asked until now, and tells the threads.
    fn gather_all(&mut self) {
        (0..self.hands.len()).for_each(|hand| self.gather(hand));
        self.publish();
    }

    /// Tells the threads what is to be changed first.
    fn publish(&mut self) {
        if !self.has_pages || !std::mem::take(&mut self.is_stale) {
            return;
        }
        let aside = self.aside.iter().map(|(_, waiting)| waiting);
        let waiting =
            self.hands.iter().flat_map(|hand| &hand.waiting[Queue::Changes as usize]).chain(aside).map(|waiting| waiting.asked.change());
        let open = (self.changing > 0).then(|| self.open.values().map(|open| open.change));
        self.claims.set(open.into_iter().flatten().chain(waiting).filter(|change| !change.is_empty()).collect());
    }

    /// Does anybody lack the engine's room for a payload?
    fn is_cramped(&self) -> bool {
        self.aside.is_some() || self.jobs.is_cramped()
    }

    /// The one that was set aside, once there is room for it. A job that lacks some comes first, or has to wait.
    fn take_aside(&mut self, room: &mut Room, events: &mut Vec<Event<Run>>) {
        if let Some((hand, waiting)) = self.aside.take_if(|(_, waiting)| waiting.asked.is_orphaned()) {
            self.refuse(hand, &waiting.asked);
        }
        // What lacks the room for what only reads keeps none of the rest.
        let lacks_reads = |(_, waiting): &mut (usize, Waiting)| lacks_reads(&waiting.asked, room);
        if let Some((hand, waiting)) = self.aside.take_if(lacks_reads) {
            self.hands[hand].waiting[Queue::Reads as usize].push_front(waiting);
        }
        let has_turn = self.turns.is_passed() || self.turns.jobs_wait() || !self.jobs.is_cramped();
        let may = |(_, waiting): &(usize, Waiting)| {
            let bytes = waiting.asked.bytes();
            has_turn && room.has_place(waiting.asked.kind()) && bytes <= room.bytes && !self.comes_later(waiting)
        };
        if self.aside.as_ref().is_some_and(may) {
            let (hand, waiting) = self.aside.take().expect("just seen");
            self.pass_on(hand, waiting.asked, room, events);
            self.turn = (hand + 1) % self.hands.len();
        }
    }

    /// The same of the one that lacked room for what only reads.
    fn take_aside_reads(&mut self, room: &mut Room, events: &mut Vec<Event<Run>>) {
        let has_place = room.has_place(Kind::Read);
        let may = |(_, waiting): &mut (usize, Waiting)| has_place && !lacks_reads(&waiting.asked, room);
        let Some((hand, waiting)) = self.aside_reads.take_if(may) else { return };
        if waiting.asked.bytes() <= room.bytes && (!self.is_cramped() || self.turns.is_passed()) {
            self.pass_on(hand, waiting.asked, room, events);
            self.turn = (hand + 1) % self.hands.len();
        } else {
            // It waits like others for what everybody may have.
            self.hands[hand].waiting[Queue::Reads as usize].push_front(waiting);
        }
    }

    /// In the order of asking, but of each queue by itself: what does not fit lets what is behind it wait too. What changes what a job has to itself,
    /// or what was asked before and waits, keeps nobody waiting but those who change the same: a job may wait for the origin. What is only cached never
    /// does: it is waited for among the jobs, and each thread asks for few of them at once.
    fn take_from(&mut self, hand: usize, room: &mut Room, events: &mut Vec<Event<Run>>) {
        self.gather(hand);
        // How many at its head have been passed by.
        let mut passed = [0; QUEUES];
        let mut waits = [false; QUEUES];
        while room.requests > 0 {
            let queues = &self.hands[hand].waiting;
            let first = |queue: usize| queues[queue].get(passed[queue]).filter(|_| !waits[queue]).map(|waiting| (waiting.place, queue));
            let Some((_, queue)) = (0..QUEUES).filter_map(first).min() else { return };
            let verdict = self.judge(&queues[queue][passed[queue]], room);
            match verdict {
                Verdict::LetPass if passed[queue] + 1 < LOOKED_AT_MAX => passed[queue] += 1,
                Verdict::LetPass | Verdict::Wait => waits[queue] = true,
                Verdict::PassOn | Verdict::Refuse | Verdict::Aside | Verdict::AsideReads => {
                    let next = self.hands[hand].waiting[queue].remove(passed[queue]).expect("just seen");
                    match verdict {
                        Verdict::PassOn => self.pass_on(hand, next.asked, room, events),
                        Verdict::Refuse => self.refuse(hand, &next.asked),
                        Verdict::Aside => self.aside = Some((hand, next)),
                        Verdict::AsideReads => self.aside_reads = Some((hand, next)),
                        Verdict::LetPass | Verdict::Wait => unreachable!("seen above"),
                    }
                }
            }
        }
    }

    /// May the next one of its kind go on?
    fn judge(&self, next: &Waiting, room: &Room) -> Verdict {
        let keeps_room = self.is_cramped() && !self.turns.is_passed();
        let keeps_reads = self.aside_reads.is_some() && !self.read_turns.is_passed();
        let (asked, bytes) = (&next.asked, next.asked.bytes());
        if asked.is_orphaned() {
            return Verdict::Refuse;
        }
        if let Asked::Job(_, job) = asked {
            return match job.is_caching() {
                true => Verdict::PassOn,
                false if !room.has_place(Kind::Change) || keeps_room => Verdict::Wait,
                false if !self.jobs.has_place() || self.comes_behind(next) => Verdict::LetPass,
                false => Verdict::PassOn,
            };
        }
        if !room.has_place(asked.kind()) {
            return Verdict::Wait;
        }
        if self.comes_later(next) {
            return Verdict::LetPass;
        }
        if asked.kind() == Kind::Read {
            if room.for_reads().is_none() || (bytes > 0 && keeps_reads) {
                return Verdict::Wait;
            }
            if bytes > room.read_bytes {
                return if self.aside_reads.is_none() { Verdict::AsideReads } else { Verdict::Wait };
            }
        }
        match bytes <= if keeps_room { 0 } else { room.bytes } {
            true => Verdict::PassOn,
            false if !keeps_room && self.aside.is_none() => Verdict::Aside,
            false => Verdict::Wait,
        }
    }

    /// Does a job have that to itself, or does it come behind what waits? (A job would be waited for, once it has its place.)
    fn comes_later(&self, waiting: &Waiting) -> bool {
        let change = waiting.asked.change();
        !change.is_empty() && (self.jobs.spans().iter().any(|span| touch(*span, change)) || self.comes_behind(waiting))
    }

    /// Is part of that to be changed by what was asked before, and waits?
    fn comes_behind(&self, later: &Waiting) -> bool {
        let change = later.asked.change();
        let is_earlier = |waiting: &&Waiting| waiting.place < later.place;
        let touches = |waiting: &Waiting| touch(waiting.asked.change(), change) && !waiting.asked.is_orphaned();
        let aside = self.aside.iter().map(|(_, waiting)| waiting).filter(is_earlier);
        let waiting = self.hands.iter().flat_map(|hand| hand.waiting[Queue::Changes as usize].iter().take_while(is_earlier));
        waiting.chain(aside).any(touches)
    }

    /// Nobody waits for it any more, and nothing of it is done.
    fn refuse(&mut self, hand: usize, asked: &Asked) {
        self.is_stale |= !asked.change().is_empty();
        self.hands[hand].far.answer(Reply { id: asked.id(), result: Err(RequestError::Io) }, asked.bytes(), asked.kind());
    }

    /// It goes to the engine, or to the jobs.
    fn pass_on(&mut self, hand: usize, asked: Asked, room: &mut Room, events: &mut Vec<Event<Run>>) {
        let (id, bytes, kind) = (here(hand, asked.id()), asked.bytes(), asked.kind());
        match asked {
            Asked::Request(request, _) => {
                self.changing += usize::from(!request.change().is_empty());
                self.open.insert(id, Open { change: request.change(), bytes, kind });
                room.take(kind, bytes);
                events.push(Event::Arrived(Request { id, ..request }));
            }
            Asked::Job(_, job) => {
                self.is_stale |= !job.is_caching();
                self.open.insert(id, Open { change: Span::default(), bytes, kind });
                self.jobs.push(id, job);
            }
        }
    }

    fn start_jobs(&mut self, room: &mut Room, events: &mut Vec<Event<Run>>) {
        if self.jobs.is_idle() {
            return;
        }
        if self.jobs.is_changing() {
            for hand in self.hands.iter_mut().filter(|hand| !hand.asks) {
                hand.state.must_ask.store(true, Ordering::SeqCst);
                hand.asks = !hand.state.is_writing.load(Ordering::SeqCst);
            }
            // Who is writing rings when it has written.
            if !self.hands.iter().all(|hand| hand.asks) {
                return;
            }
        }
        let changes = |place: Span| self.open.values().any(|open| touch(open.change, place));
        let keep = match (self.turns.is_passed(), &self.aside) {
            (true, _) => Keep::Nothing,
            (false, None) if self.aside_reads.is_some() && !self.read_turns.is_passed() => Keep::ForAll,
            (false, None) => Keep::ForJobs,
            (false, Some(_)) if self.turns.jobs_wait() => Keep::ForOthers,
            (false, Some(_)) => Keep::ForAll,
        };
        self.jobs.start(changes, keep, room, events);
    }
}

/// Does it only read, and is there too little room for that?
fn lacks_reads(asked: &Asked, room: &Room) -> bool {
    asked.kind() == Kind::Read && (room.read_requests == 0 || asked.bytes() > room.read_bytes)
}

/// Do both change some of the same? (What changes nothing lies somewhere all the same.)
fn touch(one: Span, other: Span) -> bool {
    !one.is_empty() && !other.is_empty() && one.overlaps(other)
}

/// A thread's id of a request, as the engine knows it.
fn here(hand: usize, RequestId(id): RequestId) -> RequestId {
    RequestId(id | (hand as u64) << HAND_SHIFT)
}

impl Clients for Crew {
    fn admit(&mut self, guest: Guest) {
        self.arriving.push_back(guest);
        self.read_sockets();
    }

    fn reply(&mut self, reply: Reply<Run>) {
        let job::Answered::Client(Reply { id, result }) = self.jobs.handle(reply) else { return };
        if !self.jobs.is_changing() {
            for hand in self.hands.iter_mut().filter(|hand| hand.asks) {
                hand.state.must_ask.store(false, Ordering::Release);
                hand.asks = false;
            }
        }
        let Open { change, bytes, kind } = self.open.remove(&id).expect("what is answered was asked");
        self.changing -= usize::from(!change.is_empty());
        self.is_stale |= !change.is_empty();
        let hand = &mut self.hands[(id.0 >> HAND_SHIFT) as usize];
        hand.far.answer(Reply { id: RequestId(id.0 & ((1 << HAND_SHIFT) - 1)), result }, bytes, kind);
    }

    fn connections(&self) -> usize {
        self.arriving.len() + self.hands.iter().map(Member::clients).sum::<usize>()
    }

    fn tally(&self) -> Tally {
        self.hands.iter().map(|hand| hand.state.answered.tally()).fold(Tally::default(), |sum, tally| sum + tally)
    }

    fn rest(&mut self) {
        for hand in &self.hands {
            let (confirm, confirmed) = sync_channel(1);
            // It has ended, or answers within its turn.
            if hand.words.insist(Word::Rest(confirm)) {
                let _ = confirmed.recv();
            }
        }
    }

    fn wake(&mut self) {
        self.tell_all(|| Word::Resume);
    }

    fn shutdown(&mut self) {
        while !self.arriving.is_empty() {
            self.let_first_in();
        }
        self.tell_all(|| Word::Shutdown);
    }
}

impl Member {
    fn clients(&self) -> usize {
        self.admitted - self.state.gone.load(Ordering::Acquire)
    }
}

impl Port for Crew {
    fn interests(&mut self, out: &mut Vec<Interest>) {
        if !std::mem::replace(&mut self.said, true) {
            out.push(Interest { token: 0, fd: self.bell.fd(), readable: true, writable: false });
        }
    }

    fn ready(&mut self, _token: u64, _readable: bool, _writable: bool, room: &mut Room, events: &mut Vec<Event<Run>>) {
        self.bell.silence();
        if self.hands.iter().any(|hand| hand.state.is_lost.load(Ordering::Acquire)) {
            panic!("a front thread has ended; its clients cannot be answered");
        }
        self.take(room, events);
    }

    fn resume(&mut self, room: &mut Room, events: &mut Vec<Event<Run>>) {
        self.take(room, events);
    }

    fn send(&mut self) {
        self.hands.iter_mut().for_each(|hand| hand.far.say());
    }

    fn deadline(&self) -> Option<Instant> {
        (self.is_cramped() || self.aside_reads.is_some()).then(|| self.last_tick + TICK)
    }

    fn tick(&mut self, now: Instant) {
        if now < self.last_tick + TICK {
            return;
        }
        let is_first = now >= self.last_tick + TICK + TICK;
        self.turns.tick(is_first);
        self.read_turns.tick(is_first);
        self.last_tick = now;
    }
}

impl Drop for Crew {
    fn drop(&mut self) {
        self.tell_all(|| Word::End);
        for hand in &mut self.hands {
            // One that has panicked has said so.
            let _ = hand.thread.take().map(JoinHandle::join);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use super::*;
    use crate::front::nbd::job::Job;
    use tidegate_engine::request::{Command, Outcome};

    #[test]
    fn threads_write_pages_while_something_is_cached_and_not_while_part_of_an_atom_changes() {
        let (name, description) = (String::new(), String::new());
        let export = Export { name, description, bytes: 64 << 20, read_only: false, clients: Vec::new(), block_bytes: 4096 };
        let mut crew = Crew::new(1, &export, Duration::ZERO, Clock::start()).expect("a thread");
        let (mut room, mut events) = (Room::whole(9, 64 << 20), Vec::new());
        let writes = |crew: &Crew| crew.hands[0].state.write(|| ()).is_some();
        crew.pass_on(0, Asked::Job(RequestId(1), Job::cache(Span::new(0, 8))), &mut room, &mut events);
        crew.start_jobs(&mut room, &mut events);
        assert!(events.len() == 1 && writes(&crew), "it changes nothing");
        crew.pass_on(0, Asked::Job(RequestId(2), Job::zero(100, 10, false, false, false)), &mut room, &mut events);
        crew.start_jobs(&mut room, &mut events);
        assert!(events.len() == 2 && !writes(&crew));
        crew.reply(Reply { id: RequestId(2), result: Err(RequestError::Io) });
        assert!(writes(&crew), "that has ended; the other one has not");
    }

    #[test]
    fn nobody_is_let_in_before_each_thread_has_read_its_sockets_with_that_of_the_one_before() {
        let (name, description) = (String::new(), String::new());
        let export = Export { name, description, bytes: 64 << 20, read_only: false, clients: Vec::new(), block_bytes: 4096 };
        let mut crew = Crew::new(2, &export, Duration::ZERO, Clock::start()).expect("threads");
        let (let_go, until) = std::sync::mpsc::channel();
        crew.hands[0].words.insist(Word::Halt(until));
        let (_clients, streams): (Vec<_>, Vec<_>) = (0..2).map(|_| UnixStream::pair().expect("a pair")).unzip();
        streams.into_iter().for_each(|stream| crew.admit(Guest::test(stream)));
        let await_reading = |crew: &Crew, hand: usize, number: usize| {
            while crew.hands[hand].state.readings.load(Ordering::Acquire) < number {
                std::thread::yield_now();
            }
        };
        let resume = |crew: &mut Crew| {
            crew.resume(&mut Room::none(), &mut Vec::new());
            (crew.arriving.len(), crew.connections())
        };
        await_reading(&crew, 1, 1);
        assert_eq!(resume(&mut crew), (2, 2), "the other one stands still");
        let_go.send(()).expect("it waits for that");
        await_reading(&crew, 0, 1);
        assert_eq!(resume(&mut crew), (1, 2), "who has come behind him waits for him");
        (0..2).for_each(|hand| await_reading(&crew, hand, 2));
        assert_eq!(resume(&mut crew), (0, 2));
    }

    #[test]
    fn no_thread_writes_pages_before_what_was_asked_first_is_answered() {
        let (name, description) = (String::new(), String::new());
        let export = Export { name, description, bytes: 64 << 20, read_only: false, clients: Vec::new(), block_bytes: 4096 };
        let mut crew = Crew::new(1, &export, Duration::ZERO, Clock::start()).expect("a thread");
        let change = Span::new(8, 8);
        let asked = Asked::Request(Request { id: RequestId(1), span: change, command: Command::Trim { fua: false } }, None);
        crew.hands[0].waiting[Queue::Changes as usize].push_back(Waiting { place: 0, asked });
        crew.has_pages = true;
        crew.is_stale = true;
        let mut events = Vec::new();
        let may_write = |crew: &Crew| !crew.claims.overlaps(Span::new(15, 1));
        assert!(may_write(&crew), "a thread may have written it before it heard");
        crew.resume(&mut Room::none(), &mut events);
        assert!(events.is_empty() && !may_write(&crew), "it waits");
        // The bell may ring before the engine has seen the event.
        let mut room = Room::whole(9, 0);
        crew.resume(&mut room, &mut events);
        crew.ready(0, true, false, &mut room, &mut events);
        assert!(events.len() == 1 && !may_write(&crew) && !crew.claims.overlaps(Span::new(16, 1)));
        crew.reply(Reply { id: RequestId(1), result: Ok(Outcome::Done) });
        crew.resume(&mut room, &mut events);
        assert!(may_write(&crew));
    }
}
