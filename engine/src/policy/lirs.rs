//! LIRS: by the distance between the last two times that a key was asked for, not by the time of the last one (Jiang and Zhang, SIGMETRICS 2002).
//! Keys of short distances keep nearly all places; the others pass through the few that are left, and are kept for good only if they come back
//! while they are still younger than the oldest of the first kind.

use super::Policy;
use super::lists::Lists;

/// Of a hundred places, those of keys that pass through.
const PASSING_PERCENT: usize = 1;
/// Keys that have gone and are remembered, for each place.
const GHOSTS: usize = 4;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    /// Of a short distance (LIR): stays.
    #[default]
    Staying,
    /// Kept, in the queue as well.
    Passing,
    /// Has gone, and is among the ghosts.
    Gone,
}

pub struct Lirs {
    /// Keys by the time of their last access, down to the oldest that stays.
    stack: Lists<1, State>,
    /// Keys that pass through, whether they are in the stack or not.
    queue: Lists<1>,
    /// Keys of the stack that have gone, in the order in which they went.
    ghosts: Lists<1>,
    staying: usize,
    staying_max: usize,
    ghosts_max: usize,
}

impl Lirs {
    pub fn new(capacity: usize) -> Lirs {
        let passing = (capacity * PASSING_PERCENT / 100).max(1);
        let (stack, queue, ghosts) = (Lists::new((1 + GHOSTS) * capacity), Lists::new(passing), Lists::new(GHOSTS * capacity));
        Lirs { stack, queue, ghosts, staying: 0, staying_max: capacity.saturating_sub(passing), ghosts_max: GHOSTS * capacity }
    }

    /// It is the newest of the stack, in this state.
    fn stack_up(&mut self, key: u64, state: State) {
        match self.stack.find(key) {
            Some(at) => {
                self.stack.renew(0, at);
                *self.stack.get_mut(at) = state;
            }
            None => self.stack.add(0, key, state),
        }
        if let Some(at) = self.ghosts.find(key) {
            self.ghosts.remove(at);
        }
    }

    /// A key comes back, and was not away longer than the oldest that stays.
    fn promote(&mut self, key: u64) {
        self.stack_up(key, State::Staying);
        self.staying += 1;
        while self.staying > self.staying_max {
            self.demote();
        }
        self.prune();
    }

    /// The oldest that stays passes through from now on.
    fn demote(&mut self) {
        self.prune();
        let key = self.stack.remove_oldest(0).expect("the oldest of the stack stays");
        self.staying -= 1;
        self.queue.add(0, key, ());
        self.prune();
    }

    /// The oldest of the stack is one that stays.
    fn prune(&mut self) {
        while let Some(at) = self.stack.oldest(0)
            && *self.stack.get(at) != State::Staying
        {
            let key = self.stack.remove(at);
            if let Some(at) = self.ghosts.find(key) {
                self.ghosts.remove(at);
            }
        }
    }
}

impl Policy for Lirs {
    fn contains(&self, key: u64) -> bool {
        self.queue.find(key).is_some() || self.stack.find(key).is_some() && self.ghosts.find(key).is_none()
    }
    fn touch(&mut self, key: u64) {
        let in_stack = self.stack.find(key);
        match (self.queue.find(key), in_stack) {
            (Some(at), Some(_)) => {
                self.queue.remove(at);
                self.promote(key);
            }
            (Some(at), None) => {
                self.queue.renew(0, at);
                self.stack_up(key, State::Passing);
                self.prune();
            }
            (None, Some(at)) if *self.stack.get(at) == State::Staying => {
                self.stack.renew(0, at);
                self.prune();
            }
            (None, _) => {}
        }
    }
    fn evict(&mut self, _comes: Option<u64>) -> Option<u64> {
        if self.queue.len(0) == 0 && self.staying > 0 {
            self.demote();
        }
        let gone = self.queue.remove_oldest(0)?;
        if let Some(at) = self.stack.find(gone) {
            *self.stack.get_mut(at) = State::Gone;
            self.ghosts.add(0, gone, ());
            if self.ghosts.len(0) > self.ghosts_max
                && let Some(oldest) = self.ghosts.remove_oldest(0)
                && let Some(at) = self.stack.find(oldest)
            {
                self.stack.remove(at);
            }
        }
        Some(gone)
    }
    fn insert(&mut self, key: u64) {
        if self.staying < self.staying_max {
            self.stack_up(key, State::Staying);
            self.staying += 1;
        } else if self.stack.find(key).is_some() && self.staying_max > 0 {
            self.promote(key);
        } else {
            self.queue.add(0, key, ());
            self.stack_up(key, State::Passing);
            self.prune();
        }
    }
    fn remove(&mut self, key: u64) {
        if let Some(at) = self.queue.find(key) {
            self.queue.remove(at);
        }
        if let Some(at) = self.ghosts.find(key) {
            self.ghosts.remove(at);
        }
        if let Some(at) = self.stack.find(key) {
            self.staying -= usize::from(*self.stack.get(at) == State::Staying);
            self.stack.remove(at);
            self.prune();
        }
    }
    fn len(&self) -> usize {
        self.queue.len(0) + self.staying
    }
    fn bytes(&self) -> u64 {
        self.stack.bytes() + self.queue.bytes() + self.ghosts.bytes()
    }
}
