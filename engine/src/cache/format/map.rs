//! State maps: what a checkpoint says of every set, and the range table. Checkpoint c is in area c mod 2, so the one before it stays
//! whole until the next, and one damaged map is survivable.
//!
//! ```text
//! head:  0 seal 28 | 28 page 4 | 32 checkpoint 8 | 40 ranges in all pages 4 (sets: 0) | 44 records here 2 | 46 zero 18
//! set:   0 life, state in the top two bits 8 | 8 seq, 16 epoch of SEAL's page 8 + 8 | 24 live bits | dirty bits
//! range: 0 block 6 | 6 kind 1 | 7 half 1 | 8 blocks, mask or bitmap 8
//! ```

use super::header::EntryCodec;
use super::seal::{self, HEAD_BYTES, Magic, PAGE, check, get_u16, get_u32, get_u48, get_u64, put_u16, put_u32, put_u48, put_u64};
use super::{Bits, FormatId, Geometry, NUMBER_END, Position, READ_END, Unsealed};
use crate::block::{Atoms, Block};

const SETS_MAGIC: Magic = *b"TIDM";
const RANGES_MAGIC: Magic = *b"TIDR";
/// Bytes of a set's record before its bitmaps.
const SET_BYTES: usize = 24;
/// Bytes of a range.
pub(super) const RANGE_BYTES: usize = 16;

/// What a set is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetState {
    /// No slot is live; the next life may begin.
    Free,
    /// Taking slots: what it holds is in the journal only.
    Open,
    /// Described by its header.
    Sealed,
    /// Mapped to one origin set, slot by slot; what it holds is in the journal only.
    Placed,
}

/// What a checkpoint says of one set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MapSet {
    pub life: u64,
    pub state: SetState,
    /// Of the page with this life's SEAL; default where there is none.
    pub sealed: Position,
    /// Slots whose contents count.
    pub live: Bits,
    /// Of these the ones newer than the origin.
    pub dirty: Bits,
}

/// How a range of blocks reads as zeros.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RangeKind {
    /// It stays allocated.
    Zero,
    /// It may become a hole.
    Trim,
}

/// An entry of the range table: newer than the origin, older than any live slot of its blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Range {
    /// Blocks that read as zeros.
    Zeroed { block: Block, blocks: u64, kind: RangeKind },
    /// These atoms of the block cannot be had any more.
    Lost { block: Block, atoms: Atoms },
    /// No atom of these blocks can be had any more: bit i is block `first` + i, of [`LOST_BLOCKS`].
    LostBlocks { first: Block, blocks: u64 },
}

/// Blocks that one [`Range::LostBlocks`] tells of, the first of them a multiple of so many.
pub const LOST_BLOCKS: u64 = 64;

pub(super) const fn sets_per_page(set_slots: u32) -> u32 {
    ((PAGE - HEAD_BYTES) / set_bytes(set_slots)) as u32
}

const fn set_bytes(set_slots: u32) -> usize {
    SET_BYTES + 2 * 8 * Bits::words_for(set_slots)
}

/// Ranges on each page of the range table (on the last one perhaps fewer): 252, or 126 where a lost mask takes two places.
pub fn ranges_per_page(geometry: &Geometry) -> u32 {
    ((PAGE - HEAD_BYTES) / RANGE_BYTES / lost_places(geometry)) as u32
}

/// One page of sets. `page` is its number in the map (0 to `map_pages`), `sets` exactly the sets it describes.
pub fn encode_sets(geometry: &Geometry, format: FormatId, area: u32, page: u32, number: u64, sets: &[MapSet]) -> Vec<u8> {
    assert_eq!(sets.len(), sets_on(geometry, page), "a page describes exactly its sets");
    let mut bytes = vec![0; PAGE];
    put_head(&mut bytes, page, number, 0, sets.len());
    for (set, record) in sets.iter().zip(bytes[HEAD_BYTES..].chunks_exact_mut(set_bytes(geometry.set_slots))) {
        encode_set(set, geometry.set_slots, record);
    }
    seal::seal(&mut bytes, SETS_MAGIC, format, geometry.map_page(area, page).start);
    bytes
}

