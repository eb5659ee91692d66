//! The language of the front: what a client asks and what it is told.

use crate::block::Span;

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

#[derive(Clone, Debug)]
pub enum Command<P> {
    Read,
    /// `data` holds exactly the span. `fua`: durable before the reply.
    Write {
        data: P,
        fua: bool,
    },
    /// The contents may be forgotten: they read as zeros from now on, or (a partial block at an edge) stay.
    Trim {
        fua: bool,
    },
    /// Reads as zeros from now on. `no_hole`: space stays allocated on the origin.
    Zero {
        no_hole: bool,
        fua: bool,
    },
    /// Everything replied to before this arrived is durable before its reply.
    Flush,
    /// What is allocated (NBD `base:allocation`).
    Status,
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
    Data(Vec<P>),
    /// In order, together exactly the span of the status request.
    Status(Vec<Extent>),
}

/// A run of atoms of one allocation status, in the sense of NBD `base:allocation`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    pub atoms: u64,
    pub hole: bool,
    pub zero: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestError {
    /// A device failed, and what it held cannot be had elsewhere.
    Io,
    /// No room for this write, now or later.
    NoSpace,
    /// The daemon is stopping.
    Shutdown,
}

/// What the engine takes now. A front that reads zero stops reading its sockets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Room {
    pub requests: usize,
    pub bytes: u64,
}
