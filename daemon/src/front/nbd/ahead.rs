//! Changes that have come as wholes and wait here, for nothing that is up to their clients: what others ask for later at the same place comes
//! behind them. A client whose connection broke without our knowledge may have come back: what it wrote before is not to be done over what it
//! writes now, when at last there is room for it.

use tidegate_engine::block::Span;

/// In the order in which they began to wait; those of one client beside each other.
#[derive(Debug, Default)]
pub struct Ahead {
    changes: Vec<(u64, Span)>,
}

impl Ahead {
    /// What waits before the changes of this client do, or would.
    pub fn of(&self, client: u64) -> &[(u64, Span)] {
        &self.changes[..self.place(client).unwrap_or(self.changes.len())]
    }

    /// These changes of the client wait now. `is_fresh`: all of them have come since it was last said. True: something waits no more.
    pub fn set(&mut self, client: u64, is_fresh: bool, changes: impl Iterator<Item = Span>) -> bool {
        let before = self.changes.len();
        let place = self.place(client);
        self.changes.retain(|(owner, _)| *owner != client);
        let left = self.changes.len();
        let place = place.filter(|_| !is_fresh).unwrap_or(left);
        self.changes.splice(place..place, changes.map(|change| (client, change)));
        is_fresh && left < before || self.changes.len() < before
    }

    fn place(&self, client: u64) -> Option<usize> {
        self.changes.iter().position(|(owner, _)| *owner == client)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_waits_keeps_his_place_until_he_has_sent_more() {
        let mut ahead = Ahead::default();
        let starts = |changes: &[(u64, Span)]| changes.iter().map(|(_, span)| span.start).collect::<Vec<u64>>();
        let set = |ahead: &mut Ahead, client: u64, is_fresh: bool, places: &[u64]| {
            ahead.set(client, is_fresh, places.iter().map(|start| Span::new(*start, 1)))
        };
        assert!(!set(&mut ahead, 1, true, &[10, 11]) && !set(&mut ahead, 2, true, &[20]));
        assert_eq!([starts(ahead.of(1)), starts(ahead.of(2)), starts(ahead.of(3))], [vec![], vec![10, 11], vec![10, 11, 20]]);
        assert!(!set(&mut ahead, 1, false, &[10, 11]) && set(&mut ahead, 1, false, &[11]), "one of them has been taken");
        assert_eq!([starts(ahead.of(1)), starts(ahead.of(3))], [vec![], vec![11, 20]]);
        assert!(set(&mut ahead, 1, true, &[12, 13]), "that one, too");
        assert_eq!([starts(ahead.of(2)), starts(ahead.of(1))], [vec![], vec![20]]);
        assert!(set(&mut ahead, 1, false, &[]) && set(&mut ahead, 2, false, &[]) && ahead.of(3).is_empty());
    }
}
