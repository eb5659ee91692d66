//! Gather: what goes to neighbouring slots of the log goes there as one operation. Requests are small, and so is what the cleaner moves to each
//! of its streams; an SSD is quicker with large ones.
//!
//! ```text
//! put → gathering, as long as what comes next goes on where it ends → sent: it is large · its set or its group has ended
//!                                                                            · at the end of a turn, if somebody waits for it
//!                                                                              or nothing else is on its way to the log
//!                                                                              (in a long burst: 2 ms after it was put there;
//!                                                                              a fill: with its group)
//! ```
//! With `dirty_ram` nobody waits for it but a FLUSH, which ends its group: a write is acknowledged when it has its slots and its records, from
//! then on it is pinned and read from memory, and no more is taken in than `dirty_ram` holds, less what of it is lent to clean pages
//! (`dirty_share`). What is acknowledged is as durable as what is in the volatile cache of a disk.
//!
//! One small write after the other, each acknowledged before the next one comes, would go to a quick SSD one by one, and the client wait for what
//! a command costs us. So in a long burst they are held a moment. Who flushes often never meets it, as a burst ends with its group, nor who waits
//! for reads of the SSD: behind a large write they would come later.
//!
//! Behind the reply nobody waits for a fill itself, and until its group is durable it is in memory anyway. One that came alone would cost a command
//! of the SSD, and us as much as the miss itself. So fills wait for each other until they are a large write or their group ends: mostly
//! [`crate::Config::flush_age`] later at most. Who waits for the group waits for them, but not again within that time: then they go as they come.

use crate::block::{ATOM_BYTES, Slot};
use crate::config::Placement;
use crate::op::Class;
use crate::payload::Payload;
use crate::request::Command;
use crate::time::{Duration, Instant};

use super::Engine;
use super::write::DataWrite;

/// Bytes from which an SSD gains little by more: a few pages on each of its dies.
const LARGE: u64 = 256 << 10;

/// What is held of clients' writes goes to an idle SSD after this time; and a pause of that length ends a burst.
const HOLD: Duration = Duration::from_millis(2);

/// What is on its way to the log and has not been sent.
#[derive(Default)]
pub(super) struct Gathering {
    writes: Vec<Gathered>,
    burst: Burst,
    /// When a client last had to wait until a group is durable: for a FLUSH, with FUA, to write past the log.
    awaited: Option<Instant>,
}

/// Which of what is gathered is held, though the SSD has nothing to do.
#[derive(Clone, Copy)]
struct Held {
    clients: bool,
    fills: bool,
}

/// A write that is to be sent.
#[derive(Clone, Copy)]
struct Gathered {
    write: usize,
    class: Class,
    since: Instant,
}

/// Small writes of clients that nobody waits for, since they paused, waited for the SSD or a group ended. It is long when that is `long_burst` times
/// what is held at most: no FLUSH finds more to be written than a fraction of what has gone out since the one before.
#[derive(Default)]
struct Burst {
    blocks: u64,
    last: Instant,
}

impl Burst {
    fn note(&mut self, blocks: u64, now: Instant) {
        let before = if now > self.last + HOLD { 0 } else { self.blocks };
        *self = Burst { blocks: before + blocks, last: now };
    }
}

impl<P: Payload> Engine<P> {
    /// Is this write acknowledged before it is on the SSD?
    pub(super) fn acknowledges_early(&self, number: usize) -> bool {
        let command = &self.requests.get(number).request.command;
        let may_be_lost = matches!(command, Command::Write { fua: false, .. } | Command::Zero { fua: false, .. });
        may_be_lost && self.config.dirty_ram > 0 && self.config.placement == Placement::Log
    }

    /// So many more blocks, and more would be in memory alone than may be. What fronts have not made use of is taken back for them. Where nothing is,
    /// whatever comes is taken, and acknowledged when the SSD has it if it is more than that.
    pub(super) fn lacks_ram(&mut self, blocks: u64) -> bool {
        if self.config.dirty_ram == 0 || blocks == 0 || self.has_ram(blocks) {
            return false;
        }
        if let Some(left) = self.ram_beside_fronts().checked_sub(blocks)
            && let Some(memory) = &mut self.memory
        {
            memory.allow(left as usize);
        }
        self.window.unwritten_atoms() > 0 && !self.has_ram(blocks)
    }

    /// May so many blocks more be in memory alone, beside what fronts write by themselves?
    pub(super) fn has_ram(&self, blocks: u64) -> bool {
        let of_fronts = self.memory.as_ref().map_or(0, |memory| memory.allowed() as u64);
        of_fronts + blocks <= self.ram_beside_fronts()
    }

    /// Blocks that may still be in memory alone of what is not lent of `dirty_ram`. (What is being moved and filled counts: it takes the same
    /// memory and the same time of the SSD.)
    fn ram_beside_fronts(&self) -> u64 {
        self.blocks_in(self.dirty_share.bytes().saturating_sub(self.window.unwritten_atoms() * ATOM_BYTES) / ATOM_BYTES)
    }

