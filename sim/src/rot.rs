//! Corruptions: what lies on a cache is changed behind its back, in service and at rest, and everything is read back. Each corruption must
//! be noticed, or must make no difference, for a reason that is counted. Not one may be returned as data.
//!
//! ```text
//!   a cache with something of everything ─▶ corrupted ─▶ a start ─┬─ refused                             noticed
//!     (stopped in order, or cut off)                               ├─ served, damage reported or counted   noticed
//!                                                                   └─ served as if nothing had been        harmless, if all of it is as
//!                                                                      of the undamaged cache, and the place was spare or never read
//! ```
//! Whatever is served is held against what clients have written: an atom reads as it should, or not at all.
//! One limit is documented (docs/durability.md, *A limit of D5 and D10*): what the last group before a crash said, with nothing behind
//! it, may be taken for unfinished; then the state before it is served, whole, and counted as *unvouched*.

use crate::back::contents::Contents;
use crate::back::device::Device;
use crate::back::volatile::Survive;
use crate::chance::{Chance, mix};
use crate::crash_points::{READ_ATOMS, Rescue};
use crate::forge::Forge;
use crate::scenario::{Scenario, plan_for};
use crate::stamp::Stamps;
use crate::swarm::quiet_panics;
use crate::world::Crash;
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use tidegate_engine::block::{PAGE_ATOMS, Span};
use tidegate_engine::cache::format::{Geometry, Record};
use tidegate_engine::config::{Cleaning, Fill};
use tidegate_engine::op::Zone;
use tidegate_engine::payload::Payload;
use tidegate_engine::probe::{Phase, Snapshot};

/// Corruptions of metadata of one cache, one start for each; and of data, many to a start.
const METADATA_EACH: u64 = 60;
const DATA_EACH: u64 = 10;
const SLOTS_AT_ONCE: u64 = 12;

/// How many, and from which seed on.
#[derive(Clone, Debug)]
pub struct Options {
    pub corruptions: u64,
    pub first_seed: u64,
    pub threads: usize,
}

/// What became of all of them.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Report {
    pub corruptions: u64,
    /// Starts of an engine on a corrupted cache.
    pub starts: u64,
    /// By how it was noticed.
    pub noticed: BTreeMap<&'static str, u64>,
    /// By why it makes no difference.
    pub harmless: BTreeMap<&'static str, u64>,
    /// Injected, by what was done and where.
    pub injected: BTreeMap<String, u64>,
    /// Seed and what was broken.
    pub violations: Vec<(u64, String)>,
}

impl Report {
    fn add(&mut self, other: Report) {
        self.corruptions += other.corruptions;
        self.starts += other.starts;
        other.noticed.into_iter().for_each(|(how, count)| *self.noticed.entry(how).or_default() += count);
        other.harmless.into_iter().for_each(|(why, count)| *self.harmless.entry(why).or_default() += count);
        other.injected.into_iter().for_each(|(what, count)| *self.injected.entry(what).or_default() += count);
        self.violations.extend(other.violations);
    }
}

/// Corrupts until there were so many; `progress` hears how far it is.
pub fn campaign(options: &Options, progress: &(dyn Fn(u64) + Sync)) -> Report {
    quiet_panics();
    let (next, done) = (AtomicU64::new(options.first_seed), AtomicU64::new(0));
    let work = || {
        let mut report = Report::default();
        while done.load(Ordering::Relaxed) < options.corruptions {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            let of_seed = guarded(seed);
            let so_far = done.fetch_add(of_seed.corruptions.max(1), Ordering::Relaxed) + of_seed.corruptions;
            report.add(of_seed);
            progress(so_far);
        }
        report
    };
    let mut report = Report::default();
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..options.threads.max(1)).map(|_| scope.spawn(work)).collect();
        threads.into_iter().for_each(|thread| report.add(thread.join().expect("a thread that guards itself")));
    });
    report.violations.sort();
    report
}

/// An assertion that fails is a violation like any other.
fn guarded(seed: u64) -> Report {
    catch_unwind(AssertUnwindSafe(|| round(seed))).unwrap_or_else(|panic| {
        let what = panic.downcast_ref::<String>().cloned().or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
        Report { violations: vec![(seed, what.unwrap_or_else(|| "a panic".to_owned()))], ..Report::default() }
    })
}

