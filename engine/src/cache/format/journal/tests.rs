//! Journal pages: what is written is read, and nothing else is taken for a page.

use super::*;
use crate::cache::format::testing::{self, FORMAT, geometries, small};
use proptest::prelude::*;

const HEAD: PageHead = PageHead { epoch: 3, seq: 77, durable: 70, previous: 0xabcd, group_offset: 0, records: 0, first: true, last: false };

fn put(geometry: &Geometry) -> impl Strategy<Value = Record> + use<> {
    let slots = geometry.set_slots;
    let entries = proptest::collection::vec(testing::entry(geometry), 1..=slots.min(30) as usize);
    (0..geometry.sets, 0..slots, any::<u32>(), any::<bool>(), any::<bool>(), entries).prop_map(
        move |(set, slot, life, dirty, restate, entries)| {
            let slot = Slot { set, slot: slot.min(slots - entries.len() as u32) };
            Record::Put { slot, life, dirty, restate, entries }
        },
    )
}

fn record(geometry: &Geometry) -> impl Strategy<Value = Record> + use<> {
    let (sets, blocks) = (0..geometry.sets, geometry.blocks());
    let run = (0..blocks, 1..=blocks).prop_map(move |(block, length)| (Block(block), length.min(blocks - block)));
    let some = testing::bits(geometry).prop_map(|mut slots| {
        slots.set(3);
        slots
    });
    let kind = prop_oneof![Just(RangeKind::Zero), Just(RangeKind::Trim)];
    prop_oneof![
        4 => put(geometry),
        1 => (sets.clone(), 0..READ_END, any::<u8>()).prop_map(|(set, life, stream)| Record::Open { set, life, stream }),
        1 => (sets.clone(), any::<u32>()).prop_map(|(set, life)| Record::Seal { set, life }),
        1 => (sets.clone(), any::<u32>(), some.clone()).prop_map(|(set, life, slots)| Record::Clean { set, life, slots }),
        1 => (sets.clone(), any::<u32>(), some.clone()).prop_map(|(set, life, slots)| Record::Opened { set, life, slots }),
        1 => (sets, any::<u32>(), some).prop_map(|(set, life, slots)| Record::Kill { set, life, slots }),
        1 => (run.clone(), kind).prop_map(|((block, blocks), kind)| Record::Zero { block, blocks, kind }),
        1 => run.prop_map(|(block, blocks)| Record::Unzero { block, blocks }),
        1 => testing::atoms(geometry).prop_map(|(block, atoms)| Record::Lost { block, atoms }),
    ]
}

fn records() -> impl Strategy<Value = (Geometry, Vec<Record>)> {
    geometries().prop_flat_map(|geometry| (Just(geometry), proptest::collection::vec(record(&geometry), 0..40)))
}

fn head() -> impl Strategy<Value = PageHead> {
    (0..READ_END, 1..READ_END, any::<u64>(), any::<u32>(), 0..3u32, any::<bool>()).prop_map(
        |(epoch, seq, durable, previous, group_offset, last)| PageHead {
            epoch,
            seq,
            durable: durable % seq,
            previous,
            group_offset,
            records: 0,
            first: group_offset == 0,
            last,
        },
    )
}

/// As many of the records as fit on one page, and how many.
fn fill(geometry: &Geometry, records: &[Record]) -> (PageBuilder, usize) {
    let mut builder = PageBuilder::new(geometry);
    let pushed = records.iter().take_while(|record| builder.push(record)).count();
    (builder, pushed)
}

/// Records with PUTs that continue one another joined, as the builder joins them.
fn joined(records: &[Record]) -> Vec<Record> {
    let mut joined: Vec<Record> = Vec::new();
    for record in records {
        if let (
            Some(Record::Put { slot: a, life: b, dirty: c, restate: d, entries: before }),
            Record::Put { slot, life, dirty, restate, entries },
        ) = (joined.last_mut(), record)
            && (a.set, a.slot + before.len() as u32, *b, *c, *d) == (slot.set, slot.slot, *life, *dirty, *restate)
        {
            before.extend_from_slice(entries);
        } else {
            joined.push(record.clone());
        }
    }
    joined
}