/// The sets of one page of checkpoint `number`; a page of another checkpoint is `Field("checkpoint number")`.
pub fn decode_sets(
    bytes: &[u8],
    geometry: &Geometry,
    format: FormatId,
    area: u32,
    page: u32,
    number: u64,
) -> Result<Vec<MapSet>, Unsealed> {
    seal::unseal(bytes, PAGE, SETS_MAGIC, format, geometry.map_page(area, page).start)?;
    let (total, count) = get_head(bytes, page, number)?;
    check(total == 0, "bytes without a meaning")?;
    check(count == sets_on(geometry, page), "count of sets")?;
    let (records, rest) = bytes[HEAD_BYTES..].split_at(count * set_bytes(geometry.set_slots));
    seal::zeros(rest)?;
    records.chunks_exact(set_bytes(geometry.set_slots)).map(|record| decode_set(record, geometry.set_slots)).collect()
}

/// How many sets a page of the map describes.
fn sets_on(geometry: &Geometry, page: u32) -> usize {
    assert!(page < geometry.map_pages(), "page {page} is not one of sets");
    let per_page = geometry.map_sets_per_page();
    per_page.min(geometry.sets - page * per_page) as usize
}

fn encode_set(set: &MapSet, slots: u32, record: &mut [u8]) {
    assert!(set.life < NUMBER_END, "a life beyond the last one");
    assert!(set.live.fits(slots) && set.dirty.fits(slots), "bits beyond the set");
    assert!(set.live.contains(&set.dirty), "a dirty slot that is not live");
    let state = match set.state {
        SetState::Free => 0,
        SetState::Open => 1,
        SetState::Sealed => 2,
        SetState::Placed => 3,
    };
    assert!(set.state != SetState::Free || set.live.is_empty(), "a free set with a live slot");
    put_u64(record, 0, set.life | state << 62);
    put_u64(record, 8, set.sealed.seq);
    put_u64(record, 16, set.sealed.epoch);
    let (live, dirty) = record[SET_BYTES..].split_at_mut(8 * Bits::words_for(slots));
    put_bits(&set.live, live);
    put_bits(&set.dirty, dirty);
}

fn decode_set(record: &[u8], slots: u32) -> Result<MapSet, Unsealed> {
    let life = get_u64(record, 0);
    let state = match life >> 62 {
        0 => SetState::Free,
        1 => SetState::Open,
        2 => SetState::Sealed,
        _ => SetState::Placed,
    };
    let (live, dirty) = record[SET_BYTES..].split_at(8 * Bits::words_for(slots));
    let (live, dirty) = (get_bits(live, slots)?, get_bits(dirty, slots)?);
    check(live.contains(&dirty), "dirty bits")?;
    check(state != SetState::Free || live.is_empty(), "live bits")?;
    let sealed = Position { seq: get_u64(record, 8), epoch: get_u64(record, 16) };
    let life = life & (NUMBER_END - 1);
    check(life < READ_END, "life")?;
    Ok(MapSet { life, state, sealed, live, dirty })
}

fn put_bits(bits: &Bits, place: &mut [u8]) {
    for (word, bytes) in bits.words().zip(place.chunks_exact_mut(8)) {
        bytes.copy_from_slice(&word.to_le_bytes());
    }
}

fn get_bits(bytes: &[u8], slots: u32) -> Result<Bits, Unsealed> {
    let mut bits = Bits::new(slots);
    bits.fill_words(bytes.chunks_exact(8).map(|word| get_u64(word, 0)));
    check(bits.fits(slots), "bits beyond the set")?;
    Ok(bits)
}

