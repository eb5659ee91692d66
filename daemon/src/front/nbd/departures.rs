//! Who has closed one connection to a volume and goes on with another one (the kernel's client does, of several connections) has sent on the first
//! what may be the same, and older. That lies in the first one's socket, and comes before what was sent on the other one since. So who has
//! just read a socket looks whether another one has been closed that was not read to its end; if so, what it has read waits for that.
//!
//! ```text
//! read B ─▶ is another one closed? ─ no ─▶ passed on
//!                    └ yes ─▶ kept, until those were read to their end, and what was in them is passed on
//! ```
//! One thread does that at once. Of several, each may have one of them: the volume's own lets all read theirs ([`super::super::Crew`]).

use std::io;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicUsize, Ordering};

use tidegate_engine::Event;
use tidegate_engine::request::Room;

use super::socket::Stream;
use super::{Client, Front, client};
use crate::back::hangups::Hangups;
use crate::back::mail::Bell;
use crate::back::run::Run;

/// A socket that was closed is read to its end in so many times, unless its client has let it hold more than the system does by itself.
pub const READS_MAX: usize = 1024;

/// The connections of one volume, and how often what came on closed ones was to be done first.
pub struct Departures {
    hangups: Hangups,
    /// How often somebody has waited for it, or has gone; and which of those are past.
    wanted: AtomicUsize,
    done: AtomicUsize,
    /// Whoever sees to it, where that is another thread.
    bell: Option<Bell>,
}

impl Departures {
    /// # Errors
    /// No descriptor is left.
    pub fn new(bell: Option<Bell>) -> io::Result<Departures> {
        let [wanted, done] = [const { AtomicUsize::new(0) }; 2];
        Ok(Departures { hangups: Hangups::new()?, wanted, done, bell })
    }

    /// Does another thread see to it?
    pub fn are_shared(&self) -> bool {
        self.bell.is_some()
    }

    /// # Errors
    /// Out of memory or of watches: it is to leave.
    pub fn enter(&self, token: u64, stream: &Stream) -> io::Result<()> {
        self.hangups.watch(token, stream.fd(), !stream.tells_hangups())
    }

    /// Nothing more is read there, and all that was is passed on, or (not `owes`) answered. It is still open.
    pub fn leave(&self, fd: RawFd, owes: bool) {
        // In this order: who sees that it is gone sees that it was. (One thread has it in order by itself.)
        if owes && self.are_shared() {
            self.want();
        }
        self.hangups.forget(fd);
    }

    /// Something has just been read there: for which of these times does that wait?
    pub fn before(&self, stream: &Stream) -> Option<usize> {
        // What comes on one that is closed by now is among what others wait for.
        if self.hangups.count() > 1 && !self.hangups.found().is_empty() && !stream.is_closed() {
            return Some(self.want());
        }
        let wanted = self.wanted();
        (!self.is_past(wanted) && !stream.is_closed()).then_some(wanted)
    }

    fn want(&self) -> usize {
        let wanted = self.wanted.fetch_add(1, Ordering::SeqCst) + 1;
        self.bell.iter().for_each(Bell::ring);
        wanted
    }

    /// The last of these times.
    pub fn wanted(&self) -> usize {
        self.wanted.load(Ordering::SeqCst)
    }

    pub fn is_past(&self, time: usize) -> bool {
        self.done.load(Ordering::SeqCst) >= time
    }

    /// Up to this time all that was read on closed connections is where it comes before whatever is passed on from now on.
    pub fn finish(&self, time: usize) {
        self.done.store(time, Ordering::SeqCst);
    }

    /// Closed ones that were not read to their end; some, if there are many.
    pub fn found(&self) -> Vec<u64> {
        self.hangups.found()
    }
}

impl Front {
    /// Reads connections that were closed to their end, or until they find no room: then what has been read is ahead of others ([`super::ahead`]),
    /// or is not done any more. Of several threads each does so when it is asked to. `token`: who waits for that.
    pub(super) fn read_closed(&mut self, token: u64, room: &mut Room, events: &mut Vec<Event<Run>>) {
        let Some(departures) = self.departures.clone().filter(|departures| !departures.are_shared()) else { return };
        let wanted = departures.wanted();
        // Each of them departs, but what has grown beyond all measure.
        for _ in 0..self.entries.len() {
            let mut found = departures.found();
            found.retain(|found| *found != token);
            if found.is_empty() {
                break;
            }
            found.into_iter().for_each(|token| self.read_to_its_end(token, room, events));
            self.pass_over_closed();
            self.say_departed();
        }
        departures.finish(wanted);
        // Who has waited for it goes on in the next turn.
        self.retry = true;
    }

    /// What has been read of it, and waited for others then, comes first.
    fn read_to_its_end(&mut self, token: u64, room: &mut Room, events: &mut Vec<Event<Run>>) {
        for _ in 0..READS_MAX {
            let reads = |client: &mut Client| client.connection.interest().0 || client.connection.is_behind();
            if !client(&mut self.entries, token).is_some_and(reads) {
                break;
            }
            self.read(token, false, room, events);
        }
        self.settle(token);
    }

    /// Closed connections that wait keep nobody waiting. Of several threads each ends those of its own: what waits there is ahead of nobody's
    /// on another thread. (Those that wait for others that were closed go on by themselves.)
    pub fn pass_over_closed(&mut self) {
        let ends = self.departures.as_ref().is_some_and(|departures| departures.are_shared());
        self.entries.iter_mut().flat_map(|entry| &mut entry.client).for_each(|client| client.connection.pass_over_if_closed(ends));
        self.settle_all();
    }

    /// Is there a closed connection whose socket is still being read, or of which something is kept behind others'?
    pub fn reads_closed(&self) -> bool {
        let goes_on = |client: &Client| client.connection.interest().0 || client.connection.is_behind();
        let is_being_read = |client: &Client| goes_on(client) && client.connection.stream().is_closed();
        let is_any = self.departures.as_ref().is_some_and(|departures| !departures.found().is_empty());
        is_any && self.entries.iter().flat_map(|entry| &entry.client).any(is_being_read)
    }

    /// Says whose sockets are not read any more, now that what was read there is passed on.
    pub(super) fn say_departed(&mut self) {
        for (fd, owes) in self.departed.drain(..) {
            self.departures.iter().for_each(|departures| departures.leave(fd, owes));
        }
    }
}
