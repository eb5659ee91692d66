//! What one client has asked of the engine and has no answer to.

use super::transmission::Pending;

/// Requests of one connection from their arrival until their reply is sent.
pub const REQUESTS_MAX: usize = 128;

const _: () = assert!(REQUESTS_MAX <= 256, "their numbers are the low eight bits of their ids");

/// The requests in the engine, by the low bits of their ids.
#[derive(Debug, Default)]
pub struct Requests {
    pending: Vec<Option<Pending>>,
    free: Vec<u8>,
}

impl Requests {
    pub fn count(&self) -> usize {
        self.pending.len() - self.free.len()
    }

    pub fn iter(&self) -> impl Iterator<Item = (u8, &Pending)> {
        self.pending.iter().enumerate().filter_map(|(number, pending)| Some((number as u8, pending.as_ref()?)))
    }

    pub fn insert(&mut self, pending: Pending) -> u8 {
        let Some(request) = self.free.pop() else {
            assert!(self.pending.len() < REQUESTS_MAX, "the front admits no more than {REQUESTS_MAX} requests of a connection");
            self.pending.push(Some(pending));
            return (self.pending.len() - 1) as u8;
        };
        self.pending[usize::from(request)] = Some(pending);
        request
    }

    /// # Panics
    /// If the request is not there: the engine answered it twice.
    pub fn remove(&mut self, request: u8) -> Pending {
        self.free.push(request);
        self.pending[usize::from(request)].take().expect("a request is answered once")
    }
}
