//! Journal pages: what happened, in order. A page is written once, padded where a flush cuts it short, and never again with other bytes:
//! a rewrite that tears would take flushed records with it.
//!
//! ```text
//! head:   0 seal 28 | 28 page in its group 4 | 32 epoch 8 | 40 seq 8 | 48 durable 8 | 56 previous 4 | 60 records 2 | 62 flags 1 | 63 zero 1
//! record: 0 kind 1 | 1 flags 1 | 2 count 2 | 4 set 4 | 8 slot 4 | 12 life, low half 4 | 16 payload
//!   1 PUT     flags 1 dirty, 2 restate; count entries as in headers, for the slots from `slot`
//!   2 OPEN    count is the stream (255: a set under set placement), slot the high half of life
//!   3 SEAL
//!   4 CLEAN, 5 KILL, 9 OPENED   count words of 64 slots; bit 0 of the first one is `slot`
//!   6 ZERO, 7 UNZERO, 8 LOST    count ranges as in the range table (2 for a LOST mask in halves, else 1)
//! ```

use super::header::{EntryCodec, entry_bytes};
use super::map::{self, RANGE_BYTES, RangeKind, lost_places};
use super::seal::{self, HEAD_BYTES, Magic, PAGE, check, get_u16, get_u32, get_u64, put_u16, put_u32, put_u64};
use super::{Bits, Entry, FormatId, Geometry, NUMBER_END, READ_END, Unsealed};
use crate::block::{Atoms, Block, Slot};

const MAGIC: Magic = *b"TIDJ";
/// Bytes of a record before its payload.
const RECORD_BYTES: usize = 16;

// Flags of a page: it is the first, the last of its group.
const FIRST: u8 = 1;
const LAST: u8 = 2;
// Flags of a PUT.
const DIRTY: u8 = 1;
const RESTATE: u8 = 2;

const PUT: u8 = 1;
const OPEN: u8 = 2;
const SEAL: u8 = 3;
const CLEAN: u8 = 4;
const KILL: u8 = 5;
const ZERO: u8 = 6;
const UNZERO: u8 = 7;
const LOST: u8 = 8;
const OPENED: u8 = 9;

/// What the OPEN of a set under set placement names as its stream.
pub const PLACED: u8 = u8::MAX;

/// One thing that happened. `life` without more is the low half of the set's life: enough to tell it from its neighbours.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Record {
    /// These blocks are in these consecutive slots from now on, and nowhere else. `restate`: said again, nothing new.
    Put { slot: Slot, life: u32, dirty: bool, restate: bool, entries: Vec<Entry> },
    /// The set begins a life.
    Open { set: u32, life: u64, stream: u8 },
    /// The set takes no more slots; its headers name this page.
    Seal { set: u32, life: u32 },
    /// These slots hold what the origin holds.
    Clean { set: u32, life: u32, slots: Bits },
    /// These slots may be overwritten in place: their contents are newer than the origin, and no checksum is known of them until a PUT
    /// tells them again.
    Opened { set: u32, life: u32, slots: Bits },
    /// These slots do not count any more.
    Kill { set: u32, life: u32, slots: Bits },
    /// These blocks read as zeros; `kind` is Zero or Trim.
    Zero { block: Block, blocks: u64, kind: RangeKind },
    /// The origin holds these zeros itself.
    Unzero { block: Block, blocks: u64 },
    /// These atoms cannot be had any more.
    Lost { block: Block, atoms: Atoms },
}

/// What opens a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageHead {
    pub epoch: u64,
    /// Grows by one with every page, across epochs too.
    pub seq: u64,
    /// Every page up to this one was durable when this page was filled: a gap there is damage, not an end. Less than `seq`.
    pub durable: u64,
    /// [`Page::crc`] of the page before it in the chain; 0 for none.
    pub previous: u32,
    /// Which page of its group this is, from 0.
    pub group_offset: u32,
    pub records: u16,
    /// Of its group; exactly when `group_offset` is 0.
    pub first: bool,
    pub last: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Page {
    pub head: PageHead,
    /// CRC-32C of the contents, without place: what the next page names as `previous`.
    pub crc: u32,
    pub records: Vec<Record>,
}