/// All that is done to the cache of one seed.
fn round(seed: u64) -> Report {
    let mut subject = Subject::new(seed);
    let mut report = Report::default();
    for number in 0..METADATA_EACH {
        subject.corrupt_metadata(number, &mut report);
    }
    for number in 0..DATA_EACH {
        subject.corrupt_data(number % 2 == 0, &mut report);
    }
    report.violations = report.violations.into_iter().map(|(_, what)| (seed, what)).collect();
    report
}

// --- what is corrupted ---

/// What is done to a page or a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Flip,
    Torn,
    Misdirected,
    Replayed,
    Zeroed,
}

const KINDS: [Kind; 5] = [Kind::Flip, Kind::Torn, Kind::Misdirected, Kind::Replayed, Kind::Zeroed];
const ZONES: [Zone; 5] = [Zone::Superblock, Zone::Map, Zone::Header, Zone::HeaderCopy, Zone::Journal];

/// A slot that was corrupted, and whether its bytes are others now.
type Changed = (Span, bool);

/// A cache at rest, what it holds, and how it starts when nothing is wrong with it.
struct Subject {
    scenario: Scenario,
    chance: Chance,
    /// The contents of the cache at an earlier time.
    earlier: Contents,
    /// What each atom must read as; and, of the last group of a cache that was cut off, what it may read as instead.
    expected: Vec<u64>,
    before_last: BTreeMap<u64, u64>,
    places: Places,
    undamaged: Start,
}

/// What the undamaged metadata says of places.
#[derive(Default)]
struct Places {
    /// Pages of the journal that no start needs: before both checkpoints, void or blank; and those of the older checkpoint only.
    old_pages: BTreeSet<u64>,
    spare_pages: BTreeSet<u64>,
    spare_map: Span,
    /// No checkpoint was ever made.
    has_no_map: bool,
    /// Pages and slots of the last group, which nothing behind it vouches for.
    unvouched: Vec<Span>,
}

/// What a start came to.
#[derive(Clone, Debug, Default, PartialEq)]
struct Start {
    refused: bool,
    damage: usize,
    /// Clean slots that were told by their checksum, and blocks that cannot be read.
    corrupt_slots: u64,
    /// Live and dirty slots, ranges, free sets.
    state: (u64, u64, u64, u32),
    atoms: Vec<Option<u64>>,
}

impl Subject {
    fn new(seed: u64) -> Subject {
        let mut chance = Chance::new(seed, "rot");
        let geometry = Geometry {
            block_atoms: chance.pick(&[8, 8, 8, 1, 16]),
            set_slots: chance.pick(&[8, 8, 16]),
            sets: 16,
            journal_pages: 48,
            volume_atoms: 0,
            range_entries: 64,
        };
        let blocks = chance.between(40, 100);
        let mut plan = plan_for(Geometry { volume_atoms: blocks * u64::from(geometry.block_atoms), ..geometry });
        plan.seed = seed;
        let mut scenario = Scenario::of(plan);
        scenario.simulation.scene.trace.lines = None;
        let mut life = Life { scenario, expected: Vec::new(), chance: Chance::new(mix(seed), "life") };
        let is_stopped = chance.one_in(2);
        let (earlier, before_last) = life.live(is_stopped);
        let Life { mut scenario, expected, .. } = life;
        // Starts are compared: what is kept, dropped or moved after one depends on when a read comes.
        let config = &mut scenario.simulation.plan.config;
        (config.cleaning, config.fill) = (Cleaning::Off, Fill::Off);
        let mut subject =
            Subject { places: Places::default(), undamaged: Start::default(), scenario, chance, earlier, expected, before_last };
        subject.places = subject.read_places();
        let cache = subject.scenario.simulation.scene.cache.clone();
        subject.undamaged = subject.start(cache, |_| {}).0;
        let Start { refused, damage, corrupt_slots, .. } = subject.undamaged;
        assert!(!refused && damage == 0 && corrupt_slots == 0, "an undamaged cache starts as such: {:?}", subject.undamaged.state);
        subject.check_atoms(&subject.undamaged).expect("an undamaged cache reads as it should");
        assert!(subject.expected.iter().zip(&subject.undamaged.atoms).all(|(&expected, &atom)| atom == Some(expected)));
        subject
    }

