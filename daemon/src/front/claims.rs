//! What has been asked of a volume and is to be changed first, for its front threads: none of them writes pages there. The crew says it, and they look.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{PoisonError, RwLock};

use tidegate_engine::block::{ATOM_BYTES, Span};

pub struct Claims {
    /// Of regions of the volume, by their number modulo the number of bits, those in which something is: mostly that is all that has to be looked at.
    regions: [AtomicU64; REGIONS / 64],
    changes: RwLock<Vec<Span>>,
}

/// 4,096 of 1 MiB each.
const REGIONS: usize = 64 * 64;
const REGION_ATOMS: u64 = (1 << 20) / ATOM_BYTES;
/// A change of more of them is taken to be everywhere: a volume may be trimmed in a thousand pieces at once.
const WIDE_REGIONS: u64 = 64;

/// The regions in which part of that is.
fn regions(span: Span) -> impl Iterator<Item = usize> {
    let (first, end) = (span.start / REGION_ATOMS, span.end().div_ceil(REGION_ATOMS));
    (first..end.min(first + REGIONS as u64)).map(|region| region as usize % REGIONS)
}

impl Default for Claims {
    fn default() -> Claims {
        Claims { regions: [const { AtomicU64::new(0) }; REGIONS / 64], changes: RwLock::default() }
    }
}

impl Claims {
    /// Is part of that to be changed first?
    pub fn overlaps(&self, span: Span) -> bool {
        let is_there = |region: usize| self.regions[region / 64].load(Ordering::Acquire) & 1 << (region % 64) != 0;
        let changes = || self.changes.read().unwrap_or_else(PoisonError::into_inner);
        regions(span).any(is_there) && changes().iter().any(|change| change.overlaps(span))
    }

    /// These are, and no others any more.
    pub fn set(&self, changes: Vec<Span>) {
        let mut now = [0; REGIONS / 64];
        if changes.iter().any(|span| span.atoms > WIDE_REGIONS * REGION_ATOMS) {
            now.fill(!0);
        } else {
            changes.iter().flat_map(|span| regions(*span)).for_each(|region| now[region / 64] |= 1 << (region % 64));
        }
        *self.changes.write().unwrap_or_else(PoisonError::into_inner) = changes;
        // A bit that was set and is to be stays so meanwhile.
        for (word, now) in self.regions.iter().zip(now).filter(|(word, now)| word.load(Ordering::Relaxed) != *now) {
            word.store(now, Ordering::Release);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_claimed_is_found_wherever_it_lies() {
        let claims = Claims::default();
        let region = REGION_ATOMS;
        let far = 5 * region + REGIONS as u64 * region;
        for wide in [WIDE_REGIONS, WIDE_REGIONS + 1] {
            claims.set(vec![Span::new(region - 1, 2), Span::new(far, wide * region)]);
            for (start, atoms, is_there) in [
                (0, region - 1, false),
                (region - 1, 1, true),
                (region, 1, true),
                (region + 1, 4 * region - 1, false),
                (5 * region, 1, false),
                (far, 1, true),
                (far + wide * region - 1, 1, true),
                (far + wide * region, 8, false),
                (0, 1 << 40, true),
            ] {
                assert_eq!(claims.overlaps(Span::new(start, atoms)), is_there, "{start} {atoms}");
            }
        }
        claims.set(Vec::new());
        assert!(!claims.overlaps(Span::new(0, 1 << 40)));
    }
}