/// Entries that a page holds in one PUT: 334 for blocks up to 8 atoms.
pub fn entries_per_page(geometry: &Geometry) -> u32 {
    ((PAGE - HEAD_BYTES - RECORD_BYTES) / entry_bytes(geometry.block_atoms)) as u32
}

/// Pages that tell so many full sets again, at most.
pub fn pages_to_tell(geometry: &Geometry, sets: u32) -> u64 {
    let entry = entry_bytes(geometry.block_atoms);
    let bytes = u64::from(sets) * (RECORD_BYTES + geometry.set_slots as usize * entry) as u64;
    // What does not fit at the end of a page is left free, and what goes on behind it has a record of its own.
    bytes.div_ceil((PAGE - HEAD_BYTES - 2 * RECORD_BYTES - entry) as u64)
}

/// A page being filled.
#[derive(Clone, Debug)]
pub struct PageBuilder {
    geometry: Geometry,
    codec: EntryCodec,
    bytes: Vec<u8>,
    used: usize,
    records: u16,
    /// The last record, if it is a PUT.
    run: Option<Run>,
}

/// A PUT that may grow.
#[derive(Clone, Copy, Debug)]
struct Run {
    /// Where the record starts in the page.
    at: usize,
    /// The slot behind its last one.
    next: Slot,
    life: u32,
    flags: u8,
    count: u16,
}

impl PageBuilder {
    pub fn new(geometry: &Geometry) -> Self {
        let codec = EntryCodec::new(geometry);
        PageBuilder { geometry: *geometry, codec, bytes: vec![0; PAGE], used: HEAD_BYTES, records: 0, run: None }
    }

    pub fn is_empty(&self) -> bool {
        self.records == 0
    }

    pub fn records(&self) -> u16 {
        self.records
    }

    /// Bytes left for records; each needs 16 and its payload.
    pub fn room(&self) -> usize {
        PAGE - self.used
    }

    /// Appends as many of the entries as fit, for the slots from `slot`; extends the last record where that is a PUT of the same
    /// set, life and flags that ends just before. Returns how many were taken (0: the page is full).
    pub fn put(&mut self, slot: Slot, life: u32, dirty: bool, restate: bool, entries: &[Entry]) -> usize {
        assert!(slot.set < self.geometry.sets, "a set beyond the cache");
        assert!(slot.slot as usize + entries.len() <= self.geometry.set_slots as usize, "slots beyond the set");
        let flags = (u8::from(dirty) * DIRTY) | (u8::from(restate) * RESTATE);
        let extends = self.run.filter(|run| run.next == slot && run.life == life && run.flags == flags);
        let head_bytes = if extends.is_some() { 0 } else { RECORD_BYTES };
        let taken = (self.room().saturating_sub(head_bytes) / self.codec.bytes).min(entries.len());
        if taken == 0 {
            return 0;
        }
        let mut run = extends.unwrap_or_else(|| Run { at: self.head(PUT, flags, 0, slot, life), next: slot, life, flags, count: 0 });
        for entry in &entries[..taken] {
            assert!(!entry.valid.is_empty(), "a PUT of nothing");
            self.codec.encode(entry, &mut self.bytes[self.used..self.used + self.codec.bytes]);
            self.used += self.codec.bytes;
        }
        run.count += taken as u16;
        run.next.slot += taken as u32;
        put_u16(&mut self.bytes, run.at + 2, run.count);
        self.run = Some(run);
        taken
    }