    fn geometry(&self) -> Geometry {
        self.scenario.simulation.plan.config.geometry
    }

    fn read_places(&mut self) -> Places {
        let (geometry, format) = (self.geometry(), self.scenario.simulation.plan.config.format);
        let forge = Forge { cache: &mut self.scenario.simulation.scene.cache, geometry, format };
        let superblock = forge.superblock();
        let journal = forge.journal();
        let durable = journal.iter().map(|(_, page)| page.head.durable).max().unwrap_or(0).max(superblock.cut - 1);
        let has_no_map = superblock.checkpoint.number == 0;
        let mut places = Places { spare_map: geometry.map_area(superblock.previous.area), has_no_map, ..Places::default() };
        if superblock.previous.area == superblock.checkpoint.area {
            places.spare_map = geometry.map_area(1 - superblock.checkpoint.area);
        }
        let page_of = |place: u32| geometry.journal_page(place).start;
        let known: BTreeSet<u64> = journal.iter().map(|(place, _)| page_of(*place)).collect();
        places.old_pages = (0..geometry.journal_pages).map(page_of).filter(|page| !known.contains(page)).collect();
        for (place, page) in &journal {
            let is_void = page.head.epoch < superblock.epoch && page.head.seq >= superblock.cut;
            if page.head.seq < superblock.previous.seq.min(superblock.checkpoint.seq) || is_void {
                places.old_pages.insert(page_of(*place));
            } else if page.head.seq < superblock.checkpoint.seq {
                places.spare_pages.insert(page_of(*place));
            } else if page.head.seq > durable {
                places.unvouched.push(geometry.journal_page(*place));
                for record in &page.records {
                    if let Record::Put { slot, restate: false, entries, .. } = record {
                        let first = geometry.slot(*slot);
                        places.unvouched.push(Span::new(first.start, first.atoms * entries.len() as u64));
                    }
                }
            }
        }
        places
    }

    // --- corruption ---

    /// Changes `unit` of a device; false: nothing has changed.
    fn corrupt(&mut self, cache: &mut Device, kind: Kind, zone: Zone, unit: Span) -> bool {
        let before = image(cache.visible(), unit);
        let new: Vec<Stamps> = match kind {
            Kind::Flip => {
                cache.rot(unit.start + self.chance.below(unit.atoms));
                return true;
            }
            Kind::Zeroed => vec![Stamps::zero(unit.atoms)],
            Kind::Replayed => self.earlier.read(unit),
            Kind::Misdirected => {
                let other = self.draw_unit(zone, unit.atoms);
                cache.visible().read(other)
            }
            Kind::Torn => {
                // The first half is of another time, or never came.
                let half = unit.atoms.div_ceil(2);
                let old = Stamps::concat(&self.earlier.read(unit));
                let old = if unit.atoms == 1 || self.chance.one_in(2) { Stamps::zero(half) } else { old.slice(0, half) };
                let mut parts = vec![old];
                // One atom has no second half.
                if half < unit.atoms {
                    parts.push(Stamps::concat(&cache.visible().read(unit)).slice(half, unit.atoms - half));
                }
                parts
            }
        };
        cache.scribble(zone, unit.start, Stamps::concat(&new));
        image(cache.visible(), unit) != before
    }

    /// A page of metadata, a header, or a slot.
    fn draw_unit(&mut self, zone: Zone, atoms: u64) -> Span {
        let area = match zone {
            // Between the two copies there is nothing.
            Zone::Superblock => self.geometry().superblock(self.chance.below(2) as u32),
            _ => self.geometry().zone(zone),
        };
        Span::new(area.start + self.chance.below(area.atoms / atoms) * atoms, atoms)
    }

