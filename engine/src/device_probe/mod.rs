//! What a device is like inside, found from how long it takes: how it spreads its addresses over parts that work side by side, how many of
//! these there are, from which depth on more requests only wait, and what reads suffer from writes. (Chen, Lee, Zhang, "Essential roles of
//! exploiting internal parallelism of flash memory based solid state drives in high-speed data processing", HPCA 2011.)
//!
//! ```text
//!   Fill ─▶ Alone ─▶ Near ─▶ Far ─▶ Curve ─▶ Beside ─▶ findings
//!   (overwriting only)                     (overwriting only)
//! ```
//! It knows no device: it asks for trials (which places, how many at once), is told how long they took, and concludes. So it is tried on
//! models of drives, of which the truth is known (`sim/tests/probe.rs`).
//!
//! * Two reads that are sent together end after one time if they meet different parts, and after two if they meet the same. Over the distance
//!   of the two that makes a comb ([`comb`]): the width of a tooth is what lies together, the distance of the teeth what all parts hold.
//! * Reads far from each other tell whether each part has a stretch of the addresses ([`stretches`]), and, from how often two of them
//!   meet by chance, how many parts there are whatever the map is ([`meeting`]).
//! * Throughput over depth has a knee ([`curve`]).
//!
//! A finding says how sure it is: what was measured is drawn again at random (a bootstrap), and the finding made from that, forty times. Nothing is
//! found that shuffled measurements would show as well.

mod beside;
mod comb;
mod curve;
mod evidence;
mod findings;
mod meeting;
mod stretches;
mod trial;

use crate::block::{ATOM_BYTES, Span};
use crate::draw::Draw;
use crate::time::{Duration, Instant};

pub use beside::{Beside, Latencies};
pub use comb::{Interleave, Tooth};
pub use curve::{Knee, Point};
pub use findings::{Finding, Findings, Unseen};
pub use meeting::Parts;
pub use stretches::Stretches;
pub use trial::{Access, Measured, Running, Sample, Stream, Trial};

/// What is read: the smallest page of any flash. A larger read would lie on several parts.
const READ_ATOMS: u64 = 8;
/// Distances of near pairs are multiples of what is read, up to so many: 32 MiB. A period is at most a quarter of that.
const DISTANCES: u64 = 8_192;
/// Less says nothing about a drive.
pub const ATOMS_MIN: u64 = (64 << 20) / ATOM_BYTES;

/// Pairs and reads after which more would not help.
const ALONE_MAX: usize = 2_000;
const ALONE_EVERY: usize = 8;
const NEAR_MAX: usize = 40_000;
const FAR_MAX: usize = 10_000;
const DEPTH_READS_MAX: u64 = 20_000;
const BESIDE_READS_MAX: u64 = 8_000;
/// So many in any case, however slow the device is.
const ALONE_MIN: usize = 64;
/// How far the second of two reads one after the other jumps: less than a track.
const JUMP_ATOMS: u64 = (128 << 10) / ATOM_BYTES;

/// What overwriting writes first, in order: at most so much, in pieces, and with a rest behind it in which a drive empties its buffer.
const FILL_ATOMS: u64 = (1 << 30) / ATOM_BYTES;
const FILL_PIECE_ATOMS: u64 = (256 << 10) / ATOM_BYTES;
const FILL_PIECES: u64 = 64;
const REST: Duration = Duration::from_secs(1);

/// Reads and writes side by side.
const BESIDE_DEPTH: usize = 4;
const BESIDE_WRITE_ATOMS: u64 = (64 << 10) / ATOM_BYTES;

/// What may be done to the device, and for how long.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Its size.
    pub atoms: u64,
    /// It may be written to.
    pub overwrite: bool,
    /// About how long all trials together may take. Less is taken where more would not help.
    pub time: Duration,
    /// The largest depth that may be asked for.
    pub depth_max: usize,
    pub seed: u64,
}

/// Two reads that were sent together, and when both had ended.
#[derive(Clone, Copy, Debug)]
struct Pair {
    first: u64,
    second: u64,
    time: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Fill,
    Alone,
    Near,
    Far,
    Curve,
    Beside,
    Over,
}

impl Stage {
    /// What follows, and the share of all time that it may take, in per cent.
    fn next(self, overwrite: bool) -> (Stage, u64) {
        match (self, overwrite) {
            (Stage::Fill, _) => (Stage::Alone, 3),
            (Stage::Alone, true) => (Stage::Near, 30),
            (Stage::Alone, false) => (Stage::Near, 45),
            (Stage::Near, true) => (Stage::Far, 10),
            (Stage::Near, false) => (Stage::Far, 15),
            (Stage::Far, true) => (Stage::Curve, 22),
            (Stage::Far, false) => (Stage::Curve, 35),
            (Stage::Curve, true) => (Stage::Beside, 10),
            (Stage::Curve, false) | (Stage::Beside | Stage::Over, _) => (Stage::Over, 0),
        }
    }

