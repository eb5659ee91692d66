//! What devices do to their users.

use super::*;
use crate::back::model::{Plain, Speed};
use crate::stamp::meaning;
use tidegate_engine::block::{Atoms, Block, Slot};
use tidegate_engine::cache::format::{Entry, PageBuilder, PageHead};
use tidegate_engine::op::Class;
use tidegate_engine::time::Duration;

fn geometry() -> Geometry {
    Geometry { block_atoms: 8, set_slots: 8, sets: 16, journal_pages: 16, volume_atoms: 512, range_entries: 16 }
}

fn cache() -> Device {
    let geometry = geometry();
    let limits = Limits { atoms: geometry.cache_atoms(), depth: 2, op_atoms: 64, discards: true };
    let contents = Contents::blank(geometry.data_start(), limits.atoms);
    Device::new(
        DeviceId::Cache,
        &geometry,
        contents,
        limits,
        Model::Plain(Plain::new(Speed::SSD, Chance::new(1, "model"))),
        Chance::new(1, "device"),
    )
}

fn data(slot: u64) -> Span {
    Span::new(geometry().data_start() + slot * 8, 8)
}

fn op(id: u64, action: Action<Stamps>) -> Op<Stamps> {
    Op { id: OpId(id), device: DeviceId::Cache, class: Class::Client, action }
}

fn write(number: u64, slot: u64) -> Action<Stamps> {
    Action::Write(Zone::Data, data(slot), [Stamps::written(number, slot * 8, 8)].into())
}

/// Starts and ends one operation.
fn run(device: &mut Device, id: u64, action: Action<Stamps>) -> Result<Answer<Stamps>, DeviceError> {
    device.start(Instant(0), op(id, action));
    let mut ended = Vec::new();
    while ended.is_empty() {
        device.advance(device.next().expect("it ends"), &mut ended);
    }
    let Some(Ended::Done(done)) = ended.pop() else { panic!("late") };
    assert_eq!((done.id, ended.len()), (OpId(id), 0));
    done.result
}

fn holds(device: &Device, slot: u64) -> u64 {
    meaning(device.visible().stamp(data(slot).start)).map_or(0, |(write, _)| write)
}

fn hurt(device: &mut Device) -> Vec<u64> {
    let stamps = |harm| match harm {
        Harm::Slots(stamps) => stamps,
        Harm::Unread(_) => Vec::new(),
    };
    device.take_harm().into_iter().flat_map(stamps).filter_map(meaning).map(|(write, _)| write).collect()
}

#[test]
fn a_misdirected_write_takes_another_slot_and_hurts_both() {
    let mut device = cache();
    run(&mut device, 1, write(1, 3)).expect("a write");
    run(&mut device, 2, write(2, 5)).expect("a write");
    device.fail_next(Some(Zone::Data), Fault::Misdirected(data(5).start));
    run(&mut device, 3, write(3, 3)).expect("it says that all is well");
    assert_eq!((holds(&device, 3), holds(&device, 5)), (1, 3));
    let hurt = hurt(&mut device);
    assert!(hurt.contains(&3) && hurt.contains(&2) && !hurt.contains(&1));
}

#[test]
fn a_bad_atom_stays_bad_until_it_is_written() {
    let mut device = cache();
    run(&mut device, 1, write(1, 3)).expect("a write");
    device.fail_next(Some(Zone::Data), Fault::Bad);
    for id in 2..4 {
        assert_eq!(run(&mut device, id, Action::Read(Zone::Data, data(3))).err(), Some(DeviceError::Medium));
    }
    assert!(hurt(&mut device).contains(&1));
    run(&mut device, 4, write(4, 3)).expect("a write");
    run(&mut device, 5, Action::Read(Zone::Data, data(3))).expect("a read");
}