    /// Joins a write to the one that it goes on, if one operation takes both.
    pub(super) fn gather(&mut self, write: DataWrite<P>, class: Class) {
        if class == Class::Client && write.requests.is_empty() && u64::from(write.slots()) < self.large_blocks() {
            self.gathering.burst.note(u64::from(write.slots()), self.now);
        }
        let (first, most) = (write.pieces[0].0, self.blocks_in(self.limits[0].op_atoms));
        let goes_on = |gathered: &&Gathered| {
            let before = self.writes.get(gathered.write);
            before.goes_on_at(first, write.group) && u64::from(before.slots() + write.slots()) <= most
        };
        match self.gathering.writes.iter().find(goes_on) {
            Some(&Gathered { write: number, .. }) => {
                let before = self.writes.get_mut(number);
                before.pieces.extend(write.pieces);
                before.requests.extend(write.requests);
            }
            None => {
                let write = self.begin_data(write);
                self.gathering.writes.push(Gathered { write, class, since: self.now });
            }
        }
    }

    /// The end of a turn: what has no reason to wait for more goes to the SSD.
    pub(super) fn pump_gathered(&mut self) {
        if self.gathering.writes.is_empty() {
            return;
        }
        let is_idle = self.writes.len() == self.gathering.writes.len() + self.retries.len();
        let (large, set_slots) = (self.large_blocks(), self.config.geometry.set_slots);
        let held = self.held(large);
        let mut next = 0;
        while next < self.gathering.writes.len() {
            let Gathered { write: number, class, since } = self.gathering.writes[next];
            let write = self.writes.get(number);
            let Slot { slot, .. } = write.pieces[0].0;
            let is_held = match class {
                Class::Client => held.clients && self.now < since + HOLD,
                Class::Fill => held.fills,
                Class::Log | Class::Destage | Class::Clean | Class::Scrub | Class::Discard => false,
            };
            let is_due = is_idle && !is_held || !write.requests.is_empty();
            if is_due || u64::from(write.slots()) >= large || slot + write.slots() == set_slots {
                self.gathering.writes.remove(next);
                self.send_data(number, class);
            } else {
                next += 1;
            }
        }
    }

    /// A write of so many blocks is large.
    fn large_blocks(&self) -> u64 {
        self.blocks_in(LARGE / ATOM_BYTES).min(u64::from(self.config.geometry.set_slots))
    }

    /// Of what is more to be expected soon, of which less than a `large` write is here, and nobody in need of it or of the memory that it takes?
    fn held(&self, large: u64) -> Held {
        let is_burst_long = self.gathering.burst.blocks > u64::from(self.config.long_burst) * large;
        let are_groups_let_be = self.gathering.awaited.is_none_or(|awaited| self.now.since(awaited) >= self.config.flush_age);
        if !(is_burst_long || are_groups_let_be) || !self.intake.is_empty() {
            return Held { clients: false, fills: false };
        }
        let writes = || self.gathering.writes.iter().map(|gathered| self.writes.get(gathered.write));
        let held: u64 = writes().map(|write| u64::from(write.slots())).sum();
        // A FUA waits for all of its group.
        let is_waited_for = writes().any(|write| !write.requests.is_empty());
        let may_wait = held < large && !is_waited_for;
        let (unwritten, room) = (self.window.unwritten_atoms() * ATOM_BYTES, self.dirty_share.bytes());
        // (Without `dirty_ram` nobody's writes are in memory alone: fills take nothing from them. With it, little.)
        let has_room_for_fills = unwritten * 8 <= room || self.config.dirty_ram == 0;
        Held { clients: is_burst_long && may_wait && unwritten * 2 <= room, fills: are_groups_let_be && may_wait && has_room_for_fills }
    }

    /// When the first of what is held goes to the SSD, should nothing come before. (Fills go with their group, for which others look.)
    pub(super) fn gather_deadline(&self) -> Option<Instant> {
        self.gathering.writes.iter().find(|gathered| gathered.class != Class::Fill).map(|gathered| gathered.since + HOLD)
    }

    /// A client waits until a group is durable, and may do so again.
    pub(super) fn note_awaited_group(&mut self) {
        self.gathering.awaited = Some(self.now);
    }

    /// Somebody waits for a read of the SSD.
    pub(super) fn end_burst(&mut self) {
        self.gathering.burst = Burst::default();
    }

    /// A group ends: what belongs to it grows no more.
    pub(super) fn end_gathering(&mut self) {
        self.end_burst();
        for gathered in std::mem::take(&mut self.gathering.writes) {
            self.send_data(gathered.write, gathered.class);
        }
    }

    /// The SSD takes no writes any more: what was to be sent is pinned. Returns the requests that wait for it.
    pub(super) fn forget_gathered(&mut self) -> Vec<usize> {
        let mut requests = Vec::new();
        for gathered in std::mem::take(&mut self.gathering.writes) {
            let write = self.writes.remove(gathered.write);
            self.sets.get_mut(write.pieces[0].0.set).pins -= 1;
            requests.extend(write.requests);
        }
        requests
    }
}
