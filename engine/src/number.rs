//! Maps whose keys are numbers already.

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
