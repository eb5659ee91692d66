//! A front thread: some of a volume's clients, and one wait for all of them. What they read is answered here if memory has it, and what
//! they write, if it is small and the engine allows it, becomes a page at once; everything else goes over to the volume, and its answers come
//! back.
//!
//! ```text
//!   wait ─▶ ready sockets, answers, words, timeout ─▶ what memory does is answered, the rest asked ─▶ send ─▶ tell the volume ─▶ wait
//! ```

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::SyncSender;

use tidegate_engine::Event;
use tidegate_engine::block::Span;
use tidegate_engine::payload::{Lessor, Pieces};
use tidegate_engine::request::{Command, Outcome, Reply, Request};
use tidegate_engine::time::{Duration, Instant};
use tidegate_pages::{Block, Front as Reader, Page, Write, expect_next};

use super::crew::Shared;
use super::crossing::{Asked, Near};
use super::nbd::departures::READS_MAX;
use super::nbd::{Front, Guest};
use crate::back::lessor::PageLessor;
use crate::back::mail::{Bell, Mailbox};
use crate::back::poll::{Poll, READY_MAX, Ready};
use crate::back::run::Run;
use crate::back::vigil::Vigil;
use crate::port::{Interest, Port};
use crate::volume::Clock;

/// What a volume has to say to a front thread.
pub enum Word {
    /// The memory tier, and who sends its pages as they are, if anybody.
    Pages(Box<Reader>, Option<Box<PageLessor>>),
    Guest(Guest),
    /// When it has read all that its clients' sockets hold now, it says this number.
    Read(usize),
    /// What was read of closed connections is where it comes first: who has waited for that goes on.
    GoOn,
    /// From now on nothing is written here; what was, is in memory for the engine to find. To be confirmed.
    Rest(SyncSender<()>),
    /// That is over.
    Resume,
    /// Nothing new is taken; what was admitted is answered.
    Shutdown,
    /// Everything is closed.
    End,
    /// It stands still until somebody lets it go on.
    #[cfg(test)]
    Halt(std::sync::mpsc::Receiver<()>),
}

/// A longer write is rather a stream than something that is read again soon.
const WRITE_BYTES: u64 = 64 << 10;
/// A Unix socket is read in so many turns: it holds 208 KiB, where neither its client nor the system has set another size, and a turn takes 96.
const TURNS_TO_READ: usize = 5;
/// A thread that has had nothing to do for so long gives back what it has of memory.
const REST_AFTER: Duration = Duration::from_millis(10);

const SOCKETS: u32 = 0;
const ANSWERS: u32 = 1;
const WORDS: u32 = 2;

pub struct Hand {
    front: Front,
    near: Near,
    bell: Bell,
    words: Mailbox<Word>,
    pages: Option<Box<Reader>>,
    lessor: Option<Box<PageLessor>>,
    /// It may write pages itself.
    writes: bool,
    /// It has pages at hand, or permission to make some dirty.
    has_some: bool,
    poll: Poll,
    vigil: Vigil,
    clock: Clock,
    state: Arc<Shared>,
    /// For the volume, when this ends.
    farewell: Farewell,
    /// Clients had something to go on with, and may have more.
    goes_on: bool,
    /// Clients that have come, ever.
    came: usize,
    /// Turns that it has had.
    turns: usize,
    /// What it is to say when it has had so many.
    promised: VecDeque<(usize, usize)>,
    /// Kept from turn to turn for their memory only.
    events: Vec<Event<Run>>,
    interests: Vec<Interest>,
    ready: Vec<Ready>,
}

/// Says so where a thread ends that was not told to.
struct Farewell {
    state: Arc<Shared>,
    volume: Bell,
}

impl Drop for Farewell {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.state.is_lost.store(true, Ordering::Release);
            self.volume.ring();
        }
    }
}

impl Hand {
    /// `front`: [`Front::one_of_several`].
    ///
    /// # Errors
    /// No descriptor is left.
    pub fn new(
        front: Front,
        near: Near,
        bell: Bell,
        words: Mailbox<Word>,
        state: Arc<Shared>,
        most: Duration,
        clock: Clock,
    ) -> io::Result<Hand> {
        let mut poll = Poll::new()?;
        poll.watch(ANSWERS, 0, bell.fd(), true, false)?;
        poll.watch(WORDS, 0, words.fd(), true, false)?;
        Ok(Hand {
            front,
            farewell: Farewell { state: Arc::clone(&state), volume: near.volume() },
            near,
            bell,
            words,
            pages: None,
            lessor: None,
            writes: true,
            has_some: false,
            poll,
            vigil: Vigil::new(most),
            clock,
            state,
            goes_on: false,
            came: 0,
            turns: 0,
            promised: VecDeque::new(),
            events: Vec::new(),
            interests: Vec::new(),
            ready: Vec::new(),
        })
    }