proptest! {
    #[test]
    fn a_page_reads_as_it_was_written((geometry, records) in records(), head in head(), place in 0..16u32) {
        let (mut builder, pushed) = fill(&geometry, &records);
        let expected = joined(&records[..pushed]);
        prop_assert_eq!(usize::from(builder.records()), expected.len());
        prop_assert_eq!(builder.is_empty(), expected.is_empty());
        let (bytes, crc) = builder.seal(FORMAT, place, head);
        prop_assert!(builder.is_empty() && builder.room() == 4032);
        let head = PageHead { records: expected.len() as u16, ..head };
        prop_assert_eq!(decode(&bytes, &geometry, FORMAT, place), Ok(Page { head, crc, records: expected }));
        prop_assert_eq!(decode(&bytes, &geometry, FORMAT, (place + 1) % 16), Err(Unsealed::Address));
        prop_assert_eq!(decode(&bytes, &geometry, FormatId([1; 16]), place), Err(Unsealed::Format));
    }

    #[test]
    fn a_builder_is_as_new_after_each_page((geometry, records) in records()) {
        let (mut builder, pushed) = fill(&geometry, &records);
        builder.seal(FORMAT, 0, HEAD);
        records[..pushed].iter().for_each(|record| assert!(builder.push(record)));
        prop_assert_eq!(builder.seal(FORMAT, 1, HEAD), fill(&geometry, &records[..pushed]).0.seal(FORMAT, 1, HEAD));
    }

    #[test]
    fn a_page_sealed_for_another_place_says_the_same((geometry, records) in records(), head in head()) {
        let (bytes, crc) = fill(&geometry, &records).0.seal(FORMAT, 3, head);
        let (moved, moved_crc) = reseal(&bytes, &geometry, FORMAT, 9);
        prop_assert_eq!(moved_crc, crc);
        prop_assert_eq!(decode(&moved, &geometry, FORMAT, 9), decode(&bytes, &geometry, FORMAT, 3));
        prop_assert_eq!(decode(&moved, &geometry, FORMAT, 3), Err(Unsealed::Address));
        prop_assert_eq!(reseal(&moved, &geometry, FORMAT, 3).0, bytes);
    }

    /// Never a panic; and what is not refused can be written again with the same meaning.
    #[test]
    fn a_scribbled_and_sealed_page_is_refused_or_possible((geometry, records) in records(), scribbles in testing::scribbles()) {
        let (mut bytes, _) = fill(&geometry, &records).0.seal(FORMAT, 3, HEAD);
        scribbles.iter().for_each(|&(at, byte)| bytes[at] = byte);
        let (bytes, _) = reseal(&bytes, &geometry, FORMAT, 3);
        if let Ok(page) = decode(&bytes, &geometry, FORMAT, 3) {
            let (mut builder, pushed) = fill(&geometry, &page.records);
            prop_assert_eq!(pushed, page.records.len());
            let (again, _) = builder.seal(FORMAT, 3, page.head);
            prop_assert_eq!(decode(&again, &geometry, FORMAT, 3).unwrap().records, joined(&page.records));
        }
    }

    #[test]
    fn any_bytes_are_refused(bytes in proptest::collection::vec(any::<u8>(), 4096)) {
        prop_assert!(decode(&bytes, &small(8, 64), FORMAT, 0).is_err());
    }
}

fn entry(number: u32) -> Entry {
    Entry { block: Block(u64::from(number)), valid: Atoms(0xff), crc: number ^ 0x5555 }
}

#[test]
fn a_page_holds_334_entries_of_one_set() {
    let geometry = small(8, 512);
    assert_eq!(entries_per_page(&geometry), 334);
    let entries: Vec<Entry> = (0..500).map(entry).collect();
    let mut builder = PageBuilder::new(&geometry);
    assert_eq!(builder.put(Slot { set: 2, slot: 12 }, 5, true, false, &entries), 334);
    assert_eq!(builder.put(Slot { set: 2, slot: 346 }, 5, true, false, &entries[..1]), 0);
    assert!(!builder.push(&Record::Seal { set: 2, life: 5 }));
    let (bytes, _) = builder.seal(FORMAT, 0, HEAD);
    let record = Record::Put { slot: Slot { set: 2, slot: 12 }, life: 5, dirty: true, restate: false, entries: entries[..334].to_vec() };
    assert_eq!(decode(&bytes, &geometry, FORMAT, 0).unwrap().records, [record]);
}