    /// One page of metadata is changed while the cache is at rest.
    fn corrupt_metadata(&mut self, number: u64, report: &mut Report) {
        let (zone, kind) = (ZONES[number as usize % ZONES.len()], self.chance.pick(&KINDS));
        let unit = match zone {
            Zone::Header | Zone::HeaderCopy => u64::from(self.geometry().header_pages()) * PAGE_ATOMS,
            _ => PAGE_ATOMS,
        };
        let unit = self.draw_unit(zone, unit);
        let mut cache = self.scenario.simulation.scene.cache.clone();
        let changed = self.corrupt(&mut cache, kind, zone, unit);
        report.corruptions += 1;
        report.starts += 1;
        *report.injected.entry(format!("{kind:?} {zone:?}")).or_default() += 1;
        let (start, _) = self.start(cache, |_| {});
        let judged = self.judge_metadata(zone, unit, changed, &start);
        self.note(judged, report, || format!("{kind:?} of {unit:?} in {zone:?}"));
    }

    /// Some slots are changed, in service or at rest.
    fn corrupt_data(&mut self, in_service: bool, report: &mut Report) {
        let block = u64::from(self.geometry().block_atoms);
        let mut slots = BTreeMap::new();
        for _ in 0..self.chance.between(1, SLOTS_AT_ONCE) {
            let (slot, kind) = (self.draw_unit(Zone::Data, block), self.chance.pick(&KINDS));
            if !self.places.unvouched.iter().any(|span| span.overlaps(slot)) {
                slots.insert(slot.start, kind);
            }
        }
        let mut changed: Vec<Changed> = Vec::new();
        let mut cache = self.scenario.simulation.scene.cache.clone();
        let mut all = |subject: &mut Subject, cache: &mut Device| {
            for (&start, &kind) in &slots {
                let slot = Span::new(start, block);
                changed.push((slot, subject.corrupt(cache, kind, Zone::Data, slot)));
            }
        };
        if !in_service {
            all(self, &mut cache);
            cache.take_harm();
        }
        // In service, a copy of the device is changed, and put in place of the one that the engine has.
        let mut served = cache.clone();
        if in_service {
            all(self, &mut served);
        }
        report.starts += 1;
        let (start, used) = self.start(cache, |rescue| {
            if in_service {
                for &(slot, _) in &changed {
                    let contents = Stamps::concat(&served.visible().read(slot));
                    rescue.bench.cache.scribble(Zone::Data, slot.start, contents);
                }
                rescue.bench.used.clear();
            }
        });
        for (kind, _) in slots.values().zip(&changed) {
            *report.injected.entry(format!("{kind:?} Data {}", if in_service { "in service" } else { "at rest" })).or_default() += 1;
        }
        report.corruptions += changed.len() as u64;
        let (hit, spared): (Vec<&Changed>, Vec<&Changed>) = changed.iter().partition(|(slot, changed)| *changed && is_read(&used, *slot));
        let told = start.corrupt_slots + start.damage as u64;
        let judged = self.check_atoms(&start).and_then(|()| match told >= hit.len() as u64 && !start.refused {
            true => Ok(()),
            false => {
                let hit: Vec<u64> = hit.iter().map(|(slot, _)| slot.start).collect();
                Err(format!("of the slots {hit:?}, which were corrupted and read, {told} were noticed"))
            }
        });
        match judged {
            Ok(()) => {
                *report.noticed.entry("by the checksum of the slot").or_default() += hit.len() as u64;
                for (_, changed) in spared {
                    let why = if *changed { "nothing lives in the slot, or it is written anew" } else { "the bytes are the same" };
                    *report.harmless.entry(why).or_default() += 1;
                }
            }
            Err(what) => report.violations.push((0, format!("slots {slots:?}, in service: {in_service}: {what}"))),
        }
    }

    // --- starts ---

