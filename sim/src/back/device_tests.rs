//! What devices do to their users.

use super::*;
use crate::stamp::meaning;
use tidegate_engine::op::Class;

fn geometry() -> Geometry {
    Geometry { block_atoms: 8, set_slots: 8, sets: 16, journal_pages: 16, volume_atoms: 512, range_entries: 16 }
}

fn cache() -> Device {
    let geometry = geometry();
    let limits = Limits { atoms: geometry.cache_atoms(), depth: 2, op_atoms: 64 };
    let contents = Contents::blank(geometry.data_start(), limits.atoms);
    Device::new(DeviceId::Cache, &geometry, contents, limits, Speed::SSD, Chance::new(1, "device"))
}

fn data(slot: u64) -> Span {
    Span::new(geometry().data_start() + slot * 8, 8)
}

fn op(id: u64, action: Action<Stamps>) -> Op<Stamps> {
    Op { id: OpId(id), device: DeviceId::Cache, class: Class::Client, action }
}

fn write(number: u64, slot: u64) -> Action<Stamps> {
    Action::Write(Zone::Data, data(slot), vec![Stamps::written(number, slot * 8, 8)])
}

/// Starts and ends one operation.
fn run(device: &mut Device, id: u64, action: Action<Stamps>) -> Result<Answer<Stamps>, DeviceError> {
    device.start(Instant(0), op(id, action));
    device.finish(OpId(id)).result
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
    let schedule = device.start(Instant(0), op(1, write(1, 0))).expect("not held");
    assert_eq!((schedule.done, schedule.late), (Instant(60_000_000_000), Some(Instant(0) + LATE)));
    assert_eq!(holds(&device, 0), 0);
    device.finish(OpId(1)).result.expect("a write");
    assert_eq!(holds(&device, 0), 1);
}

#[test]
fn places_settle_when_the_log_knows_that_they_are_durable() {
    let mut device = cache();
    let page = |place| Action::Write(Zone::Journal, geometry().journal_page(place), vec![Stamps::zero(8)]);
    run(&mut device, 1, write(1, 0)).expect("a write");
    for round in 0..SETTLING_FLUSHES as u64 {
        assert!(!device.is_settled(data(0)), "after {round} flushes");
        run(&mut device, 10 + 3 * round, page(round as u32)).expect("a page");
        run(&mut device, 11 + 3 * round, Action::Flush).expect("a flush");
        // A flush without a new page tells the log nothing.
        run(&mut device, 12 + 3 * round, Action::Flush).expect("a flush");
    }
    assert!(device.is_settled(data(0)));
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
        for after in [device.after_power_cut(&Survive::Random, chance), device.after_kill(&Survive::Random, chance)] {
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
    assert_eq!(holds(&killed.after_power_cut(&Survive::None, chance), 0), 0);
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