#[test]
fn puts_one_by_one_become_one_record() {
    let geometry = small(8, 512);
    let mut builder = PageBuilder::new(&geometry);
    for slot in 0..334 {
        assert_eq!(builder.put(Slot { set: 2, slot }, 5, true, false, &[entry(slot)]), 1);
    }
    assert_eq!((builder.records(), builder.room()), (1, 8));
    assert_eq!(builder.put(Slot { set: 2, slot: 334 }, 5, true, false, &[entry(1)]), 0);
}

#[test]
fn a_put_of_another_set_life_flag_or_slot_is_a_record_of_its_own() {
    let next = Slot { set: 2, slot: 8 };
    for (slot, life, dirty, restate, records) in [
        (next, 5, true, false, 1),
        (Slot { set: 3, slot: 8 }, 5, true, false, 2),
        (Slot { set: 2, slot: 9 }, 5, true, false, 2),
        (next, 6, true, false, 2),
        (next, 5, false, false, 2),
        (next, 5, true, true, 2),
    ] {
        let mut builder = PageBuilder::new(&small(8, 64));
        builder.put(Slot { set: 2, slot: 7 }, 5, true, false, &[entry(1)]);
        builder.put(slot, life, dirty, restate, &[entry(2)]);
        assert_eq!(builder.records(), records);
    }
}

#[test]
fn a_record_between_two_puts_stays_between_them() {
    let geometry = small(8, 64);
    let put = |slot| Record::Put { slot: Slot { set: 2, slot }, life: 5, dirty: true, restate: false, entries: vec![entry(slot)] };
    let records = [put(0), Record::Unzero { block: Block(0), blocks: 1 }, put(1)];
    let (bytes, _) = fill(&geometry, &records).0.seal(FORMAT, 0, HEAD);
    assert_eq!(decode(&bytes, &geometry, FORMAT, 0).unwrap().records, records);
}

/// A page full of dissimilar records.
fn full(geometry: &Geometry, life: u32) -> Vec<u8> {
    let slots = Bits::from_words(&vec![u64::from(life); Bits::words_for(geometry.set_slots)]);
    let mut builder = PageBuilder::new(geometry);
    builder.push(&Record::Open { set: 1, life: 1 << 40, stream: 1 });
    builder.push(&Record::Kill { set: 1, life, slots: slots.clone() });
    builder.push(&Record::Clean { set: 1, life, slots });
    builder.push(&Record::Zero { block: Block(1), blocks: 2, kind: RangeKind::Trim });
    builder.push(&Record::Lost { block: Block(3), atoms: Atoms(1) });
    builder.push(&Record::Seal { set: 1, life });
    let entries: Vec<Entry> = (0..300).map(|number| entry(number ^ life)).collect();
    builder.put(Slot { set: 1, slot: 0 }, life, true, false, &entries);
    builder.seal(FORMAT, 4, HEAD).0
}

#[test]
fn every_flipped_bit_of_a_journal_page_is_refused() {
    let geometry = small(8, 512);
    testing::refuses_every_flip(&full(&geometry, 7), |bytes| decode(bytes, &geometry, FORMAT, 4));
}

#[test]
fn a_journal_page_torn_at_any_512_bytes_is_refused() {
    let geometry = small(8, 512);
    testing::refuses_every_tear(&full(&geometry, 7), &full(&geometry, 9), |bytes| decode(bytes, &geometry, FORMAT, 4));
}

