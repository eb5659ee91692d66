//! Changes that have come as wholes and wait here, for nothing that is up to their clients: what others ask for later at the same place comes
//! behind them. A client whose connection broke without our knowledge may have come back: what it wrote before is not to be done over what it
//! writes now, when at last there is room for it.
//!
//! So whoever waits for room with a change waits with everybody who changes the same later, also in the seconds in which others take what there is
//! ([`super::turns`]).

use std::collections::BTreeMap;

use tidegate_engine::block::Span;

#[derive(Debug, Default)]
pub struct Ahead {
    /// Of each client, in the order in which they began to wait.
    clients: BTreeMap<u64, Changes>,
    /// Places that were given, ever.
    given: u64,
}

/// Of one client.
#[derive(Debug)]
struct Changes {
    /// From the first to the end of the last.
    around: Span,
    spans: Vec<Span>,
}

/// What waits before the client with a place does, or would.
#[derive(Clone, Copy, Debug)]
pub struct Before<'a> {
    ahead: &'a Ahead,
    place: u64,
}

impl Ahead {
    /// What waits before those of the client with this place; before one who has none, all.
    pub fn before(&self, place: Option<u64>) -> Before<'_> {
        Before { ahead: self, place: place.unwrap_or(u64::MAX) }
    }

    /// These changes of a client wait now, who had that place. `is_fresh`: all of them have come since it was last said. True: some wait no more.
    pub fn set(&mut self, place: &mut Option<u64>, is_fresh: bool, changes: impl Iterator<Item = Span>) -> bool {
        let before = place.take().inspect(|place| drop(self.clients.remove(place)));
        let spans: Vec<Span> = changes.collect();
        if let (Some(start), Some(end)) = (spans.iter().map(|span| span.start).min(), spans.iter().map(|span| span.end()).max()) {
            let kept = before.filter(|_| !is_fresh);
            self.given += u64::from(kept.is_none());
            let here = kept.unwrap_or(self.given);
            self.clients.insert(here, Changes { around: Span::new(start, end - start), spans });
            *place = Some(here);
        }
        before.is_some()
    }
}

impl Before<'_> {
    /// Is part of that to be changed first?
    pub fn overlaps(self, span: Span) -> bool {
        let touches = |changes: &Changes| changes.around.overlaps(span) && changes.spans.iter().any(|change| change.overlaps(span));
        self.ahead.clients.range(..self.place).any(|(_, changes)| touches(changes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_waits_keeps_his_place_until_he_has_sent_more() {
        let (mut ahead, mut first, mut second) = (Ahead::default(), None, None);
        let seen = |ahead: &Ahead, place| (0..30).filter(|atom| ahead.before(place).overlaps(Span::new(*atom, 1))).collect::<Vec<u64>>();
        let set = |ahead: &mut Ahead, place: &mut Option<u64>, is_fresh: bool, places: &[u64]| {
            ahead.set(place, is_fresh, places.iter().map(|start| Span::new(*start, 1)))
        };
        assert!(!set(&mut ahead, &mut first, true, &[12, 10]) && !set(&mut ahead, &mut second, true, &[20]));
        assert_eq!([seen(&ahead, first), seen(&ahead, second), seen(&ahead, None)], [vec![], vec![10, 12], vec![10, 12, 20]]);
        assert!(set(&mut ahead, &mut first, false, &[12]), "one of them has been taken");
        assert_eq!([seen(&ahead, first), seen(&ahead, None)], [vec![], vec![12, 20]]);
        assert!(set(&mut ahead, &mut first, true, &[13, 14]), "that one, too");
        assert_eq!([seen(&ahead, second), seen(&ahead, first)], [vec![], vec![20]]);
        assert!(set(&mut ahead, &mut first, false, &[]) && set(&mut ahead, &mut second, false, &[]) && seen(&ahead, None).is_empty());
    }
}
