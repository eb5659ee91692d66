//! Between a front thread and its volume: what it asks goes over in one ring, the answers come back in another. Both are bounded: no more is
//! asked than there is place for answers, so neither side ever waits for the other.

use std::sync::Weak;

use rtrb::{Consumer, Producer, RingBuffer};
use tidegate_engine::block::Span;
use tidegate_engine::request::{Kind, REQUEST_BYTES_MAX, Reply, Request, RequestId, Room};

use super::nbd::job::Job;
use crate::back::mail::Bell;
use crate::back::run::Run;

/// Requests of one front thread in the engine, or on their way to it and back: eight busy connections.
const REQUESTS_MAX: usize = 1024;
/// Bytes of contents in them: one connection's, and beside what only reads as much as the largest request.
const BYTES_MAX: u64 = (64 << 20) + REQUEST_BYTES_MAX;

/// What a front thread cannot answer itself.
pub enum Asked {
    /// With the client whose change it is, as long as it is to be done: he is there, or has said that he goes.
    Request(Request<Run>, Option<Weak<()>>),
    Job(RequestId, Job),
}

impl Asked {
    /// Bytes of contents that it holds in memory, or will, as [`Room`] counts them.
    pub fn bytes(&self) -> u64 {
        match self {
            Asked::Request(request, _) => request.payload_bytes(),
            Asked::Job(_, job) => job.bytes(),
        }
    }

    pub fn kind(&self) -> Kind {
        match self {
            Asked::Request(request, _) => request.kind(),
            Asked::Job(_, job) => job.kind(),
        }
    }

    /// What it changes.
    pub fn change(&self) -> Span {
        match self {
            Asked::Request(request, _) => request.change(),
            Asked::Job(_, job) => job.change(),
        }
    }

    /// Has the client gone whose change it is, and not said so? What he has sent since he came back, or somebody else, may have been done by now, and come before.
    pub fn is_orphaned(&self) -> bool {
        match self {
            Asked::Request(_, client) => client.as_ref().is_some_and(|client| client.strong_count() == 0),
            Asked::Job(_, job) => job.has_lost_client(),
        }
    }

    /// The thread's id of it.
    pub fn id(&self) -> RequestId {
        match self {
            Asked::Request(request, _) => request.id,
            Asked::Job(id, _) => *id,
        }
    }
}

struct Answer {
    reply: Reply<Run>,
    /// Of its request.
    bytes: u64,
    kind: Kind,
}

/// The front thread's end.
pub struct Near {
    asked: Producer<Asked>,
    answers: Consumer<Answer>,
    /// Asked and not yet answered.
    open: usize,
    /// Bytes of contents in them.
    bytes: u64,
    /// The same of what only reads, and how many FLUSHes.
    open_reads: usize,
    read_bytes: u64,
    open_flushes: usize,
    /// Somebody has asked since the volume was told.
    unsaid: bool,
    volume: Bell,
}

/// The volume's end.
pub struct Far {
    pub asked: Consumer<Asked>,
    answers: Producer<Answer>,
    unsaid: bool,
    front: Bell,
}

/// The rings between a front thread, which `front` wakes, and a volume, which `volume` wakes.
pub fn crossing(front: Bell, volume: Bell) -> (Near, Far) {
    let ((to_volume, asked), (to_front, answers)) = (RingBuffer::new(REQUESTS_MAX), RingBuffer::new(REQUESTS_MAX));
    let near = Near { asked: to_volume, answers, open: 0, bytes: 0, open_reads: 0, read_bytes: 0, open_flushes: 0, unsaid: false, volume };
    (near, Far { asked, answers: to_front, unsaid: false, front })
}

impl Near {
    /// What wakes the volume.
    pub fn volume(&self) -> Bell {
        self.volume.clone()
    }

    /// What may still be asked. (The last job may have brought along more than there was room for.)
    pub fn room(&self) -> Room {
        let whole = Room::whole(REQUESTS_MAX, BYTES_MAX);
        Room {
            requests: whole.requests - self.open,
            bytes: whole.bytes.saturating_sub(self.bytes),
            other_requests: whole.other_requests.saturating_sub(self.open - self.open_flushes),
            read_requests: whole.read_requests.saturating_sub(self.open_reads),
            read_bytes: whole.read_bytes.saturating_sub(self.read_bytes),
        }
    }

    /// # Panics
    /// Beyond [`Near::room`].
    pub fn ask(&mut self, asked: Asked) {
        assert!(self.open < REQUESTS_MAX, "no more is asked than may be");
        self.open += 1;
        self.bytes += asked.bytes();
        match asked.kind() {
            Kind::Read => {
                self.open_reads += 1;
                self.read_bytes += asked.bytes();
            }
            Kind::Flush => self.open_flushes += 1,
            Kind::Change => {}
        }
        self.unsaid = true;
        self.asked.push(asked).unwrap_or_else(|_| unreachable!("what is open fits"));
    }

    /// There is something in memory that the volume has to take over: what was written, or what was noted of reads.
    pub fn tell(&mut self) {
        self.unsaid = true;
    }

    /// Wakes the volume, once for everything that was asked.
    pub fn say(&mut self) {
        if std::mem::take(&mut self.unsaid) {
            self.volume.ring();
        }
    }

    /// The next answer.
    pub fn answer(&mut self) -> Option<Reply<Run>> {
        let Answer { reply, bytes, kind } = self.answers.pop().ok()?;
        self.open -= 1;
        self.bytes -= bytes;
        match kind {
            Kind::Read => {
                self.open_reads -= 1;
                self.read_bytes -= bytes;
            }
            Kind::Flush => self.open_flushes -= 1,
            Kind::Change => {}
        }
        Some(reply)
    }
}

impl Far {
    /// `bytes` and `kind`: [`Asked::bytes`] and [`Asked::kind`] of what is answered.
    pub fn answer(&mut self, reply: Reply<Run>, bytes: u64, kind: Kind) {
        self.unsaid = true;
        self.answers.push(Answer { reply, bytes, kind }).unwrap_or_else(|_| unreachable!("there is a place for every answer"));
    }

    /// Wakes the front thread, once for all answers.
    pub fn say(&mut self) {
        if std::mem::take(&mut self.unsaid) {
            self.front.ring();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_engine::request::{Command, Outcome};

    #[test]
    fn what_only_reads_leaves_room_to_the_largest_write_and_gives_back_what_it_took() {
        let (front, volume) = (Bell::new().expect("a descriptor"), Bell::new().expect("a descriptor"));
        let (mut near, mut far) = crossing(front, volume);
        let read = |id| Request { id: RequestId(id), span: Span::new(0, 32_768), command: Command::Read };
        (0..4).for_each(|id| near.ask(Asked::Request(read(id), None)));
        assert_eq!((near.room().for_reads(), near.room().bytes), (Some(0), REQUEST_BYTES_MAX));
        let status = Command::Status { tiers: false, one: false };
        (4..896).for_each(|id| near.ask(Asked::Request(Request { command: status.clone(), ..read(id) }, None)));
        assert_eq!((near.room().for_reads(), near.room().requests), (None, 128));
        near.ask(Asked::Request(Request { command: Command::Flush, ..read(896) }, None));
        while let Ok(asked) = far.asked.pop() {
            far.answer(Reply { id: asked.id(), result: Ok(Outcome::Done) }, asked.bytes(), asked.kind());
        }
        while near.answer().is_some() {}
        assert_eq!(near.room(), Room::whole(REQUESTS_MAX, BYTES_MAX));
    }
}