#[test]
fn an_impossible_field_of_a_journal_page_is_refused() {
    let geometry = small(8, 64);
    let (block, blocks) = (Block(1), 2);
    let records = [
        Record::Put { slot: Slot { set: 2, slot: 62 }, life: 5, dirty: true, restate: false, entries: vec![entry(1), entry(2)] }, // 64
        Record::Open { set: 1, life: 3, stream: 1 },                                                                              // 104
        Record::Seal { set: 1, life: 3 },                                                                                         // 120
        Record::Kill { set: 1, life: 3, slots: Bits::from_words(&[6]) },                                                          // 136
        Record::Zero { block, blocks, kind: RangeKind::Trim },                                                                    // 160
        Record::Unzero { block, blocks },                                                                                         // 192
        Record::Lost { block, atoms: Atoms(1) },                                                                                  // 224
    ];
    testing::refuses_forgeries(
        &fill(&geometry, &records).0.seal(FORMAT, 4, HEAD).0,
        |bytes| decode(bytes, &geometry, FORMAT, 4),
        &[
            (28, &[1], "page in its group"),
            (39, &[0x40], "epoch"),
            (47, &[0x40], "seq"),
            (48, &[77], "durable"),
            (60, &[8], "kind of a record"),
            (60, &[0xff, 0xff], "kind of a record"),
            (60, &[6], "bytes without a meaning"),
            (62, &[0], "page in its group"),
            (62, &[5], "flags of a page"),
            (63, &[1], "bytes without a meaning"),
            // PUT
            (104, &[9], "kind of a record"),
            (65, &[4], "flags of a record"),
            (66, &[0], "slots"),
            (66, &[3], "slots"),
            (68, &[70], "set"),
            (68, &[0xff; 4], "set"),
            (72, &[0xff; 4], "slots"),
            (85, &[1], "block or valid atoms"),
            (86, &[0], "valid atoms"),
            (87, &[1], "bytes without a meaning"),
            // OPEN, SEAL
            (105, &[1], "flags of a record"),
            (107, &[1], "stream"),
            (115, &[0x40], "life"),
            (122, &[1], "SEAL"),
            (128, &[1], "SEAL"),
            // KILL
            (138, &[0], "slots"),
            (138, &[2], "slots"),
            (138, &[0xff, 0xff], "slots"),
            (144, &[1], "slots"),
            (144, &[64], "slots"),
            (144, &[0xc0, 0xff, 0xff, 0xff], "slots"),
            (152, &[0], "bits of slots"),
            // ZERO, UNZERO, LOST
            (162, &[2], "count of ranges"),
            (164, &[1], "set of a range"),
            (168, &[1], "set of a range"),
            (172, &[1], "set of a range"),
            (182, &[0], "kind of a range"),
            (182, &[3], "kind of a range"),
            (183, &[1], "half of a range"),
            (184, &[0], "range"),
            (184, &[0xff; 8], "range"),
            (214, &[1], "kind of a range"),
            (226, &[2], "count of ranges"),
            (246, &[1], "kind of a range"),
            (247, &[1], "half of a range"),
            (248, &[0], "lost atoms"),
            (249, &[1], "lost atoms"),
            (245, &[1], "lost atoms"),
        ],
    );
}

#[test]
fn a_count_beyond_the_page_or_the_set_is_refused() {
    let decoded = |geometry: &Geometry, record: Record, at: usize, bytes: &[u8]| {
        let (page, _) = fill(geometry, &[record]).0.seal(FORMAT, 0, HEAD);
        decode(&testing::forged(&page, at, bytes), geometry, FORMAT, 0).map(|_| ())
    };
    let put = Record::Put { slot: Slot { set: 2, slot: 0 }, life: 5, dirty: true, restate: false, entries: vec![entry(1)] };
    let too_many = 335u16.to_le_bytes();
    assert_eq!(decoded(&small(8, 2048), put, 66, &too_many), Err(Unsealed::Field("count of records")));
    let kill = Record::Kill { set: 2, life: 5, slots: Bits::from_words(&[1]) };
    assert_eq!(decoded(&small(8, 8), kill, 81, &[1]), Err(Unsealed::Field("bits of slots")));
}

