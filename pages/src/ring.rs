//! A bounded ring from one thread to another. Entries are words; the producer publishes any number of them at once.
//!
//! The producer's end is a [`Pen`], the consumer's is the engine's alone. The ring outlives both: what a thread that has gone has left in it
//! is still read.

use crate::sync::{AtomicU64, LINE_BYTES, Ordering, Padded, prefetch_to_write};

pub struct Ring<const WORDS: usize> {
    slots: Box<[[AtomicU64; WORDS]]>,
    /// Entries published, ever.
    written: Padded<AtomicU64>,
    /// Entries taken, ever.
    read: Padded<AtomicU64>,
}

/// Where the one producer writes next.
#[derive(Debug)]
pub struct Pen {
    at: u64,
    /// `read`, when it was last looked at: asked again only when the ring seems full.
    read: u64,
}

impl<const WORDS: usize> Ring<WORDS> {
    /// # Panics
    /// If `entries` is not a power of two, nor 0.
    pub fn new(entries: usize) -> Ring<WORDS> {
        assert!(entries == 0 || entries.is_power_of_two(), "a ring of {entries} entries");
        let slots = (0..entries).map(|_| std::array::from_fn(|_| AtomicU64::new(0))).collect();
        Ring { slots, written: Padded(AtomicU64::new(0)), read: Padded(AtomicU64::new(0)) }
    }

    /// It takes nothing, ever.
    #[inline(always)]
    pub fn is_none(&self) -> bool {
        self.slots.is_empty()
    }

    fn slot(&self, at: u64) -> &[AtomicU64; WORDS] {
        &self.slots[at as usize & (self.slots.len() - 1)]
    }

    /// For whoever is the producer from now on.
    pub fn pen(&self) -> Pen {
        Pen { at: self.written.0.load(Ordering::Acquire), read: self.read.0.load(Ordering::Acquire) }
    }

    /// Entries that fit; looks at the consumer's side only when fewer than `wanted` seem to.
    #[inline(always)]
    pub fn room(&self, pen: &mut Pen, wanted: usize) -> usize {
        let room = |pen: &Pen| self.slots.len() - (pen.at - pen.read) as usize;
        if room(pen) < wanted {
            // Acquire: the consumer has read what is written over.
            pen.read = self.read.0.load(Ordering::Acquire);
        }
        room(pen)
    }

    /// Asks for the lines of so many next entries: the consumer has read them on another core, or it was long ago.
    #[inline(always)]
    pub fn expect(&self, pen: &Pen, entries: usize) {
        let of_line = LINE_BYTES / size_of::<[u64; WORDS]>();
        (0..=entries / of_line).for_each(|line| prefetch_to_write(self.slot(pen.at + (line * of_line) as u64)));
    }

    /// Writes an entry, to be seen when it is published. There must be [`Ring::room`].
    #[inline(always)]
    pub fn put(&self, pen: &mut Pen, entry: [u64; WORDS]) {
        debug_assert!(pen.at - pen.read < self.slots.len() as u64, "a full ring is not written to");
        self.slot(pen.at).iter().zip(entry).for_each(|(word, value)| word.store(value, Ordering::Relaxed));
        pen.at += 1;
    }

    /// Shows the consumer everything that was put.
    #[inline(always)]
    pub fn publish(&self, pen: &Pen) {
        self.written.0.store(pen.at, Ordering::Release);
    }

    /// As [`Ring::publish`], in one order with [`Ring::take_ordered`]: either that finds what was put, or what the consumer did before it
    /// is known to the producer after this. A ring that is published so once is always published so.
    #[inline(always)]
    pub fn publish_ordered(&self, pen: &Pen) {
        // Both change the same word, so one of them comes first, and the other one has read from it.
        self.written.0.swap(pen.at, Ordering::AcqRel);
    }

    /// Is there nothing to take? For the one consumer.
    pub fn is_empty(&self) -> bool {
        self.read.0.load(Ordering::Relaxed) == self.written.0.load(Ordering::Acquire)
    }

    /// Entries that wait at least. For the one consumer.
    pub fn len(&self) -> u64 {
        self.written.0.load(Ordering::Acquire) - self.read.0.load(Ordering::Relaxed)
    }

    /// The next entry of those that [wait](Ring::len). For the one consumer.
    pub fn peek(&self) -> [u64; WORDS] {
        let at = self.read.0.load(Ordering::Relaxed);
        std::array::from_fn(|word| self.slot(at)[word].load(Ordering::Relaxed))
    }

    /// Takes the entry that was [seen](Ring::peek). For the one consumer.
    pub fn pop(&self) {
        self.read.0.store(self.read.0.load(Ordering::Relaxed) + 1, Ordering::Release);
    }

    /// Takes entries in order until there is none, or `keep` says that one is to stay. For the one consumer.
    pub fn take_ordered(&self, mut keep: impl FnMut(&[u64; WORDS]) -> bool) {
        let (mut at, written) = (self.read.0.load(Ordering::Relaxed), self.written.0.fetch_add(0, Ordering::AcqRel));
        while at < written {
            let entry = std::array::from_fn(|word| self.slot(at)[word].load(Ordering::Relaxed));
            if keep(&entry) {
                break;
            }
            at += 1;
        }
        self.read.0.store(at, Ordering::Release);
    }
}