#[test]
fn a_stuck_operation_is_late_first_and_ends_well() {
    let mut device = cache();
    device.fail_next(Some(Zone::Data), Fault::Stuck(Duration::from_secs(60)));
    device.start(Instant(0), op(1, write(1, 0)));
    let mut ended = Vec::new();
    assert_eq!(device.next(), Some(Instant(0) + LATE));
    device.advance(Instant(0) + LATE, &mut ended);
    assert!(matches!(ended[..], [Ended::Late(OpId(1))]));
    assert_eq!((holds(&device, 0), device.next()), (0, Some(Instant(60_000_000_000))));
    device.advance(Instant(60_000_000_000), &mut ended);
    assert!(matches!(&ended[1..], [Ended::Done(Done { id: OpId(1), result: Ok(_) })]));
    assert_eq!(holds(&device, 0), 1);
}

/// A journal page that says PUT of `slot`, and that everything up to page `durable` was durable.
fn page(seq: u64, durable: u64, slot: Option<u32>) -> Action<Stamps> {
    let mut builder = PageBuilder::new(&geometry());
    if let Some(slot) = slot {
        let entry = Entry { block: Block(0), valid: Atoms::first(8), crc: 0 };
        assert_eq!(builder.put(Slot { set: 0, slot }, 1, true, false, &[entry]), 1);
    }
    let head = PageHead { epoch: 1, seq, durable, previous: 0, group_offset: 0, records: 0, first: true, last: true };
    let (bytes, _) = builder.seal(FormatId::default(), seq as u32 % 16, PageHead { records: builder.records(), ..head });
    Action::Write(Zone::Journal, geometry().journal_page(seq as u32 % 16), [Stamps::from_bytes(&bytes)].into())
}

#[test]
fn a_slot_is_settled_when_a_durable_page_tells_that_its_record_is_durable() {
    let mut device = cache();
    device.watch_settling(FormatId::default());
    assert!(device.is_settled(data(0)), "nobody needs what was never written");
    let steps =
        [(write(1, 0), false), (page(1, 0, Some(0)), false), (Action::Flush, false), (page(2, 1, None), false), (Action::Flush, true)];
    for (id, (action, settled)) in (1..).zip(steps) {
        let told = format!("{action:?}");
        run(&mut device, id, action).expect("it ends well");
        assert_eq!(device.is_settled(data(0)), settled, "after {told}");
    }
    run(&mut device, 99, write(2, 0)).expect("a write");
    assert!(!device.is_settled(data(0)));
}

#[test]
fn what_is_in_flight_at_a_crash_may_have_landed() {
    let mut seen = [false; 2];
    for seed in 0..32 {
        let mut device = cache();
        device.start(Instant(0), op(1, write(1, 0)));
        let chance = &mut Chance::new(seed, "crash");
        for after in [device.after_power_cut(Instant(0), &Survive::Random, chance), device.after_kill(&Survive::Random, chance)] {
            seen[holds(&after, 0) as usize] = true;
            assert_eq!(after.in_flight(), 0);
        }
    }
    assert_eq!(seen, [true; 2]);
}

#[test]
fn a_killed_users_writes_stay_visible_and_volatile() {
    let mut device = cache();
    run(&mut device, 1, write(1, 0)).expect("a write");
    let chance = &mut Chance::new(1, "crash");
    let killed = device.after_kill(&Survive::None, chance);
    assert_eq!(holds(&killed, 0), 1);
    assert_eq!(holds(&killed.after_power_cut(Instant(0), &Survive::None, chance), 0), 0);
}

#[test]
#[should_panic(expected = "more in flight than the depth")]
fn the_depth_is_asserted() {
    let mut device = cache();
    for slot in 0..3 {
        device.start(Instant(0), op(slot, write(1, slot)));
    }
}

#[test]
#[should_panic(expected = "which is in flight")]
fn operations_in_flight_never_overlap() {
    let mut device = cache();
    device.start(Instant(0), op(1, Action::Read(Zone::Data, data(0))));
    device.start(Instant(0), op(2, write(1, 0)));
}

#[test]
#[should_panic(expected = "not in Span")]
fn an_access_lies_in_the_zone_that_it_names() {
    let mut device = cache();
    device.start(Instant(0), op(1, Action::Read(Zone::Journal, data(0))));
}
