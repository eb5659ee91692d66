//! The language of the front: what a client asks and what it is told.

use crate::block::Span;
use crate::payload::Pieces;

/// Chosen by the front; comes back in the [`Reply`]. Unique among the requests in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId(pub u64);

/// One command of a client. Spans are in atoms of the volume, inside it and not empty (the front checks; FLUSH has an empty span).
#[derive(Clone, Debug)]
pub struct Request<P> {
    pub id: RequestId,
    pub span: Span,
    pub command: Command<P>,
}

impl<P> Request<P> {
    /// Bytes of contents that it holds in memory, or will.
    pub fn payload_bytes(&self) -> u64 {
        match self.command {
            Command::Read | Command::Cache | Command::Write { .. } => self.span.bytes(),
            Command::Trim { .. } | Command::Zero { .. } | Command::Flush | Command::Status { .. } => 0,
        }
    }

    pub fn kind(&self) -> Kind {
        match self.command {
            Command::Read | Command::Cache | Command::Status { .. } => Kind::Read,
            Command::Write { .. } | Command::Trim { .. } | Command::Zero { .. } => Kind::Change,
            Command::Flush => Kind::Flush,
        }
    }

    /// Does it only read? Then it may wait for the origin.
    pub fn reads(&self) -> bool {
        self.kind() == Kind::Read
    }

    /// What it changes; of a request that changes nothing: nothing.
    pub fn change(&self) -> Span {
        match self.command {
            Command::Write { .. } | Command::Trim { .. } | Command::Zero { .. } => self.span,
            Command::Read | Command::Cache | Command::Flush | Command::Status { .. } => Span::new(self.span.start, 0),
        }
    }
}

/// What a request is for those who would have to wait with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// It changes something, and waits for the origin where the cache has no room.
    Change,
    /// It only reads: it may wait for the origin.
    Read,
    /// It waits for no origin that is slow.
    Flush,
}

#[derive(Clone, Debug)]
pub enum Command<P> {
    Read,
    /// What of the span only the origin has is read and kept (the rules of fills apply). The reply comes when it has been read.
    Cache,
    /// `data` holds exactly the span. `fua`: durable before the reply.
    Write {
        data: P,
        fua: bool,
    },
    /// The contents may be forgotten: they read as zeros from now on, or (a partial block at an edge) stay.
    Trim {
        fua: bool,
    },
    /// Reads as zeros from now on. `no_hole`: space stays allocated on the origin. `fast`: rather fails ([`RequestError::NotFast`])
    /// than that it waits for room or writes the zeros as data.
    Zero {
        no_hole: bool,
        fua: bool,
        fast: bool,
    },
    /// Everything replied to before this arrived is durable before its reply.
    Flush,
    /// What is allocated (NBD `base:allocation`), and, if asked, in which tier everything is. `one`: the first extent is enough.
    Status {
        tiers: bool,
        one: bool,
    },
}

/// The answer to one request.
#[derive(Clone, Debug)]
pub struct Reply<P> {
    pub id: RequestId,
    pub result: Result<Outcome<P>, RequestError>,
}

#[derive(Clone, Debug)]
pub enum Outcome<P> {
    Done,
    /// In order, together exactly the span of the read.
    Data(Pieces<P>),
    /// In order, from the beginning of the span of the status request. `tiers` are together exactly that; empty unless they were asked for.
    /// `allocation` may end sooner, but is never empty.
    Status {
        allocation: Vec<Extent>,
        tiers: Vec<Stretch>,
    },
}

/// A run of atoms of one allocation status, in the sense of NBD `base:allocation`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    pub atoms: u64,
    pub hole: bool,
    pub zero: bool,
}

/// A run of atoms in one tier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stretch {
    pub atoms: u64,
    pub tier: Tier,
}

/// Where the newest contents are: what a read would be served from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tier {
    Origin,
    /// On the SSD, and the origin holds the same.
    Clean,
    /// On the SSD, and newer than what the origin holds: data, or the knowledge that it is zeros.
    Dirty,
    /// In memory, until a flush covers it.
    Memory,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestError {
    /// A device failed, and what it held cannot be had elsewhere.
    Io,
    /// No room for this write, now or later.
    NoSpace,
    /// It was to be fast or not at all.
    NotFast,
    /// The daemon is stopping.
    Shutdown,
}

