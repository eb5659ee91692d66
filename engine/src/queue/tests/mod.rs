//! Every queue against whatever may be asked of it: nothing is lost, nothing done twice, the depth is kept, and everybody gets his own answer.

mod requirements;

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::{Answered, BUSY, JOINED_ATOMS_MAX, Queue, QueueKind};
use crate::block::Span;
use crate::op::{Action, Answer, Class, DeviceError, DeviceId, Done, Lanes, Limits, Op, OpId, Zone};
use crate::payload::{Checksum, Payload};
use crate::time::{Duration, Instant};

pub const BLOCK: u64 = 8;
/// Blocks of the device.
pub const BLOCKS: u64 = 1 << 20;
/// Of these, that work side by side: each a stretch of addresses.
pub const LANES: u64 = 8;
const MERGED_BLOCKS_MAX: u64 = 32;

/// The address of each atom.
#[derive(Clone, Debug, PartialEq)]
pub struct Addresses(Vec<u64>);

impl Addresses {
    fn of(span: Span) -> Self {
        Addresses((span.start..span.end()).collect())
    }
}

impl Payload for Addresses {
    fn atoms(&self) -> u64 {
        self.0.len() as u64
    }
    fn zero(atoms: u64) -> Self {
        Addresses(vec![0; atoms as usize])
    }
    fn slice(&self, start: u64, atoms: u64) -> Self {
        Addresses(self.0[start as usize..][..atoms as usize].to_vec())
    }
    fn concat(parts: &[Self]) -> Self {
        Addresses(parts.iter().flat_map(|part| part.0.clone()).collect())
    }
    fn checksum(&self, _: Checksum) -> u32 {
        0
    }
    fn from_bytes(bytes: &[u8]) -> Self {
        Addresses::zero(bytes.len() as u64 / 512)
    }
    fn append_to(&self, out: &mut Vec<u8>) {
        out.resize(out.len() + self.0.len() * 512, 0);
    }
}

/// A queue, and a device that does nothing by itself.
pub struct Bench {
    pub queue: Queue<Addresses>,
    pub now: Instant,
    device: BTreeMap<u64, Op<Addresses>>,
}

impl Bench {
    pub fn new(kind: QueueKind, depth: usize, patient_depth: usize) -> Self {
        let limits = Limits { atoms: BLOCKS * BLOCK, depth, op_atoms: MERGED_BLOCKS_MAX * BLOCK, discards: true };
        Bench {
            queue: Queue::new(kind, limits, Lanes::new(LANES as u32, limits.atoms), patient_depth),
            now: Instant::ZERO,
            device: BTreeMap::new(),
        }
    }

    fn put(&mut self, job: u32, id: u64, class: Class, action: Action<Addresses>) {
        self.queue.push(self.now, job, Op { id: OpId(id), device: DeviceId::Cache, class, action });
    }

    pub fn flush(&mut self, id: u64, class: Class) {
        self.put(0, id, class, Action::Flush);
    }

    pub fn read_of(&mut self, job: u32, id: u64, block: u64) {
        self.put(job, id, Class::Client, Action::Read(Zone::Data, Span::new(block * BLOCK, BLOCK)));
    }

    pub fn read(&mut self, id: u64, block: u64) {
        self.read_of(0, id, block);
    }

    pub fn write(&mut self, id: u64, block: u64) {
        self.change(id, block, Class::Client);
    }

    /// A read of a class.
    pub fn push(&mut self, id: u64, block: u64, class: Class) {
        self.put(0, id, class, Action::Read(Zone::Data, Span::new(block * BLOCK, BLOCK)));
    }

    /// A write of a class.
    pub fn change(&mut self, id: u64, block: u64, class: Class) {
        let span = Span::new(block * BLOCK, BLOCK);
        self.put(0, id, class, Action::Write(Zone::Data, span, [Addresses::of(span)].into()));
    }

    pub fn queue_next(&mut self) -> Option<u64> {
        let op = self.queue.pop(self.now)?;
        let id = op.id.0;
        assert!(self.device.insert(id, op).is_none(), "an operation goes once");
        Some(id)
    }

    pub fn popped(&mut self) -> Vec<u64> {
        std::iter::from_fn(|| self.queue_next()).collect()
    }