    /// Any record; a PUT only as a whole. False: it does not fit, nothing changed.
    pub fn push(&mut self, record: &Record) -> bool {
        if self.room() < bytes_of(&self.geometry, record) {
            return false;
        }
        match record {
            Record::Put { slot, life, dirty, restate, entries } => {
                let taken = self.put(*slot, *life, *dirty, *restate, entries);
                assert_eq!(taken, entries.len(), "what fits is taken");
                return true;
            }
            Record::Open { set, life, stream } => {
                assert!(*life < NUMBER_END, "a life beyond the last one");
                self.head(OPEN, 0, u16::from(*stream), Slot { set: *set, slot: (*life >> 32) as u32 }, *life as u32);
            }
            Record::Seal { set, life } => {
                self.head(SEAL, 0, 0, Slot { set: *set, slot: 0 }, *life);
            }
            Record::Clean { set, life, slots } => self.push_slots(CLEAN, *set, *life, slots),
            Record::Opened { set, life, slots } => self.push_slots(OPENED, *set, *life, slots),
            Record::Kill { set, life, slots } => self.push_slots(KILL, *set, *life, slots),
            Record::Zero { block, blocks, kind } => {
                self.head(ZERO, 0, 1, NO_SLOT, 0);
                self.used += map::encode_zeroed(&self.geometry, *block, *blocks, Some(*kind), &mut self.bytes[self.used..]);
            }
            Record::Unzero { block, blocks } => {
                self.head(UNZERO, 0, 1, NO_SLOT, 0);
                self.used += map::encode_zeroed(&self.geometry, *block, *blocks, None, &mut self.bytes[self.used..]);
            }
            Record::Lost { block, atoms } => {
                self.head(LOST, 0, lost_places(&self.geometry) as u16, NO_SLOT, 0);
                self.used += map::encode_lost(&self.geometry, *block, *atoms, &mut self.bytes[self.used..]);
            }
        }
        self.run = None;
        true
    }

    fn push_slots(&mut self, kind: u8, set: u32, life: u32, slots: &Bits) {
        assert!(slots.fits(self.geometry.set_slots), "bits beyond the set");
        let (first, words) = trimmed(slots);
        assert!(words.len() > 0, "a record of no slots");
        self.head(kind, 0, words.len() as u16, Slot { set, slot: first * 64 }, life);
        for word in words {
            put_u64(&mut self.bytes, self.used, word);
            self.used += 8;
        }
    }

    /// Starts a record; returns where.
    fn head(&mut self, kind: u8, flags: u8, count: u16, slot: Slot, life: u32) -> usize {
        assert!(slot.set < self.geometry.sets, "a set beyond the cache");
        let at = self.used;
        self.bytes[at] = kind;
        self.bytes[at + 1] = flags;
        put_u16(&mut self.bytes, at + 2, count);
        put_u32(&mut self.bytes, at + 4, slot.set);
        put_u32(&mut self.bytes, at + 8, slot.slot);
        put_u32(&mut self.bytes, at + 12, life);
        self.used += RECORD_BYTES;
        self.records += 1;
        at
    }

    /// Seals the page for its place in the ring and empties the builder. `head.records` is filled in here.
    /// Returns the page, and the CRC that the next page names as `previous`.
    pub fn seal(&mut self, format: FormatId, place: u32, head: PageHead) -> (Vec<u8>, u32) {
        assert!(head.epoch < NUMBER_END && head.seq < NUMBER_END, "a number beyond the last one");
        assert!(head.durable < head.seq, "a page that was durable before it was written");
        assert_eq!(head.first, head.group_offset == 0, "the first page of a group is the one at 0");
        let fresh = PageBuilder { bytes: vec![0; PAGE], used: HEAD_BYTES, records: 0, run: None, ..*self };
        let PageBuilder { mut bytes, records, .. } = std::mem::replace(self, fresh);
        put_u32(&mut bytes, 28, head.group_offset);
        put_u64(&mut bytes, 32, head.epoch);
        put_u64(&mut bytes, 40, head.seq);
        put_u64(&mut bytes, 48, head.durable);
        put_u32(&mut bytes, 56, head.previous);
        put_u16(&mut bytes, 60, records);
        bytes[62] = (u8::from(head.first) * FIRST) | (u8::from(head.last) * LAST);
        let crc = seal::seal(&mut bytes, MAGIC, format, self.geometry.journal_page(place).start);
        (bytes, crc)
    }
}

/// The same page for another place (a page that failed to write): same sequence number, records and chain CRC.
pub fn reseal(bytes: &[u8], geometry: &Geometry, format: FormatId, place: u32) -> (Vec<u8>, u32) {
    assert_eq!(bytes.len(), PAGE, "a page is 4 KiB");
    assert_eq!(bytes[..4], MAGIC, "not a journal page");
    let mut bytes = bytes.to_vec();
    let crc = seal::seal(&mut bytes, MAGIC, format, geometry.journal_page(place).start);
    (bytes, crc)
}

