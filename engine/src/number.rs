//! Hashes of what is a number already, and maps whose keys are.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

/// A multiplicative hash for keys that are already numbers: repeatable, and never iterated.
///
/// Four neighbours share a place and lie side by side: whoever walks through numbers in order finds most of them in the processor's cache.
#[derive(Clone, Copy, Default)]
pub struct NumberHasher(u64);

impl Hasher for NumberHasher {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.write_u64(u64::from(byte));
        }
    }
    fn write_u64(&mut self, number: u64) {
        let mixed = (self.0 ^ number >> 2).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        // The place comes from the low bits; the top bits tell apart what lies together.
        self.0 = ((mixed ^ mixed >> 32) << 2 | number & 3) ^ number << 62;
    }
    fn write_u32(&mut self, number: u32) {
        self.write_u64(u64::from(number));
    }
}

pub type NumberMap<K, V> = HashMap<K, V, BuildHasherDefault<NumberHasher>>;

/// Spread over all 64 bits, whatever the numbers have in common: a range of it is a sample of them.
pub fn spread(number: u64) -> u64 {
    let mixed = (number ^ number >> 31).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ mixed >> 29).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ mixed >> 32
}