#[test]
fn what_does_not_fit_changes_nothing() {
    let geometry = small(128, 64);
    let lost = Record::Lost { block: Block(1), atoms: Atoms(u128::MAX) };
    let mut builder = PageBuilder::new(&geometry);
    assert!(builder.push(&Record::Seal { set: 2, life: 5 }));
    let fitting = (0..100).take_while(|_| builder.push(&lost)).count();
    assert_eq!((fitting, builder.room()), (83, 32));
    assert_eq!(builder.put(Slot { set: 2, slot: 0 }, 5, true, false, &[Entry { valid: Atoms(1), ..entry(1) }; 2]), 0);
    assert!(builder.push(&Record::Unzero { block: Block(1), blocks: 1 }));
    let (bytes, _) = builder.seal(FORMAT, 0, HEAD);
    assert_eq!(decode(&bytes, &geometry, FORMAT, 0).unwrap().records.len(), 85);
}

#[test]
fn a_put_never_continues_one_of_the_page_before() {
    let geometry = small(8, 64);
    let mut builder = PageBuilder::new(&geometry);
    builder.put(Slot { set: 2, slot: 0 }, 5, true, false, &[entry(0)]);
    builder.seal(FORMAT, 0, HEAD);
    builder.put(Slot { set: 2, slot: 1 }, 5, true, false, &[entry(1)]);
    let (bytes, _) = builder.seal(FORMAT, 1, HEAD);
    let record = Record::Put { slot: Slot { set: 2, slot: 1 }, life: 5, dirty: true, restate: false, entries: vec![entry(1)] };
    assert_eq!(decode(&bytes, &geometry, FORMAT, 1).unwrap().records, [record]);
}

// The figures of docs/format.md.
#[test]
fn sizes_and_offsets_are_as_documented() {
    let entries = [1, 8, 16, 32, 64, 128].map(|atoms| entries_per_page(&small(atoms, 64)));
    assert_eq!(entries, [334, 334, 286, 251, 200, 143]);

    let geometry = small(8, 256);
    let mut slots = Bits::new(256);
    slots.set(130);
    let mut builder = PageBuilder::new(&geometry);
    builder.put(Slot { set: 0x11, slot: 0x22 }, 0x33, true, true, &[entry(0x44), entry(0x45)]);
    builder.push(&Record::Open { set: 0x11, life: 0x55_0000_0066, stream: 0x77 });
    builder.push(&Record::Kill { set: 0x11, life: 0x33, slots });
    builder.push(&Record::Zero { block: Block(0x88), blocks: 0x99, kind: RangeKind::Zero });
    let head =
        PageHead { epoch: 0x1111, seq: 0x2222, durable: 0x1110, previous: 0x3333, group_offset: 4, records: 0, first: false, last: true };
    let (bytes, crc) = builder.seal(FORMAT, 5, head);

    assert_eq!(&bytes[..4], b"TIDJ");
    assert_eq!(get_u64(&bytes, 16), geometry.journal_page(5).start);
    assert_eq!(crc, crc32c::crc32c(&bytes[28..]));
    assert_eq!((get_u32(&bytes, 28), get_u32(&bytes, 56)), (4, 0x3333));
    assert_eq!([32, 40, 48].map(|at| get_u64(&bytes, at)), [0x1111, 0x2222, 0x1110]);
    assert_eq!((get_u16(&bytes, 60), bytes[62], bytes[63]), (4, 2, 0));
    assert_eq!(bytes[64..80], [1, 3, 2, 0, 0x11, 0, 0, 0, 0x22, 0, 0, 0, 0x33, 0, 0, 0]);
    assert_eq!(bytes[80..92], [0x44, 0, 0, 0, 0, 0, 0xff, 0, 0x11, 0x55, 0, 0]);
    assert_eq!(bytes[104..120], [2, 0, 0x77, 0, 0x11, 0, 0, 0, 0x55, 0, 0, 0, 0x66, 0, 0, 0]);
    assert_eq!(bytes[120..144], [5, 0, 1, 0, 0x11, 0, 0, 0, 128, 0, 0, 0, 0x33, 0, 0, 0, 4, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(bytes[144..160], [6, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(bytes[160..176], [0x88, 0, 0, 0, 0, 0, 1, 0, 0x99, 0, 0, 0, 0, 0, 0, 0]);
    assert!(bytes[176..].iter().all(|&byte| byte == 0));
}