/// The page at a place of the ring, without its records: for those who may not need them.
pub fn decode_head(bytes: &[u8], geometry: &Geometry, format: FormatId, place: u32) -> Result<Page, Unsealed> {
    let crc = seal::unseal(bytes, PAGE, MAGIC, format, geometry.journal_page(place).start)?;
    Ok(Page { head: head_of(bytes)?, crc, records: Vec::new() })
}

/// The page at a place of the ring.
pub fn decode(bytes: &[u8], geometry: &Geometry, format: FormatId, place: u32) -> Result<Page, Unsealed> {
    let mut page = decode_head(bytes, geometry, format, place)?;
    page.records = decode_records(bytes, geometry, &page.head)?;
    Ok(page)
}

/// The records of an intact page, whose head [`decode_head`] has read.
pub fn decode_records(bytes: &[u8], geometry: &Geometry, head: &PageHead) -> Result<Vec<Record>, Unsealed> {
    let mut reader = Reader { geometry, codec: EntryCodec::new(geometry), rest: &bytes[HEAD_BYTES..] };
    let mut records = Vec::with_capacity(usize::from(head.records).min((PAGE - HEAD_BYTES) / RECORD_BYTES));
    for _ in 0..head.records {
        records.push(reader.record()?);
    }
    seal::zeros(reader.rest)?;
    Ok(records)
}

fn head_of(bytes: &[u8]) -> Result<PageHead, Unsealed> {
    let flags = bytes[62];
    let head = PageHead {
        group_offset: get_u32(bytes, 28),
        epoch: get_u64(bytes, 32),
        seq: get_u64(bytes, 40),
        durable: get_u64(bytes, 48),
        previous: get_u32(bytes, 56),
        records: get_u16(bytes, 60),
        first: flags & FIRST != 0,
        last: flags & LAST != 0,
    };
    check(flags & !(FIRST | LAST) == 0, "flags of a page")?;
    check(bytes[63] == 0, "bytes without a meaning")?;
    check(head.epoch < READ_END, "epoch")?;
    check(head.seq < READ_END, "seq")?;
    check(head.durable < head.seq, "durable")?;
    check(head.first == (head.group_offset == 0), "page in its group")?;
    Ok(head)
}

/// Where records of ranges name a set, a slot and a life.
const NO_SLOT: Slot = Slot { set: 0, slot: 0 };

/// What a record takes on a page where no PUT is extended.
fn bytes_of(geometry: &Geometry, record: &Record) -> usize {
    let payload = match record {
        Record::Put { entries, .. } => entries.len() * entry_bytes(geometry.block_atoms),
        Record::Open { .. } | Record::Seal { .. } => 0,
        Record::Clean { slots, .. } | Record::Kill { slots, .. } | Record::Opened { slots, .. } => trimmed(slots).1.len() * 8,
        Record::Zero { .. } | Record::Unzero { .. } => RANGE_BYTES,
        Record::Lost { .. } => lost_places(geometry) * RANGE_BYTES,
    };
    RECORD_BYTES + payload
}

/// The words from the first to the last one with a slot, and the index of the first.
fn trimmed(slots: &Bits) -> (u32, impl ExactSizeIterator<Item = u64> + '_) {
    let first = slots.words().position(|word| word != 0).unwrap_or(slots.word_count());
    let end = slots.words().rposition(|word| word != 0).map_or(first, |last| last + 1);
    (first as u32, slots.words().skip(first).take(end - first))
}

/// Takes records from the front of a page.
struct Reader<'a> {
    geometry: &'a Geometry,
    codec: EntryCodec,
    rest: &'a [u8],
}

/// The fixed part of a record.
struct RecordHead {
    flags: u8,
    count: u16,
    slot: Slot,
    life: u32,
}