    /// Until [`Word::End`].
    pub fn run(mut self) {
        loop {
            self.go_on();
            self.front.send();
            self.lessor.iter_mut().for_each(|lessor| lessor.end());
            self.speak();
            self.near.say();
            self.sleep();
            if !self.dispatch() {
                return;
            }
        }
    }

    /// Gives clients their answers, and goes on with what waited for room.
    fn go_on(&mut self) {
        while let Some(reply) = self.near.answer() {
            self.front.reply(reply);
        }
        let mut room = self.near.room();
        self.front.resume(&mut room, &mut self.events);
        // What is answered here makes room at once, but others have their turn before that is used.
        self.goes_on = !self.events.is_empty();
        // Jobs alone are no events.
        self.pass_on(self.clock.now());
    }

    /// Answers what memory can and asks for the rest, in any order: they are all under way at once.
    fn pass_on(&mut self, now: Instant) {
        let has_memory = self.pages.is_some();
        let (mut writes, mut reads) = (Vec::new(), Vec::new());
        for event in self.events.drain(..) {
            let Event::Arrived(request) = event else { unreachable!("a front only says who has arrived") };
            match request.command {
                Command::Read if has_memory => reads.push(request),
                Command::Write { fua: false, .. }
                    if has_memory && self.writes && request.span.bytes() <= WRITE_BYTES && !self.state.claims.overlaps(request.span) =>
                {
                    writes.push(request)
                }
                _ => ask(&mut self.near, &mut self.front, request),
            }
        }
        self.write(writes);
        self.read(reads, now);
        for (id, job) in self.front.take_jobs() {
            self.near.ask(Asked::Job(id, job));
        }
    }

    /// Makes what clients write pages of memory; asks for what finds no room there.
    fn write(&mut self, requests: Vec<Request<Run>>) {
        let Some(pages) = self.pages.as_mut().filter(|_| !requests.is_empty()) else { return };
        self.has_some = true;
        let written = self.state.write(|| to_memory(pages, &requests)).unwrap_or_else(|| vec![false; requests.len()]);
        for (request, is_written) in requests.into_iter().zip(written) {
            if is_written {
                self.state.answered.write();
                self.near.tell();
                self.front.reply(Reply { id: request.id, result: Ok(Outcome::Done) });
            } else {
                ask(&mut self.near, &mut self.front, request);
            }
        }
    }

    /// Answers reads of what is in memory, and asks for the others.
    fn read(&mut self, requests: Vec<Request<Run>>, now: Instant) {
        let Some(pages) = self.pages.as_mut().filter(|_| !requests.is_empty()) else { return };
        pages.set_time(now.0);
        let contents = from_memory(pages, self.lessor.as_deref_mut(), &requests);
        if pages.has_much_to_tell() {
            self.near.tell();
        }
        for (request, contents) in requests.into_iter().zip(contents) {
            if let Some(contents) = contents {
                self.state.answered.read(request.span.atoms);
                self.front.reply(Reply { id: request.id, result: Ok(Outcome::Data(contents)) });
            } else {
                ask(&mut self.near, &mut self.front, request);
            }
        }
    }

    /// Learns which descriptors to watch, and says how many clients have gone.
    fn speak(&mut self) {
        self.front.interests(&mut self.interests);
        for Interest { token, fd, readable, writable } in self.interests.drain(..) {
            if self.poll.watch(SOCKETS, token, fd, readable, writable).is_err() {
                self.front.unwatched(token);
            }
        }
        let gone = self.came - self.front.connections();
        if self.state.gone.swap(gone, Ordering::AcqRel) != gone {
            self.farewell.volume.ring();
        }
    }

    fn sleep(&mut self) {
        let now = self.clock.now();
        let rest = self.has_some.then(|| now + REST_AFTER);
        let (poll, ready) = (&mut self.poll, &mut self.ready);
        let turn = (self.goes_on || !self.promised.is_empty()).then_some(now);
        let deadline = self.front.deadline().into_iter().chain(rest).chain(turn).min();
        let limit = deadline.map(|deadline| std::time::Duration::from_nanos(deadline.since(now).0));
        let has_happened = || {
            poll.wait(now, Some(now), ready).expect("the kernel has taken this epoll before");
            !ready.is_empty()
        };
        if !self.vigil.look(limit, has_happened) {
            self.vigil.sleep(|| poll.wait(now, deadline, ready)).expect("the kernel has taken this epoll before");
        }
        if self.has_some && self.ready.is_empty() && !self.goes_on {
            self.rest();
        }
    }