    /// What the device has.
    pub fn under_way(&self) -> Vec<u64> {
        self.device.keys().copied().collect()
    }

    /// It ends well; returns what it was made of.
    pub fn done(&mut self, id: u64) -> Vec<Done<Addresses>> {
        let op = self.device.remove(&id).expect("the device has it");
        let answer = match &op.action {
            // In pieces that are nobody's own.
            Action::Read(_, span) => {
                let all = Addresses::of(*span);
                let half = span.atoms / 3;
                if half == 0 {
                    Answer::Data([all].into())
                } else {
                    Answer::Data(vec![all.slice(0, half), all.slice(half, span.atoms - half)].into())
                }
            }
            Action::Write(_, span, payloads) => {
                assert_eq!(Addresses::concat(payloads), Addresses::of(*span), "contents go where they belong");
                Answer::Done
            }
            _ => Answer::Done,
        };
        self.ended(Done { id: op.id, result: Ok(answer) })
    }

    fn fail(&mut self, id: u64) -> Vec<Done<Addresses>> {
        let op = self.device.remove(&id).expect("the device has it");
        self.ended(Done { id: op.id, result: Err(DeviceError::Medium) })
    }

    fn ended(&mut self, done: Done<Addresses>) -> Vec<Done<Addresses>> {
        match self.queue.done(self.now, done) {
            Answered::One(done) => vec![done],
            Answered::Merged(all) => all,
        }
    }
}

#[derive(Clone, Debug)]
enum Step {
    Push { kind: u8, class: Class, block: u64, blocks: u64, job: u32 },
    Pop,
    Done(prop::sample::Index),
    Fail(prop::sample::Index),
    Raise(prop::sample::Index, Class),
    Wait(u64),
}

fn class() -> impl Strategy<Value = Class> {
    use Class::{Clean, Client, Destage, Discard, Fill, Log, Scrub};
    prop::sample::select(vec![Client, Client, Log, Fill, Destage, Clean, Scrub, Discard])
}

fn step() -> impl Strategy<Value = Step> {
    let any = any::<prop::sample::Index>;
    prop_oneof![
        8 => (0..8u8, class(), 0..200u64, 1..4u64, 0..3u32)
            .prop_map(|(kind, class, block, blocks, job)| Step::Push { kind, class, block: block * 5_000, blocks, job }),
        // Neighbours.
        8 => (0..8u8, 0..24u64, 1..4u64, 0..2u32)
            .prop_map(|(kind, block, blocks, job)| Step::Push { kind, class: Class::Client, block, blocks, job }),
        8 => Just(Step::Pop),
        8 => any().prop_map(Step::Done),
        2 => any().prop_map(Step::Fail),
        2 => (any(), class()).prop_map(|(which, class)| Step::Raise(which, class)),
        2 => (0..3_000u64).prop_map(Step::Wait),
    ]
}

fn action(kind: u8, span: Span) -> Action<Addresses> {
    match kind {
        0..4 => Action::Read(Zone::Data, span),
        4..7 => Action::Write(Zone::Data, span, [Addresses::of(span)].into()),
        _ => Action::Flush,
    }
}

/// What was pushed and is not answered: the span of each read, and of all others none.
struct Owed(BTreeMap<u64, Option<Span>>);

impl Owed {
    fn answer(&mut self, answers: Vec<Done<Addresses>>) {
        for Done { id, result } in answers {
            let read = self.0.remove(&id.0).expect("everybody is answered once");
            match (read, result) {
                (Some(span), Ok(Answer::Data(data))) => assert_eq!(Addresses::concat(&data), Addresses::of(span), "his own answer"),
                (None, Ok(Answer::Done)) | (_, Err(DeviceError::Medium)) => {}
                (_, result) => panic!("{id:?} was not asked this: {result:?}"),
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(256) })]

    #[test]
    fn nothing_is_lost_and_nothing_done_twice(steps in prop::collection::vec(step(), 1..300), depth in 1..40usize, patient in 1..8usize) {
        for kind in QueueKind::ALL {
            check(kind, &steps, depth, patient);
        }
    }
}

