//! The order of the sets in use: from the oldest to the newest one, as each was written last, or spared; a placed one, as it was used last.

use super::Sets;

/// No set.
const NIL: u32 = u32::MAX;

/// The ends of the order.
pub(super) struct Order {
    newest: u32,
    oldest: u32,
}

/// The neighbours of a set in it.
pub(super) struct Link {
    newer: u32,
    older: u32,
}

impl Order {
    pub const EMPTY: Order = Order { newest: NIL, oldest: NIL };
}

impl Link {
    /// Of a set that is not in the order, or alone in it.
    pub const NONE: Link = Link { newer: NIL, older: NIL };
}

impl Sets {
    /// Makes the set the newest one.
    pub fn touch(&mut self, number: u32) {
        if self.order.newest == number {
            return;
        }
        self.unlink(number);
        let newest = self.order.newest;
        self.get_mut(number).link = Link { newer: NIL, older: newest };
        match newest {
            NIL => self.order.oldest = number,
            newest => self.get_mut(newest).link.newer = number,
        }
        self.order.newest = number;
    }

    pub(super) fn unlink(&mut self, number: u32) {
        let Link { newer, older } = self.get(number).link;
        if newer == NIL && older == NIL && self.order.newest != number {
            return;
        }
        match newer {
            NIL => self.order.newest = older,
            newer => self.get_mut(newer).link.older = older,
        }
        match older {
            NIL => self.order.oldest = newer,
            older => self.get_mut(older).link.newer = newer,
        }
        self.get_mut(number).link = Link::NONE;
    }

    /// From the oldest to the newest one.
    pub fn by_age(&self) -> impl Iterator<Item = u32> + '_ {
        let mut at = self.order.oldest;
        std::iter::from_fn(move || {
            let number = at;
            (number != NIL).then(|| {
                at = self.get(number).link.newer;
                number
            })
        })
    }
}