/// One page of the range table. `page` is its number in the map (`map_pages` and above); `total` are the ranges in all pages, `entries`
/// exactly the ones on this page: the first page takes [`ranges_per_page`], the next one as many, and so on.
pub fn encode_ranges(geometry: &Geometry, format: FormatId, area: u32, page: u32, number: u64, total: u32, entries: &[Range]) -> Vec<u8> {
    assert!(total <= geometry.range_entries, "more ranges than the table holds");
    assert_eq!(entries.len(), ranges_on(geometry, page, total), "a page holds exactly its ranges");
    let mut bytes = vec![0; PAGE];
    put_head(&mut bytes, page, number, total, entries.len());
    let mut at = HEAD_BYTES;
    for entry in entries {
        at += match *entry {
            Range::Zeroed { block, blocks, kind } => encode_zeroed(geometry, block, blocks, Some(kind), &mut bytes[at..]),
            Range::Lost { block, atoms } => encode_lost(geometry, block, atoms, &mut bytes[at..]),
            Range::LostBlocks { first, blocks } => encode_lost_blocks(geometry, first, blocks, &mut bytes[at..]),
        };
    }
    seal::seal(&mut bytes, RANGES_MAGIC, format, geometry.map_page(area, page).start);
    bytes
}

/// How many ranges there are in all pages, and the ones of this page; a page of another checkpoint is `Field("checkpoint number")`.
pub fn decode_ranges(
    bytes: &[u8],
    geometry: &Geometry,
    format: FormatId,
    area: u32,
    page: u32,
    number: u64,
) -> Result<(u32, Vec<Range>), Unsealed> {
    seal::unseal(bytes, PAGE, RANGES_MAGIC, format, geometry.map_page(area, page).start)?;
    let (total, count) = get_head(bytes, page, number)?;
    check(total <= geometry.range_entries, "count of all ranges")?;
    check(count == ranges_on(geometry, page, total), "count of ranges")?;
    let mut rest = &bytes[HEAD_BYTES..];
    let mut entries = Vec::with_capacity(count);
    for _ in 0..count {
        let (entry, used) = match rest[6] {
            KIND_LOST => {
                let (block, atoms) = decode_lost(geometry, rest)?;
                (Range::Lost { block, atoms }, lost_places(geometry) * RANGE_BYTES)
            }
            KIND_LOST_BLOCKS => {
                let (first, blocks) = decode_lost_blocks(geometry, rest)?;
                (Range::LostBlocks { first, blocks }, RANGE_BYTES)
            }
            _ => {
                let (block, blocks, kind) = decode_zeroed(geometry, rest)?;
                (Range::Zeroed { block, blocks, kind: kind.ok_or(Unsealed::Field("kind of a range"))? }, RANGE_BYTES)
            }
        };
        entries.push(entry);
        rest = &rest[used..];
    }
    seal::zeros(rest)?;
    Ok((total, entries))
}

/// How many of `total` ranges are on a page of the map.
fn ranges_on(geometry: &Geometry, page: u32, total: u32) -> usize {
    assert!(page >= geometry.map_pages(), "page {page} is not one of ranges");
    let before = u64::from(page - geometry.map_pages()) * u64::from(ranges_per_page(geometry));
    u64::from(total).saturating_sub(before).min(u64::from(ranges_per_page(geometry))) as usize
}

fn put_head(bytes: &mut [u8], page: u32, number: u64, total: u32, count: usize) {
    put_u32(bytes, 28, page);
    put_u64(bytes, 32, number);
    put_u32(bytes, 40, total);
    put_u16(bytes, 44, count as u16);
}

/// `total` and the count of records here.
fn get_head(bytes: &[u8], page: u32, number: u64) -> Result<(u32, usize), Unsealed> {
    check(get_u32(bytes, 28) == page, "page")?;
    check(get_u64(bytes, 32) == number, "checkpoint number")?;
    seal::zeros(&bytes[46..HEAD_BYTES])?;
    Ok((get_u32(bytes, 40), usize::from(get_u16(bytes, 44))))
}