/// What the engine takes now. A front that reads zero stops reading its sockets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Room {
    pub requests: usize,
    pub bytes: u64,
    /// Of those, what is no FLUSH may have as many: the origin may keep all the rest waiting, and a FLUSH is not to wait with it.
    pub other_requests: usize,
    /// Of those, what only reads may have as much: it may be the origin that they wait for, and who writes or flushes is not to wait with them.
    pub read_requests: usize,
    pub read_bytes: u64,
}

/// The largest request that is taken, with the parts of blocks at its edges.
pub const REQUEST_BYTES_MAX: u64 = 33 << 20;
/// What only reads leaves one request of so many to others.
const READS_LEAVE: usize = 8;
/// What is no FLUSH leaves one request of so many to those.
const OTHERS_LEAVE: usize = 64;

impl Room {
    /// Nothing has been taken of it. What only reads leaves room for the largest request to others, as far as there is room for a second one: a read
    /// fits in any case.
    pub const fn whole(requests: usize, bytes: u64) -> Room {
        let beyond = bytes.saturating_sub(REQUEST_BYTES_MAX);
        let left = if beyond < REQUEST_BYTES_MAX { beyond } else { REQUEST_BYTES_MAX };
        let (other_requests, read_requests) = (requests - requests / OTHERS_LEAVE, requests - requests / READS_LEAVE);
        Room { requests, bytes, other_requests, read_requests, read_bytes: bytes - left }
    }

    pub const fn none() -> Room {
        Room::whole(0, 0)
    }

    /// One of so many bytes is taken.
    ///
    /// # Panics
    /// If there is no room for it.
    pub fn take(&mut self, kind: Kind, bytes: u64) {
        self.requests -= 1;
        self.bytes -= bytes;
        if kind != Kind::Flush {
            self.other_requests -= 1;
        }
        if kind == Kind::Read {
            self.read_requests -= 1;
            self.read_bytes -= bytes;
        }
    }

    /// Is there a place for one more, whatever its bytes?
    pub fn has_place(&self, kind: Kind) -> bool {
        let of_kind = match kind {
            Kind::Change => self.other_requests,
            Kind::Read => self.other_requests.min(self.read_requests),
            Kind::Flush => self.requests,
        };
        self.requests.min(of_kind) > 0
    }

    /// Bytes that one more may have which only reads; `None`: there is no place for it.
    pub fn for_reads(&self) -> Option<u64> {
        self.has_place(Kind::Read).then(|| self.read_bytes.min(self.bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_only_reads_leaves_room_to_others_and_always_has_some_itself() {
        let reads = |requests: usize, bytes: u64| {
            let Room { read_requests, read_bytes, .. } = Room::whole(requests, bytes << 20);
            (read_requests, read_bytes >> 20)
        };
        assert_eq!([reads(1_024, 256), reads(8, 66), reads(7, 40), reads(1, 33)], [(896, 223), (7, 33), (7, 33), (1, 33)]);
        assert_eq!(reads(1, 4), (1, 4));
        let mut room = Room::whole(8, 66 << 20);
        (0..7).for_each(|_| room.take(Kind::Read, 33 << 20 >> 3));
        assert_eq!((room.for_reads(), room.requests, room.bytes >= REQUEST_BYTES_MAX), (None, 1, true));
        room.take(Kind::Change, REQUEST_BYTES_MAX);
        assert_eq!(room.requests, 0);
    }

    #[test]
    fn what_is_no_flush_leaves_some_places_to_those_where_there_are_many() {
        let left = [1, 63, 64, 1_024].map(|requests| requests - Room::whole(requests, 0).other_requests);
        assert_eq!(left, [0, 0, 1, 16]);
        let mut room = Room::whole(64, 0);
        room.take(Kind::Flush, 0);
        (0..56).for_each(|_| room.take(Kind::Read, 0));
        assert!(room.for_reads().is_none() && room.has_place(Kind::Change));
        (0..7).for_each(|_| room.take(Kind::Change, 0));
        assert_eq!((room.requests, room.has_place(Kind::Flush)), (0, false), "those are no more than there are in all");
        let mut room = Room::whole(64, 0);
        (0..63).for_each(|_| room.take(Kind::Change, 0));
        assert!(!room.has_place(Kind::Change) && room.for_reads().is_none() && room.has_place(Kind::Flush));
    }
}
