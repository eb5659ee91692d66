//! Where the sectors are: tracks, zones, the time to reach a track and the time until a sector comes round.
//!
//! ```text
//!   atom ─▶ zone ─▶ track (of the whole disk) and angle      angle now = time modulo one rotation: the platter never slips
//! ```
//! Skew is folded in: what runs on over the end of a track continues at the same angle on the next one, and costs nothing.
//! Everything is whole nanoseconds; the square root is that of integers.

use super::Mechanics;
use tidegate_engine::block::ATOM_BYTES;
use tidegate_engine::time::{Duration, Instant};

/// A sector missed by less than this is not missed: rounding, and what skew allows for.
const SLACK: u64 = 20_000;
/// Fraction bits of the root of the relative distance of a seek.
const ROOT_BITS: u32 = 16;

/// Tracks of one length.
#[derive(Clone, Copy, Debug)]
struct Zone {
    first_atom: u64,
    first_track: u64,
    track_atoms: u64,
}

/// A place on the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    pub track: u64,
    /// When in a rotation the sector passes the head.
    angle: u64,
}

#[derive(Clone, Debug)]
pub struct Platter {
    /// One rotation.
    pub rotation: u64,
    zones: Vec<Zone>,
    tracks: u64,
    seek_min: u64,
    seek_span: u64,
    settle: u64,
}

impl Platter {
    pub fn new(atoms: u64, mechanics: &Mechanics) -> Self {
        let (outer, inner) = (mechanics.track_kib * 1024 / ATOM_BYTES, mechanics.inner_track_kib * 1024 / ATOM_BYTES);
        let (count, mut zones, mut first_track) = (mechanics.zones, Vec::new(), 0);
        for zone in 0..count {
            let first_atom = atoms / count * zone;
            let end = if zone + 1 == count { atoms } else { atoms / count * (zone + 1) };
            let track_atoms = outer - (outer - inner) * zone / (count - 1).max(1);
            zones.push(Zone { first_atom, first_track, track_atoms });
            first_track += (end - first_atom).div_ceil(track_atoms);
        }
        Platter {
            rotation: 60_000_000_000 / mechanics.rpm,
            zones,
            tracks: first_track,
            seek_min: mechanics.seek_min_us * 1_000,
            seek_span: (mechanics.seek_full_us - mechanics.seek_min_us) * 1_000,
            settle: mechanics.write_settle_us * 1_000,
        }
    }

    fn zone(&self, atom: u64) -> &Zone {
        &self.zones[self.zones.partition_point(|zone| zone.first_atom <= atom) - 1]
    }

    pub fn place(&self, atom: u64) -> Place {
        let zone = self.zone(atom);
        let (track, sector) = ((atom - zone.first_atom) / zone.track_atoms, (atom - zone.first_atom) % zone.track_atoms);
        Place { track: zone.first_track + track, angle: sector * self.rotation / zone.track_atoms }
    }

    /// To move the arm from one track to another: a + b·√(distance / all tracks), and the settling before a write.
    pub fn seek(&self, from: u64, to: u64, writes: bool) -> Duration {
        let distance = from.abs_diff(to);
        if distance == 0 {
            return Duration::ZERO;
        }
        let root = ((distance << (2 * ROOT_BITS)) / self.tracks).isqrt();
        let settle = if writes { self.settle } else { 0 };
        Duration(self.seek_min + ((self.seek_span * root) >> ROOT_BITS) + settle)
    }

    /// From `now` until `place` passes the head of its track.
    pub fn wait(&self, now: Instant, place: Place) -> Duration {
        let wait = (place.angle + self.rotation - now.0 % self.rotation) % self.rotation;
        Duration(if wait > self.rotation - SLACK { 0 } else { wait })
    }

    /// For `atoms` from `start` to pass the head.
    pub fn transfer(&self, start: u64, atoms: u64) -> Duration {
        Duration((u128::from(atoms) * u128::from(self.rotation) / u128::from(self.zone(start).track_atoms)) as u64)
    }

    /// Atoms that pass the head from `start` on in `time`.
    pub fn passed(&self, start: u64, time: Duration) -> u64 {
        (u128::from(time.0) * u128::from(self.zone(start).track_atoms) / u128::from(self.rotation)) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mechanics() -> Mechanics {
        Mechanics {
            rpm: 6_000,
            track_kib: 500,
            inner_track_kib: 250,
            zones: 4,
            seek_min_us: 1_000,
            seek_full_us: 16_000,
            write_settle_us: 500,
            read_overhead_us: 100,
            write_overhead_us: 100,
            link_mb_s: 300,
            read_ahead_kib: 0,
            read_ahead_in_gaps: true,
        }
    }

    #[test]
    fn seeks_grow_with_the_root_of_the_distance() {
        let platter = Platter::new(1_000_000_000, &mechanics());
        let all = platter.tracks;
        let about = |distance: u64, writes, expected: u64| {
            let seek = platter.seek(all, all - distance, writes).0;
            assert!(seek.abs_diff(expected) < 5_000, "{distance} of {all} tracks: {seek} ns");
        };
        about(0, true, 0);
        about(all, false, 16_000_000);
        about(all / 4, false, 8_500_000);
        about(all / 4, true, 9_000_000);
    }

    #[test]
    fn a_sector_comes_round_once_in_a_rotation() {
        let platter = Platter::new(1_000_000_000, &mechanics());
        assert_eq!(platter.rotation, 10_000_000);
        let quarter = platter.place(250);
        for (now, expected) in [(0, 2_500_000), (2_500_000, 0), (2_600_000, 9_900_000), (2_510_000, 0), (12_000_000, 500_000)] {
            assert_eq!(platter.wait(Instant(now), quarter).0, expected, "at {now}");
        }
    }

    #[test]
    fn inner_tracks_are_shorter_and_slower() {
        let platter = Platter::new(1_000_000_000, &mechanics());
        assert_eq!(platter.transfer(0, 1_000).0, 10_000_000);
        assert_eq!(platter.transfer(999_999_000, 500).0, 10_000_000);
        assert!(platter.place(999_999_999).track < platter.tracks);
        assert_eq!(platter.passed(0, Duration(5_000_000)), 500);
    }
}