// The code of a range's kind. UNZERO records, which take a range of either kind back, have none.
const KIND_NONE: u8 = 0;
const KIND_ZERO: u8 = 1;
const KIND_TRIM: u8 = 2;
const KIND_LOST: u8 = 3;
const KIND_LOST_BLOCKS: u8 = 4;

/// Places of 16 bytes that a lost range takes: a mask above 64 atoms is cut in halves.
pub(super) fn lost_places(geometry: &Geometry) -> usize {
    if geometry.block_atoms <= 64 { 1 } else { 2 }
}

/// Returns the bytes it took, as [`encode_lost`] does.
pub(super) fn encode_zeroed(geometry: &Geometry, block: Block, blocks: u64, kind: Option<RangeKind>, place: &mut [u8]) -> usize {
    assert!(zeroed_fits(geometry, block, blocks), "a range beyond the volume, or of nothing");
    let kind = match kind {
        None => KIND_NONE,
        Some(RangeKind::Zero) => KIND_ZERO,
        Some(RangeKind::Trim) => KIND_TRIM,
    };
    put_range(place, block, kind, 0, blocks);
    RANGE_BYTES
}

pub(super) fn decode_zeroed(geometry: &Geometry, record: &[u8]) -> Result<(Block, u64, Option<RangeKind>), Unsealed> {
    let kind = match record[6] {
        KIND_NONE => None,
        KIND_ZERO => Some(RangeKind::Zero),
        KIND_TRIM => Some(RangeKind::Trim),
        _ => return Err(Unsealed::Field("kind of a range")),
    };
    check(record[7] == 0, "half of a range")?;
    let (block, blocks) = (Block(get_u48(record, 0)), get_u64(record, 8));
    check(zeroed_fits(geometry, block, blocks), "range")?;
    Ok((block, blocks, kind))
}

fn zeroed_fits(geometry: &Geometry, block: Block, blocks: u64) -> bool {
    blocks > 0 && block.0.checked_add(blocks).is_some_and(|end| end <= geometry.blocks())
}

pub(super) fn encode_lost(geometry: &Geometry, block: Block, atoms: Atoms, place: &mut [u8]) -> usize {
    assert!(lost_fits(geometry, block, atoms), "lost atoms beyond the volume or the block, or none");
    for half in 0..lost_places(geometry) {
        put_range(&mut place[half * RANGE_BYTES..], block, KIND_LOST, half as u8, (atoms.0 >> (64 * half)) as u64);
    }
    lost_places(geometry) * RANGE_BYTES
}

/// `record` holds at least [`lost_places`] places.
pub(super) fn decode_lost(geometry: &Geometry, record: &[u8]) -> Result<(Block, Atoms), Unsealed> {
    let block = Block(get_u48(record, 0));
    let mut atoms = Atoms::NONE;
    for (half, place) in record.chunks_exact(RANGE_BYTES).take(lost_places(geometry)).enumerate() {
        check(place[6] == KIND_LOST, "kind of a range")?;
        check(usize::from(place[7]) == half && get_u48(place, 0) == block.0, "half of a range")?;
        atoms.0 |= u128::from(get_u64(place, 8)) << (64 * half);
    }
    check(lost_fits(geometry, block, atoms), "lost atoms")?;
    Ok((block, atoms))
}

fn lost_fits(geometry: &Geometry, block: Block, atoms: Atoms) -> bool {
    !atoms.is_empty() && EntryCodec::new(geometry).fits(block, atoms)
}

fn encode_lost_blocks(geometry: &Geometry, first: Block, blocks: u64, place: &mut [u8]) -> usize {
    assert!(lost_blocks_fit(geometry, first, blocks), "lost blocks beyond the volume, or none");
    put_range(place, first, KIND_LOST_BLOCKS, 0, blocks);
    RANGE_BYTES
}

