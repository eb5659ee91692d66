//! What is told about the volume rather than of it: which parts are zeros or holes, and in which tier the newest contents are.

use super::{Broken, Oracle, Pending, Verdict};
use crate::front::prefix::Moment;
use tidegate_engine::block::Span;
use tidegate_engine::request::{Extent, RequestId, Stretch, Tier};

impl Oracle {
    /// What is told to be zeros was, at some moment since the question; holes are zeros; the answer covers what was asked for.
    pub(super) fn status_reply(&self, span: Span, arrived: Moment, extents: &[Extent]) -> Verdict {
        let mut start = span.start;
        for extent in extents {
            let end = start + extent.atoms;
            let false_zero = (start..end).find(|&atom| extent.zero && !self.may_hold(atom, 0, arrived));
            if let Some(atom) = false_zero {
                return Err(Broken(format!("status says that atom {atom} is zero; {}", self.story(atom))));
            }
            if extent.hole && !extent.zero {
                return Err(Broken(format!("status says that atoms from {start} on are a hole, and not zeros")));
            }
            start = end;
        }
        if start == span.end() { Ok(()) } else { Err(Broken(format!("status of {span:?} ends at {start}"))) }
    }

    /// The answer to this question tells tiers: what it says is on the origin too must be what the origin `holds` now.
    pub fn check_tiers(&self, id: RequestId, tiers: &[Stretch], holds: impl Fn(u64) -> u64) -> Verdict {
        let Some(&Pending::Status { span, arrived, tiers: asked }) = self.pending.get(&id) else { return Ok(()) };
        let mut start = span.start;
        for stretch in tiers {
            let here = start..start + stretch.atoms;
            let is_false = |&atom: &u64| !self.may_hold(atom, holds(atom), arrived) && !self.is_hurt(atom, arrived);
            if matches!(stretch.tier, Tier::Origin | Tier::Clean)
                && let Some(atom) = here.clone().find(is_false)
            {
                let (tier, held) = (stretch.tier, super::show(holds(atom)));
                return Err(Broken(format!("the tier of atom {atom} is {tier:?}, and the origin holds {held}; {}", self.story(atom))));
            }
            start = here.end;
        }
        let end = if asked { span.end() } else { span.start };
        if start == end { Ok(()) } else { Err(Broken(format!("tiers of {span:?} end at {start}"))) }
    }
}