fn check(kind: QueueKind, steps: &[Step], depth: usize, patient: usize) {
    let (mut bench, mut owed) = (Bench::new(kind, depth, patient), Owed(BTreeMap::new()));
    let mut next = 0;
    for step in steps {
        let under_way = |bench: &Bench, which: &prop::sample::Index| {
            let ids: Vec<u64> = bench.device.keys().copied().collect();
            (!ids.is_empty()).then(|| ids[which.index(ids.len())])
        };
        let any = |owed: &Owed, which: &prop::sample::Index| {
            let ids: Vec<u64> = owed.0.keys().copied().collect();
            (!ids.is_empty()).then(|| ids[which.index(ids.len())])
        };
        match step {
            Step::Push { kind, class, block, blocks, job } => {
                let span = Span::new(block * BLOCK, blocks * BLOCK);
                owed.0.insert(next, (*kind < 4).then_some(span));
                bench.put(*job, next, *class, action(*kind, span));
                next += 1;
            }
            Step::Pop => drop(bench.queue_next()),
            Step::Done(which) => {
                if let Some(id) = under_way(&bench, which) {
                    owed.answer(bench.done(id));
                }
            }
            Step::Fail(which) => {
                if let Some(id) = under_way(&bench, which) {
                    owed.answer(bench.fail(id));
                }
            }
            Step::Raise(which, class) => {
                if let Some(id) = any(&owed, which) {
                    let is_under_way = bench.device.contains_key(&id);
                    assert!(!(bench.queue.raise(bench.now, OpId(id), *class) && is_under_way));
                }
            }
            Step::Wait(millis) => bench.now = bench.now + Duration::from_millis(*millis),
        }
        assert!(bench.device.len() <= depth, "{kind:?}: the device has more than it takes");
    }
    // And all of it comes to an end.
    while !bench.queue.is_idle() {
        match bench.queue_next() {
            Some(_) => {}
            None => {
                let first = *bench.device.keys().next().unwrap_or_else(|| panic!("{kind:?} holds back what nothing is before"));
                owed.answer(bench.done(first));
            }
        }
    }
    assert!(owed.0.is_empty(), "{kind:?} has lost {:?}", owed.0);
}

#[test]
fn neighbours_are_one_operation_up_to_what_the_device_takes() {
    for kind in QueueKind::ALL.into_iter().filter(|&kind| kind != QueueKind::Urgency) {
        let mut bench = Bench::new(kind, 100, 1);
        (0..40).for_each(|id| bench.write(id, id));
        assert_eq!(bench.popped(), [0, MERGED_BLOCKS_MAX]);
        assert_eq!(bench.done(0).len() as u64, MERGED_BLOCKS_MAX);
        assert_eq!(bench.done(MERGED_BLOCKS_MAX).len(), 8);
        assert!(bench.queue.is_idle());
    }
}

#[test]
fn urgency_merges_what_comes_one_after_the_other_and_what_finds_no_place() {
    let mut bench = Bench::new(QueueKind::Urgency, BUSY + 4, 4);
    let all = (0..BUSY as u64).collect::<Vec<_>>();
    all.iter().for_each(|&id| bench.write(id, id));
    assert_eq!(bench.popped(), all, "the device had too little to do");
    (100..103).for_each(|id| bench.write(id, id));
    assert_eq!(bench.popped(), [100]);
    // It has gone: nothing goes on with it. The last one goes on with one that waits, but not with what came last.
    [(110, 103), (111, 200), (112, 104)].into_iter().for_each(|(id, block)| bench.write(id, block));
    assert_eq!(bench.popped(), [110, 111, 112]);
    // No place is left.
    [(120, 300), (121, 400), (122, 301)].into_iter().for_each(|(id, block)| bench.write(id, block));
    assert_eq!(bench.popped(), [0; 0]);
    assert_eq!([100, 110, 111, 112].map(|id| bench.done(id).len()), [3, 1, 1, 1]);
    assert_eq!(bench.popped(), [120, 121]);
    assert_eq!([120, 121].map(|id| bench.done(id).len()), [2, 1]);
}