    /// Others can have what it has at hand.
    fn rest(&mut self) {
        self.has_some = false;
        self.pages.iter_mut().for_each(|pages| pages.rest());
    }

    /// What has happened. False: it is over.
    fn dispatch(&mut self) -> bool {
        let mut room = self.near.room();
        let mut all = std::mem::take(&mut self.ready);
        for Ready { port, token, readable, writable } in all.drain(..) {
            match port {
                SOCKETS => self.front.ready(token, readable, writable, &mut room, &mut self.events),
                ANSWERS => self.bell.silence(),
                _ => {
                    for word in self.words.take().collect::<Vec<Word>>() {
                        match word {
                            Word::Pages(pages, lessor) => (self.pages, self.lessor) = (Some(pages), lessor),
                            Word::Guest(guest) => {
                                self.front.admit(guest);
                                self.came += 1;
                            }
                            Word::Read(number) => {
                                // The kernel tells of so many descriptors at once, of all in turn; those of the bells are among them. And what it has
                                // told for this turn may be older than the word.
                                let waits = (self.front.connections() + 2).div_ceil(READY_MAX);
                                self.promised.push_back((number, self.turns + 1 + waits * TURNS_TO_READ));
                            }
                            Word::GoOn => {}
                            #[cfg(test)]
                            Word::Halt(until) => drop(until.recv()),
                            Word::Rest(confirmed) => {
                                self.writes = false;
                                self.rest();
                                // Who does not wait any more needs no answer.
                                let _ = confirmed.try_send(());
                            }
                            Word::Resume => self.writes = true,
                            Word::Shutdown => self.front.shutdown(),
                            Word::End => return false,
                        }
                    }
                }
            }
        }
        self.ready = all;
        self.vigil.heard(self.events.len());
        let now = self.clock.now();
        self.pass_on(now);
        self.keep_promises();
        if self.front.deadline().is_some_and(|deadline| deadline <= now) {
            self.front.tick(now);
        }
        true
    }

    /// A turn has ended: says what was promised until then.
    fn keep_promises(&mut self) {
        self.turns += 1;
        let Some(&(_, turns)) = self.promised.front().filter(|&&(_, turns)| turns <= self.turns) else { return };
        // A client may have let its socket hold more.
        if self.turns < turns + READS_MAX && self.front.reads_closed() {
            return;
        }
        self.front.pass_over_closed();
        while let Some(&(number, turns)) = self.promised.front()
            && turns <= self.turns
        {
            // Release: who sees the number finds in the ring what was asked before.
            self.state.readings.store(number, Ordering::Release);
            self.farewell.volume.ring();
            self.promised.pop_front();
        }
    }
}

/// The volume is to do it.
fn ask(near: &mut Near, front: &mut Front, request: Request<Run>) {
    let client = (!request.change().is_empty()).then(|| front.will(request.id));
    near.ask(Asked::Request(request, client));
}

/// Makes pages of a queue of writes at once. Each is all written, or nothing of it.
fn to_memory(pages: &mut Reader, requests: &[Request<Run>]) -> Vec<bool> {
    fn write(request: &Request<Run>) -> Write<'_> {
        let Command::Write { data, .. } = &request.command else { unreachable!("only writes come here") };
        Write::new(request.span.start, data.as_slice())
    }
    let mut writes: Vec<Write> = requests.iter().map(write).collect();
    pages.write_all(&mut writes);
    writes.iter().map(|write| write.result.is_ok()).collect()
}

/// The contents of what is all in memory, of a queue of reads at once.
fn from_memory(pages: &mut Reader, lessor: Option<&mut PageLessor>, requests: &[Request<Run>]) -> Vec<Option<Pieces<Run>>> {
    let block_atoms = pages.pages().config().page_atoms as u64;
    let spans: Vec<Span> = requests.iter().map(|request| request.span).collect();
    let runs = spans.iter().map(|span| span.start / block_atoms..span.end().div_ceil(block_atoms));
    let copy = |number: usize, pages: &[Page]| {
        let span = spans[number];
        [Run::copied(pages.iter().map(|page| page.bytes()), span.start % block_atoms, span.atoms)].into()
    };
    let leased = lessor.and_then(|lessor| lessor.lease(&spans));
    let contents = leased.unwrap_or_else(|| pages.pin().read_runs(runs.clone(), expect_next, copy));
    let blocks = runs.clone().flatten().count();
    let hits: Vec<Block> = runs.zip(&contents).filter(|(_, contents)| contents.is_some()).flat_map(|(run, _)| run).map(Block).collect();
    pages.note(&hits, (blocks - hits.len()) as u64);
    contents
}