    fn name(self) -> &'static str {
        match self {
            Stage::Fill => "writing in order",
            Stage::Alone => "reads alone",
            Stage::Near => "pairs of reads",
            Stage::Far => "pairs far apart",
            Stage::Curve => "depths",
            Stage::Beside => "reads beside writes",
            Stage::Over => "done",
        }
    }
}

/// The probe of one device.
pub struct Probe {
    options: Options,
    draw: Draw,
    stage: Stage,
    /// When the stage is to end, unless it has nothing yet.
    until: Instant,
    end: Instant,
    /// What of the device is looked at: all, or what was written in order.
    atoms: u64,
    filled: u64,
    /// The trial that was asked for last.
    asked: Trial,
    /// Reads alone: after a jump anywhere, after a short one.
    far_alone: Vec<Duration>,
    near_alone: Vec<Duration>,
    /// Reads alone between pairs, and how many pairs there were since the last one.
    between_near: Vec<Duration>,
    between_far: Vec<Duration>,
    until_alone: usize,
    near: Vec<Pair>,
    far: Vec<Pair>,
    curve: Vec<Point>,
    beside: Beside,
}

impl Probe {
    /// A probe that begins at `now`.
    pub fn new(now: Instant, options: Options) -> Probe {
        assert!(options.atoms >= ATOMS_MIN && options.depth_max > 0);
        let (stage, share, atoms) =
            if options.overwrite { (Stage::Fill, 25, options.atoms.min(FILL_ATOMS)) } else { (Stage::Alone, 5, options.atoms) };
        Probe {
            draw: Draw::new(options.seed),
            stage,
            until: now + Duration(options.time.0 / 100 * share),
            end: now + options.time,
            atoms,
            filled: 0,
            asked: Trial::default(),
            far_alone: Vec::new(),
            near_alone: Vec::new(),
            between_near: Vec::new(),
            between_far: Vec::new(),
            until_alone: 0,
            near: Vec::new(),
            far: Vec::new(),
            curve: Vec::new(),
            beside: Beside::default(),
            options,
        }
    }

    /// What is to be done next; nothing when all is known. What was asked for before has been [recorded](Probe::record).
    pub fn next_trial(&mut self, now: Instant) -> Option<Trial> {
        while self.stage != Stage::Over {
            if let Some(trial) = self.trial(now >= self.until) {
                self.asked = trial.clone();
                return Some(trial);
            }
            let (next, share) = self.stage.next(self.options.overwrite);
            (self.stage, self.until) = (next, now + Duration(self.options.time.0 / 100 * share));
        }
        None
    }

    /// What is done at present, in a few words; and what share of the time is left, in per cent.
    pub fn progress(&self, now: Instant) -> (&'static str, u64) {
        (self.stage.name(), self.end.since(now).0 * 100 / self.options.time.0.max(1))
    }

    /// The next trial of this stage. None: it is over.
    fn trial(&mut self, is_late: bool) -> Option<Trial> {
        match self.stage {
            Stage::Fill => self.fill(is_late),
            Stage::Alone => {
                let is_over = self.far_alone.len() >= if is_late { ALONE_MIN } else { ALONE_MAX };
                (!is_over).then(|| {
                    let place = self.place(JUMP_ATOMS);
                    reads(1, vec![place, Span::new(place.start + JUMP_ATOMS, READ_ATOMS)])
                })
            }
            Stage::Near => {
                let is_over = is_late || self.near.len() >= NEAR_MAX;
                (!is_over).then(|| {
                    if self.is_turn_alone() {
                        return reads(1, vec![self.place(0)]);
                    }
                    let most = DISTANCES.min(self.atoms / READ_ATOMS / 4);
                    let distance = (1 + self.draw.below(most)) * READ_ATOMS;
                    let place = self.place(distance);
                    reads(2, vec![place, Span::new(place.start + distance, READ_ATOMS)])
                })
            }
            Stage::Far => (!is_late && self.far.len() < FAR_MAX).then(|| {
                if self.is_turn_alone() {
                    return reads(1, vec![self.place(0)]);
                }
                let places = vec![self.place(0), self.place(0)];
                reads(2, places)
            }),
            Stage::Curve => {
                let known = self.curve.len();
                let depth = *curve::DEPTHS.get(known).filter(|&&depth| depth <= self.options.depth_max)?;
                if is_late && known >= curve::DEPTHS_MIN {
                    return None;
                }
                // For as long as each depth may take, if it is no quicker than the one before.
                let time = self.options.time.0 / 100 * if self.options.overwrite { 22 } else { 35 } / curve::DEPTHS.len() as u64;
                let pace = self.curve.last().map_or(1e9 / evidence::median(&self.far_alone).0.max(1) as f64, |point| point.throughput);
                let count = ((time as f64 / 1e9 * pace) as u64).clamp(3 * depth as u64 + curve::SLICES as u64, DEPTH_READS_MAX);
                let places = (0..count).map(|_| self.place(0)).collect();
                Some(reads(depth, places))
            }
            Stage::Beside => self.beside.is_open().then(|| {
                let pace = self.curve.last().map_or(0.0, |point| point.throughput);
                let time = self.options.time.0 / 100 * 10 / 4;
                let count = ((time as f64 / 1e9 * pace) as u64).clamp(200, BESIDE_READS_MAX);
                let mut trial = reads(BESIDE_DEPTH, (0..count).map(|_| self.place(0)).collect());
                if self.beside.has_alone() {
                    let writes = (0..1_000).map(|_| self.large_place(BESIDE_WRITE_ATOMS)).collect();
                    trial.writes = Stream { depth: BESIDE_DEPTH, places: writes };
                }
                trial
            }),
            Stage::Over => None,
        }
    }