fn decode_lost_blocks(geometry: &Geometry, record: &[u8]) -> Result<(Block, u64), Unsealed> {
    check(record[7] == 0, "half of a range")?;
    let (first, blocks) = (Block(get_u48(record, 0)), get_u64(record, 8));
    check(lost_blocks_fit(geometry, first, blocks), "lost blocks")?;
    Ok((first, blocks))
}

fn lost_blocks_fit(geometry: &Geometry, first: Block, blocks: u64) -> bool {
    let last = u64::from(63 - blocks.leading_zeros().min(63));
    blocks != 0 && first.0.is_multiple_of(LOST_BLOCKS) && first.0 + last < geometry.blocks()
}

fn put_range(place: &mut [u8], block: Block, kind: u8, half: u8, value: u64) {
    put_u48(place, 0, block.0);
    place[6] = kind;
    place[7] = half;
    put_u64(place, 8, value);
}

#[cfg(test)]
mod tests {
    use super::super::testing::{self, FORMAT, geometries, small};
    use super::*;
    use proptest::prelude::*;

    fn map_set(geometry: &Geometry) -> impl Strategy<Value = MapSet> + use<> {
        let state = prop_oneof![Just(SetState::Free), Just(SetState::Open), Just(SetState::Sealed), Just(SetState::Placed)];
        let slots = geometry.set_slots;
        (0..READ_END, state, testing::position(), testing::bits(geometry), testing::bits(geometry)).prop_map(
            move |(life, state, sealed, live, dirty)| {
                let live = if state == SetState::Free { Bits::new(slots) } else { live };
                MapSet { life, state, sealed, dirty: live.intersection(&dirty), live }
            },
        )
    }

    fn range(geometry: &Geometry) -> impl Strategy<Value = Range> + use<> {
        let kind = prop_oneof![Just(RangeKind::Zero), Just(RangeKind::Trim)];
        let blocks = geometry.blocks();
        let zeroed = (0..blocks, 1..=blocks, kind).prop_map(move |(block, length, kind)| Range::Zeroed {
            block: Block(block),
            blocks: length.min(blocks - block),
            kind,
        });
        let lost = testing::atoms(geometry).prop_map(|(block, atoms)| Range::Lost { block, atoms });
        let lost_blocks = (0..blocks.div_ceil(LOST_BLOCKS), any::<u64>()).prop_map(move |(of, bits)| {
            let first = of * LOST_BLOCKS;
            let fitting = u64::MAX >> (LOST_BLOCKS - (blocks - first).min(LOST_BLOCKS));
            Range::LostBlocks { first: Block(first), blocks: (bits & fitting).max(1) }
        });
        prop_oneof![zeroed, lost, lost_blocks]
    }

