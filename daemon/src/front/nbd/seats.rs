//! How many clients there may be at once, all together and of one machine, whichever thread serves them.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard};

/// The places of all clients; its clones count together.
#[derive(Clone, Debug)]
pub struct Seats {
    taken: Arc<Mutex<Taken>>,
    most: usize,
    most_of_peer: usize,
}

#[derive(Debug, Default)]
struct Taken {
    all: usize,
    /// By the machine they come from. Behind a Unix socket there is only its owner.
    peers: BTreeMap<IpAddr, usize>,
}

impl Taken {
    fn of(&self, peer: Option<IpAddr>) -> usize {
        peer.and_then(|peer| self.peers.get(&peer).copied()).unwrap_or(0)
    }
}

fn lock(taken: &Mutex<Taken>) -> MutexGuard<'_, Taken> {
    taken.lock().expect("nothing panics while it counts")
}

/// One client's place, until it is dropped.
#[derive(Debug)]
pub struct Seat {
    taken: Arc<Mutex<Taken>>,
    peer: Option<IpAddr>,
}

impl Seats {
    /// `most` clients, `most_of_peer` of them from one IP address.
    pub fn new(most: usize, most_of_peer: usize) -> Seats {
        Seats { taken: Arc::default(), most, most_of_peer }
    }

    pub fn take(&self, peer: Option<IpAddr>) -> Option<Seat> {
        let mut taken = lock(&self.taken);
        let of_peer = taken.of(peer);
        if taken.all >= self.most || of_peer >= self.most_of_peer {
            return None;
        }
        taken.all += 1;
        if let Some(peer) = peer {
            taken.peers.insert(peer, of_peer + 1);
        }
        Some(Seat { taken: Arc::clone(&self.taken), peer })
    }

    /// Has everybody together as many as there are?
    pub fn are_taken(&self) -> bool {
        lock(&self.taken).all >= self.most
    }

    /// Has this machine alone as many as one may have?
    pub fn are_taken_by(&self, peer: Option<IpAddr>) -> bool {
        lock(&self.taken).of(peer) >= self.most_of_peer
    }

    /// Clients there are.
    pub fn taken(&self) -> usize {
        lock(&self.taken).all
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let mut taken = lock(&self.taken);
        taken.all -= 1;
        if let Some(peer) = self.peer {
            let left = taken.peers.get(&peer).expect("it was counted") - 1;
            if left == 0 {
                taken.peers.remove(&peer);
            } else {
                taken.peers.insert(peer, left);
            }
        }
    }
}