#[test]
fn urgency_makes_nothing_long() {
    let limits = Limits { atoms: BLOCKS * BLOCK, depth: 1, op_atoms: 8 * JOINED_ATOMS_MAX, discards: true };
    for kind in [QueueKind::Urgency, QueueKind::Noop] {
        let mut bench = Bench::new(kind, 1, 1);
        bench.queue = Queue::new(kind, limits, Lanes::new(1, limits.atoms), 1);
        let blocks = 4 * JOINED_ATOMS_MAX / BLOCK;
        // The first one has the place.
        bench.read(0, blocks + 1);
        assert_eq!(bench.popped(), [0]);
        (1..=blocks).for_each(|id| bench.read(id, id));
        bench.done(0);
        let first = bench.queue_next().expect("one waits");
        let parts = bench.done(first).len() as u64;
        assert_eq!(parts, if kind == QueueKind::Urgency { JOINED_ATOMS_MAX / BLOCK } else { blocks }, "{kind:?}");
    }
}

#[test]
fn a_bad_sector_fails_whoever_asked_for_it_and_no_neighbour() {
    let mut bench = Bench::new(QueueKind::Noop, 4, 1);
    (0..3).for_each(|id| bench.read(id, 10 + id));
    assert_eq!(bench.popped(), [0]);
    assert!(bench.fail(0).is_empty(), "nobody is told yet");
    assert_eq!(bench.popped(), [0, 1, 2], "one by one");
    assert!(bench.done(0)[0].result.is_ok() && bench.fail(1)[0].result.is_err() && bench.done(2)[0].result.is_ok());
    assert!(bench.queue.is_idle());
}

#[test]
fn time_in_the_queue_and_at_the_device_are_told_apart() {
    let mut bench = Bench::new(QueueKind::Noop, 1, 1);
    (0..2).for_each(|id| bench.read(id, 10 * id));
    bench.push(2, 50, Class::Fill);
    for id in 0..3 {
        assert_eq!(bench.popped(), [id]);
        bench.now = bench.now + Duration::from_millis(100);
        bench.done(id);
    }
    let times = bench.queue.times();
    let [(Class::Client, client), (Class::Fill, fill)] = &times[..] else { panic!("two classes: {times:?}") };
    assert_eq!((client.queue.count(), client.service.count(), fill.queue.count()), (2, 2, 1));
    let near = |found: Duration, millis: u64| (millis * 875..=millis * 1_125).contains(&(found.0 / 1_000));
    assert!(client.queue.percentile(0.5).0 < 1_000 && near(client.queue.percentile(1.0), 100), "{client:?}");
    assert!(near(fill.queue.percentile(1.0), 200) && near(fill.service.percentile(1.0), 100));
}

#[test]
fn reads_and_writes_jobs_and_classes_are_not_merged() {
    let mut bench = Bench::new(QueueKind::Noop, 100, 1);
    bench.read_of(1, 0, 10);
    bench.write(1, 11);
    bench.read_of(2, 2, 11);
    bench.push(3, 11, Class::Fill);
    assert_eq!(bench.popped(), [0, 1, 2, 3]);
}

#[test]
fn what_is_raised_goes_with_its_new_class() {
    for kind in [QueueKind::Urgency, QueueKind::Cfq, QueueKind::Ac, QueueKind::Lanes] {
        let mut bench = Bench::new(kind, 1, 1);
        bench.read(0, 0);
        assert_eq!(bench.queue_next(), Some(0));
        bench.push(1, 100, Class::Fill);
        bench.push(2, 200, Class::Fill);
        bench.read(3, 300);
        assert!(bench.queue.raise(bench.now, OpId(2), Class::Client) && !bench.queue.raise(bench.now, OpId(0), Class::Log));
        let order: Vec<u64> = (0..3)
            .map(|_| {
                let last = *bench.device.keys().next().unwrap();
                bench.done(last);
                bench.queue_next().unwrap()
            })
            .collect();
        assert!(order.iter().position(|&id| id == 2) < order.iter().position(|&id| id == 1), "{kind:?}: {order:?}");
    }
}

#[test]
fn a_flush_goes_before_what_is_scheduled() {
    for kind in QueueKind::ALL.into_iter().filter(|&kind| kind != QueueKind::Urgency) {
        let mut bench = Bench::new(kind, 2, 1);
        (0..4).for_each(|id| bench.read(id, 100 * id));
        bench.flush(9, Class::Log);
        assert_eq!(bench.queue_next(), Some(9), "{kind:?}");
    }
}