    /// A geometry, one of its pages of sets, and the sets on it.
    fn set_page() -> impl Strategy<Value = (Geometry, u32, Vec<MapSet>)> {
        let page = geometries().prop_flat_map(|geometry| (Just(geometry), 0..geometry.map_pages()));
        page.prop_flat_map(|(geometry, page)| {
            let sets = proptest::collection::vec(map_set(&geometry), sets_on(&geometry, page));
            (Just(geometry), Just(page), sets)
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn a_page_of_sets_reads_as_it_was_written((geometry, page, sets) in set_page(), area in 0..2u32, number in any::<u64>()) {
            let bytes = encode_sets(&geometry, FORMAT, area, page, number, &sets);
            prop_assert_eq!(decode_sets(&bytes, &geometry, FORMAT, area, page, number), Ok(sets));
            let another = decode_sets(&bytes, &geometry, FORMAT, area, page, number ^ 2);
            prop_assert_eq!(another, Err(Unsealed::Field("checkpoint number")));
            prop_assert_eq!(decode_sets(&bytes, &geometry, FORMAT, 1 - area, page, number), Err(Unsealed::Address));
            prop_assert_eq!(decode_sets(&bytes, &geometry, FormatId([1; 16]), area, page, number), Err(Unsealed::Format));
        }

        #[test]
        fn the_range_table_reads_as_it_was_written(
            (geometry, ranges) in geometries().prop_flat_map(|geometry| (Just(geometry), proptest::collection::vec(range(&geometry), 0..=300))),
            area in 0..2u32,
            number in any::<u64>(),
        ) {
            let (first, total) = (geometry.map_pages(), ranges.len() as u32);
            let mut chunks = ranges.chunks(ranges_per_page(&geometry) as usize);
            for page in first..first + geometry.range_pages() {
                let entries = chunks.next().unwrap_or(&[]);
                let bytes = encode_ranges(&geometry, FORMAT, area, page, number, total, entries);
                prop_assert_eq!(decode_ranges(&bytes, &geometry, FORMAT, area, page, number), Ok((total, entries.to_vec())));
                let another = decode_ranges(&bytes, &geometry, FORMAT, area, page, number ^ 2);
                prop_assert_eq!(another, Err(Unsealed::Field("checkpoint number")));
            }
            prop_assert_eq!(chunks.next(), None);
        }

        /// What is not refused can be written again, byte for byte: no two readings of one page.
        #[test]
        fn a_scribbled_and_sealed_page_of_sets_is_refused_or_means_one_thing(
            (geometry, page, sets) in set_page(), scribbles in testing::scribbles()
        ) {
            let mut bytes = encode_sets(&geometry, FORMAT, 0, page, 9, &sets);
            scribbles.iter().for_each(|&(at, byte)| bytes[at] = byte);
            seal::seal(&mut bytes, SETS_MAGIC, FORMAT, geometry.map_page(0, page).start);
            if let Ok(read) = decode_sets(&bytes, &geometry, FORMAT, 0, page, 9) {
                prop_assert_eq!(encode_sets(&geometry, FORMAT, 0, page, 9, &read), bytes);
            }
        }

        #[test]
        fn a_scribbled_and_sealed_page_of_ranges_is_refused_or_means_one_thing(
            (geometry, ranges) in geometries().prop_flat_map(|geometry| (Just(geometry), proptest::collection::vec(range(&geometry), 0..=126))),
            scribbles in testing::scribbles(),
        ) {
            let page = geometry.map_pages();
            let mut bytes = encode_ranges(&geometry, FORMAT, 0, page, 9, ranges.len() as u32, &ranges);
            scribbles.iter().for_each(|&(at, byte)| bytes[at] = byte);
            seal::seal(&mut bytes, RANGES_MAGIC, FORMAT, geometry.map_page(0, page).start);
            if let Ok((total, read)) = decode_ranges(&bytes, &geometry, FORMAT, 0, page, 9) {
                prop_assert_eq!(encode_ranges(&geometry, FORMAT, 0, page, 9, total, &read), bytes);
            }
        }

        #[test]
        fn any_bytes_are_refused(bytes in proptest::collection::vec(any::<u8>(), 4096)) {
            let geometry = small(8, 256);
            prop_assert!(decode_sets(&bytes, &geometry, FORMAT, 0, 0, 1).is_err());
            prop_assert!(decode_ranges(&bytes, &geometry, FORMAT, 0, geometry.map_pages(), 1).is_err());
        }
    }

    /// Full pages of `small(128, 256)`: one of sets, one of ranges.
    fn full(number: u64) -> [Vec<u8>; 2] {
        let geometry = small(128, 256);
        let words = Bits::from_words(&[number, !0, 0, 1]);
        let set = MapSet { life: number, state: SetState::Open, sealed: Position::default(), live: words.clone(), dirty: words };
        let lost = Range::Lost { block: Block(number), atoms: Atoms(u128::MAX) };
        [
            encode_sets(&geometry, FORMAT, 1, 0, 3, &vec![set; 45]),
            encode_ranges(&geometry, FORMAT, 1, geometry.map_pages(), 3, 126, &[lost; 126]),
        ]
    }

    fn decodes(bytes: &[u8], kind: usize) -> Result<(), Unsealed> {
        let geometry = small(128, 256);
        match kind {
            0 => decode_sets(bytes, &geometry, FORMAT, 1, 0, 3).map(|_| ()),
            _ => decode_ranges(bytes, &geometry, FORMAT, 1, geometry.map_pages(), 3).map(|_| ()),
        }
    }

    #[test]
    fn every_flipped_bit_of_a_map_is_refused() {
        for (kind, page) in full(5).iter().enumerate() {
            testing::refuses_every_flip(page, |bytes| decodes(bytes, kind));
        }
    }

    #[test]
    fn a_map_page_torn_at_any_512_bytes_is_refused() {
        for (kind, (older, newer)) in full(5).iter().zip(&full(6)).enumerate() {
            testing::refuses_every_tear(older, newer, |bytes| decodes(bytes, kind));
        }
    }

    #[test]
    fn an_impossible_field_of_a_map_is_refused() {
        let geometry = small(8, 8);
        let (live, dirty) = (Bits::from_words(&[0b110]), Bits::from_words(&[0b100]));
        let set = MapSet { life: 7, state: SetState::Sealed, sealed: Position::default(), live, dirty };
        testing::refuses_forgeries(
            &encode_sets(&geometry, FORMAT, 1, 0, 3, &vec![set; 70]),
            |bytes| decode_sets(bytes, &geometry, FORMAT, 1, 0, 3),
            &[
                (28, &[1], "page"),
                (32, &[1], "checkpoint number"),
                (40, &[1], "bytes without a meaning"),
                (44, &[69], "count of sets"),
                (44, &[0xff, 0xff], "count of sets"),
                (46, &[1], "bytes without a meaning"),
                (70, &[0xff, 0xbf], "life"),
                (71, &[0], "live bits"),
                (88, &[0b010], "dirty bits"),
                (89, &[1], "bits beyond the set"),
                (97, &[1], "bits beyond the set"),
            ],
        );

        let zeroed = Range::Zeroed { block: Block(1), blocks: 2, kind: RangeKind::Zero };
        let lost = Range::Lost { block: Block(geometry.blocks() - 1), atoms: Atoms(1) };
        // The volume has 12,501 blocks: 21 in the last row of 64.
        let lost_blocks = Range::LostBlocks { first: Block(12_480), blocks: 0b101 };
        testing::refuses_forgeries(
            &encode_ranges(&geometry, FORMAT, 1, 1, 3, 3, &[zeroed, lost, lost_blocks]),
            |bytes| decode_ranges(bytes, &geometry, FORMAT, 1, 1, 3),
            &[
                (28, &[2], "page"),
                (32, &[1], "checkpoint number"),
                (40, &[4], "count of ranges"),
                (40, &[0x2d, 1], "count of all ranges"),
                (40, &[0xff; 4], "count of all ranges"),
                (44, &[1], "count of ranges"),
                (44, &[0xff, 0xff], "count of ranges"),
                (70, &[0], "kind of a range"),
                (70, &[5], "kind of a range"),
                (70, &[4], "lost blocks"),
                (71, &[1], "half of a range"),
                (69, &[1], "range"),
                (72, &[0], "range"),
                (72, &[0xff; 8], "range"),
                (86, &[5], "kind of a range"),
                (87, &[1], "half of a range"),
                (88, &[0], "lost atoms"),
                (88, &[0b1000], "lost atoms"),
                (85, &[1], "lost atoms"),
                (103, &[1], "half of a range"),
                (96, &[0xc1], "lost blocks"),
                (104, &[0], "lost blocks"),
                (106, &[0x20], "lost blocks"),
                (101, &[1], "lost blocks"),
            ],
        );

        let geometry = small(128, 64);
        let lost = Range::Lost { block: Block(1), atoms: Atoms(u128::MAX) };
        testing::refuses_forgeries(
            &encode_ranges(&geometry, FORMAT, 1, 1, 3, 1, &[lost]),
            |bytes| decode_ranges(bytes, &geometry, FORMAT, 1, 1, 3),
            &[(80, &[2], "half of a range"), (86, &[2], "kind of a range"), (87, &[0], "half of a range")],
        );
    }

    #[test]
    fn sets_and_ranges_are_never_taken_for_one_another() {
        let [sets, ranges] = full(5);
        assert_eq!(decodes(&sets, 1), Err(Unsealed::Magic));
        assert_eq!(decodes(&ranges, 0), Err(Unsealed::Magic));
    }

    // The figures of docs/format.md.
    #[test]
    fn sizes_and_offsets_are_as_documented() {
        assert_eq!([8, 64, 256, 512, 2048].map(set_bytes), [40, 40, 88, 152, 536]);
        assert_eq!([8, 64, 256, 512, 2048].map(sets_per_page), [100, 100, 45, 26, 7]);
        assert_eq!([1, 8, 64, 128].map(|atoms| ranges_per_page(&small(atoms, 64))), [252, 252, 252, 126]);

        let geometry = small(8, 64);
        let (live, dirty) = (Bits::from_words(&[0xff00]), Bits::from_words(&[0x8100]));
        let sealed = Position { epoch: 0x5555, seq: 0x4444 };
        let set = MapSet { life: 0x2222, state: SetState::Sealed, sealed, live, dirty };
        let bytes = encode_sets(&geometry, FORMAT, 0, 0, 0x3333, &vec![set; 70]);
        assert_eq!(&bytes[..4], b"TIDM");
        assert_eq!(get_u64(&bytes, 16), geometry.map_page(0, 0).start);
        assert_eq!((get_u32(&bytes, 28), get_u64(&bytes, 32), get_u32(&bytes, 40), get_u16(&bytes, 44)), (0, 0x3333, 0, 70));
        assert_eq!((get_u64(&bytes, 64), get_u64(&bytes, 72), get_u64(&bytes, 80)), (2 << 62 | 0x2222, 0x4444, 0x5555));
        assert_eq!((get_u64(&bytes, 88), get_u64(&bytes, 96)), (0xff00, 0x8100));

        let trimmed = Range::Zeroed { block: Block(0x77), blocks: 0x88, kind: RangeKind::Trim };
        let lost = Range::Lost { block: Block(0x77), atoms: Atoms(0xa5) };
        let lost_blocks = Range::LostBlocks { first: Block(0x80), blocks: 0x0f00_0000_0000_0003 };
        let bytes = encode_ranges(&geometry, FORMAT, 0, 1, 0x3333, 3, &[trimmed, lost, lost_blocks]);
        assert_eq!(&bytes[..4], b"TIDR");
        assert_eq!((get_u32(&bytes, 28), get_u64(&bytes, 32), get_u32(&bytes, 40), get_u16(&bytes, 44)), (1, 0x3333, 3, 3));
        assert_eq!(bytes[64..80], [0x77, 0, 0, 0, 0, 0, 2, 0, 0x88, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(bytes[80..96], [0x77, 0, 0, 0, 0, 0, 3, 0, 0xa5, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(bytes[96..112], [0x80, 0, 0, 0, 0, 0, 4, 0, 3, 0, 0, 0, 0, 0, 0, 0x0f]);

        let geometry = small(128, 64);
        let lost = Range::Lost { block: Block(0x77), atoms: Atoms(0xbb << 64 | 0xaa) };
        let bytes = encode_ranges(&geometry, FORMAT, 0, 1, 0x3333, 1, &[lost]);
        assert_eq!(get_u16(&bytes, 44), 1);
        assert_eq!(bytes[64..80], [0x77, 0, 0, 0, 0, 0, 3, 0, 0xaa, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(bytes[80..96], [0x77, 0, 0, 0, 0, 0, 3, 1, 0xbb, 0, 0, 0, 0, 0, 0, 0]);
    }
}