impl<'a> Reader<'a> {
    fn take(&mut self, bytes: usize) -> Result<&'a [u8], Unsealed> {
        let (taken, rest) = self.rest.split_at_checked(bytes).ok_or(Unsealed::Field("count of records"))?;
        self.rest = rest;
        Ok(taken)
    }

    fn record(&mut self) -> Result<Record, Unsealed> {
        let bytes = self.take(RECORD_BYTES)?;
        let slot = Slot { set: get_u32(bytes, 4), slot: get_u32(bytes, 8) };
        let head = RecordHead { flags: bytes[1], count: get_u16(bytes, 2), slot, life: get_u32(bytes, 12) };
        check(slot.set < self.geometry.sets, "set")?;
        if bytes[0] == PUT {
            return self.put(head);
        }
        check(head.flags == 0, "flags of a record")?;
        match bytes[0] {
            OPEN => self.open(head),
            SEAL => {
                check(head.count == 0 && slot.slot == 0, "SEAL")?;
                Ok(Record::Seal { set: slot.set, life: head.life })
            }
            CLEAN => Ok(Record::Clean { set: slot.set, life: head.life, slots: self.slots(&head)? }),
            OPENED => Ok(Record::Opened { set: slot.set, life: head.life, slots: self.slots(&head)? }),
            KILL => Ok(Record::Kill { set: slot.set, life: head.life, slots: self.slots(&head)? }),
            ZERO => {
                let (block, blocks, kind) = self.zeroed(&head)?;
                Ok(Record::Zero { block, blocks, kind: kind.ok_or(Unsealed::Field("kind of a range"))? })
            }
            UNZERO => {
                let (block, blocks, kind) = self.zeroed(&head)?;
                check(kind.is_none(), "kind of a range")?;
                Ok(Record::Unzero { block, blocks })
            }
            LOST => {
                let (block, atoms) = map::decode_lost(self.geometry, self.ranges(&head, lost_places(self.geometry))?)?;
                Ok(Record::Lost { block, atoms })
            }
            _ => Err(Unsealed::Field("kind of a record")),
        }
    }

    fn put(&mut self, head: RecordHead) -> Result<Record, Unsealed> {
        check(head.flags & !(DIRTY | RESTATE) == 0, "flags of a record")?;
        let count = usize::from(head.count);
        check(count > 0 && head.slot.slot.checked_add(count as u32).is_some_and(|end| end <= self.geometry.set_slots), "slots")?;
        let codec = self.codec;
        let mut entries = Vec::with_capacity(count);
        codec.decode_all(self.take(count * codec.bytes)?, &mut entries)?;
        check(entries.iter().all(|entry| !entry.valid.is_empty()), "valid atoms")?;
        let (dirty, restate) = (head.flags & DIRTY != 0, head.flags & RESTATE != 0);
        Ok(Record::Put { slot: head.slot, life: head.life, dirty, restate, entries })
    }

    fn open(&mut self, head: RecordHead) -> Result<Record, Unsealed> {
        let life = u64::from(head.slot.slot) << 32 | u64::from(head.life);
        check(life < READ_END, "life")?;
        let stream = u8::try_from(head.count).map_err(|_| Unsealed::Field("stream"))?;
        Ok(Record::Open { set: head.slot.set, life, stream })
    }

    fn slots(&mut self, head: &RecordHead) -> Result<Bits, Unsealed> {
        let (first, count) = (head.slot.slot as usize / 64, usize::from(head.count));
        check(head.slot.slot.is_multiple_of(64) && count > 0, "slots")?;
        check(first + count <= Bits::words_for(self.geometry.set_slots), "slots")?;
        let bytes = self.take(count * 8)?;
        check(get_u64(bytes, 0) != 0 && get_u64(bytes, bytes.len() - 8) != 0, "bits of slots")?;
        let words = bytes.chunks_exact(8).map(|word| get_u64(word, 0));
        let mut slots = Bits::new(self.geometry.set_slots);
        slots.fill_words(std::iter::repeat_n(0, first).chain(words));
        check(slots.fits(self.geometry.set_slots), "bits of slots")?;
        Ok(slots)
    }

    fn zeroed(&mut self, head: &RecordHead) -> Result<(Block, u64, Option<RangeKind>), Unsealed> {
        map::decode_zeroed(self.geometry, self.ranges(head, 1)?)
    }

    fn ranges(&mut self, head: &RecordHead, count: usize) -> Result<&'a [u8], Unsealed> {
        check(head.slot == NO_SLOT && head.life == 0, "set of a range")?;
        check(usize::from(head.count) == count, "count of ranges")?;
        self.take(count * RANGE_BYTES)
    }
}

#[cfg(test)]
mod tests;