    /// An engine starts on `cache`, something happens to it, and everything is read back. What came of it, and how it used the cache.
    fn start(&self, cache: Device, in_service: impl FnOnce(&mut Rescue)) -> (Start, Vec<(Span, bool)>) {
        let mut rescue = Rescue::new(&self.scenario.simulation, cache, self.scenario.simulation.scene.origin.clone());
        let recovered = rescue.recover(|_| {});
        if *rescue.engine.phase() == Phase::Refused {
            return (Start { refused: true, ..Start::default() }, Vec::new());
        }
        recovered.unwrap_or_else(|broken| panic!("{}", broken.0));
        rest(&mut rescue);
        in_service(&mut rescue);
        let block = u64::from(self.geometry().block_atoms);
        let mut atoms = rescue.read_all(READ_ATOMS).unwrap_or_else(|broken| panic!("{}", broken.0));
        if atoms.contains(&None) {
            // A request fails as a whole: which of its blocks was it?
            atoms = rescue.read_all(block).unwrap_or_else(|broken| panic!("{}", broken.0));
        }
        let unreadable = atoms.chunks(block as usize).filter(|atoms| atoms.contains(&None)).count() as u64;
        rest(&mut rescue);
        let Snapshot { live_slots, dirty_slots, zero_ranges, lost_blocks, free_sets, counters, damage, .. } =
            rescue.engine.inspect(rescue.bench.now);
        let corrupt_slots = counters.corrupt_clean_slots + unreadable;
        let state = (live_slots, dirty_slots, zero_ranges + lost_blocks, free_sets);
        (Start { refused: false, damage: damage.len(), corrupt_slots, state, atoms }, rescue.bench.used)
    }

    /// Nothing false was returned.
    fn check_atoms(&self, start: &Start) -> Result<(), String> {
        // The state before the last group, whole, is allowed where nothing vouches for that.
        let is_before = self.before_last.iter().any(|(&atom, &stamp)| start.atoms.get(atom as usize) == Some(&Some(stamp)));
        for (atom, (&expected, &read)) in (0..).zip(self.expected.iter().zip(&start.atoms)) {
            let expected = if is_before { *self.before_last.get(&atom).unwrap_or(&expected) } else { expected };
            if read.is_some_and(|read| read != expected) {
                return Err(format!("atom {atom} reads as {read:x?}, where {expected:x} was written"));
            }
        }
        Ok(())
    }

    /// How it was noticed, or why it makes no difference.
    fn judge_metadata(&self, zone: Zone, unit: Span, changed: bool, start: &Start) -> Result<Result<&'static str, &'static str>, String> {
        if start.refused {
            return Ok(Ok("by a start that is refused"));
        }
        self.check_atoms(start)?;
        if start.damage > 0 {
            return Ok(Ok("by a start that reports it"));
        }
        if start.corrupt_slots > 0 {
            return Ok(Ok("by the checksum of a slot"));
        }
        if self.places.unvouched.iter().any(|span| span.overlaps(unit)) {
            return Ok(Err("unvouched: the last group, with nothing behind it"));
        }
        if start.state != self.undamaged.state || start.atoms != self.undamaged.atoms {
            return Err(format!("not noticed, and not the same: {:?} instead of {:?}", start.state, self.undamaged.state));
        }
        let places = &self.places;
        let why = match zone {
            _ if !changed => "the bytes are the same",
            Zone::Journal if places.old_pages.contains(&unit.start) => "a page of the journal before both checkpoints, or void",
            Zone::Journal if places.spare_pages.contains(&unit.start) => "a page of the journal for the older checkpoint only",
            Zone::Map if places.has_no_map => "a state map that was never written",
            Zone::Map if places.spare_map.contains(unit) => "the state map of the older checkpoint",
            Zone::Map => "an unused page of the range table",
            Zone::Superblock => "one superblock is older, the other one counts",
            Zone::Header => "the header of a set that needs none",
            Zone::HeaderCopy => "the copy of a header that is good",
            Zone::Journal | Zone::Data | Zone::Origin => return Err("not noticed, in a place that counts".to_owned()),
        };
        let is_possible = match zone {
            _ if !changed => true,
            Zone::Superblock => self.is_older_superblock_possible(unit),
            Zone::Map if !places.has_no_map && !places.spare_map.contains(unit) => self.is_unused_range_page(unit),
            _ => true,
        };
        if is_possible { Ok(Err(why)) } else { Err(format!("not noticed, though it is not {why}")) }
    }

    /// An older superblock brought back at its own place is intact: the other copy is newer, and counts.
    fn is_older_superblock_possible(&self, unit: Span) -> bool {
        unit.atoms == PAGE_ATOMS && unit.start <= self.geometry().superblock(1).start
    }