    /// Pairs are compared with reads alone of the same time: a drive that still cleans up behind its last writes is slow at first.
    fn is_turn_alone(&mut self) -> bool {
        self.until_alone = (self.until_alone + 1) % ALONE_EVERY;
        self.until_alone == 0
    }

    /// The next piece that is written in order; behind the last one, a rest.
    fn fill(&mut self, is_late: bool) -> Option<Trial> {
        if self.filled == self.atoms {
            return None;
        }
        let is_enough = is_late && self.filled >= ATOMS_MIN;
        if is_enough {
            self.atoms = self.filled;
            return Some(Trial { rest: REST, ..reads(1, vec![Span::new(0, READ_ATOMS)]) });
        }
        let end = (self.filled + FILL_PIECES * FILL_PIECE_ATOMS).min(self.atoms);
        let piece = |start| Span::new(start, FILL_PIECE_ATOMS.min(end - start));
        let places = (self.filled..end).step_by(FILL_PIECE_ATOMS as usize).map(piece).collect();
        self.filled = end;
        Some(Trial { writes: Stream { depth: BESIDE_DEPTH, places }, ..Trial::default() })
    }

    /// A place that is aligned to what is read, with so many atoms behind its start.
    fn place(&mut self, behind: u64) -> Span {
        Span::new(self.draw.below((self.atoms - behind) / READ_ATOMS) * READ_ATOMS, READ_ATOMS)
    }

    fn large_place(&mut self, atoms: u64) -> Span {
        Span::new(self.draw.below(self.atoms / atoms) * atoms, atoms)
    }

    /// How long the trial took that was asked for last.
    pub fn record(&mut self, measured: &Measured) {
        let asked = std::mem::take(&mut self.asked);
        assert_eq!(measured.reads.len(), asked.reads.places.len(), "each read is told of");
        let pair = || Pair {
            first: asked.reads.places[0].start,
            second: asked.reads.places[1].start,
            time: measured.reads.iter().map(|read| read.ended).max().expect("two reads"),
        };
        match self.stage {
            Stage::Fill | Stage::Over => {}
            Stage::Alone => {
                self.far_alone.push(measured.reads[0].latency());
                self.near_alone.push(measured.reads[1].latency());
            }
            Stage::Near if asked.reads.places.len() == 1 => self.between_near.push(measured.reads[0].latency()),
            Stage::Far if asked.reads.places.len() == 1 => self.between_far.push(measured.reads[0].latency()),
            Stage::Near => self.near.push(pair()),
            Stage::Far => self.far.push(pair()),
            Stage::Curve => self.curve.push(Point::new(asked.reads.depth, &measured.reads)),
            Stage::Beside => self.beside.record(measured),
        }
    }

    /// What all of it says.
    pub fn findings(mut self) -> Findings {
        findings::conclude(
            &findings::Evidence {
                atoms: self.atoms,
                is_whole: self.atoms == self.options.atoms,
                far_alone: &self.far_alone,
                near_alone: &self.near_alone,
                between_near: &self.between_near,
                between_far: &self.between_far,
                near: &self.near,
                far: &self.far,
                curve: self.curve,
                beside: self.options.overwrite.then_some(self.beside),
            },
            &mut self.draw,
        )
    }
}

fn reads(depth: usize, places: Vec<Span>) -> Trial {
    Trial { reads: Stream { depth, places }, ..Trial::default() }
}