    fn is_unused_range_page(&self, unit: Span) -> bool {
        let geometry = self.geometry();
        (0..2).any(|area| {
            let ranges = geometry.map_page(area, geometry.map_pages()).start;
            unit.start > ranges && geometry.map_area(area).contains(unit)
        })
    }

    fn note(&self, judged: Result<Result<&'static str, &'static str>, String>, report: &mut Report, what: impl FnOnce() -> String) {
        match judged {
            Ok(Ok(how)) => *report.noticed.entry(how).or_default() += 1,
            Ok(Err(why)) => *report.harmless.entry(why).or_default() += 1,
            Err(why) => report.violations.push((0, format!("{}: {why}", what()))),
        }
    }
}

/// Was this slot read before it was written again? Free ones are filled with what is read from the origin.
fn is_read(used: &[(Span, bool)], slot: Span) -> bool {
    used.iter().find(|(span, _)| span.overlaps(slot)).is_some_and(|&(_, writes)| !writes)
}

/// Lets everything end that is on its way.
fn rest(rescue: &mut Rescue) {
    for _ in 0..10_000 {
        if rescue.bench.cache.in_flight() + rescue.bench.origin.in_flight() == 0 {
            return;
        }
        rescue.turn(Vec::new()).unwrap_or_else(|broken| panic!("{}", broken.0));
    }
    panic!("it does not come to rest");
}

fn image(contents: &Contents, span: Span) -> Vec<u64> {
    contents.read(span).iter().flat_map(|part| part.stamps().collect::<Vec<_>>()).collect()
}

// --- the life of a cache before ---

struct Life {
    scenario: Scenario,
    expected: Vec<u64>,
    chance: Chance,
}

impl Life {
    /// Fills, writes, trims, destages, makes checkpoints; then ends. Returns the contents of the cache half-way, and what the atoms of the
    /// last group held before it (nothing after a stop in order).
    fn live(&mut self, is_stopped: bool) -> (Contents, BTreeMap<u64, u64>) {
        let volume = Span::new(0, self.scenario.geometry().volume_atoms);
        self.expected = self.scenario.read(volume).expect("the origin");
        self.work(30);
        let earlier = self.scenario.simulation.scene.cache.visible().clone();
        self.work(40);
        if self.chance.one_in(2) {
            let block = self.chance.below(self.scenario.geometry().blocks());
            let data = self.scenario.checkpoints(2, block);
            self.keep(self.scenario.block(block), &data);
        }
        self.work(20);
        self.scenario.flush();
        self.scenario.run_until_quiet();
        let mut before_last = BTreeMap::new();
        if is_stopped {
            self.scenario.stop();
            self.scenario.crash(Crash::Power { cache: Survive::None, origin: Survive::None });
        } else {
            // One group behind which there is nothing.
            let block = self.chance.below(self.scenario.geometry().blocks());
            let span = self.scenario.block(block);
            before_last = (span.start..span.end()).map(|atom| (atom, self.expected[atom as usize])).collect();
            let data = self.scenario.write_fua(block);
            self.keep(span, &data);
            self.scenario.run_until_quiet();
            self.scenario.crash(Crash::Kill(Survive::All));
        }
        (earlier, before_last)
    }

    fn keep(&mut self, span: Span, data: &Stamps) {
        let stamps = data.stamps();
        self.expected[span.start as usize..span.end() as usize].iter_mut().zip(stamps).for_each(|(to, stamp)| *to = stamp);
    }

    fn work(&mut self, steps: u64) {
        let blocks = self.scenario.geometry().blocks();
        for _ in 0..steps {
            let first = self.chance.below(blocks);
            let span = self.scenario.blocks(first, self.chance.between(1, 6).min(blocks - first));
            match self.chance.below(12) {
                0..6 => {
                    let data = self.scenario.write_span(span);
                    self.keep(span, &data);
                }
                6 | 7 => drop(self.scenario.read(span).expect("nothing fails")),
                8 => {
                    self.scenario.trim(span);
                    self.keep(span, &Stamps::zero(span.atoms));
                }
                9 if self.chance.one_in(4) => self.scenario.drain(),
                _ => self.scenario.flush(),
            }
        }
    }
}
