//! Random numbers that are the same for the same start (splitmix64 by Steele, Lea and Flood). The world gives the start.

pub(crate) struct Draw(u64);

impl Draw {
    pub fn new(start: u64) -> Draw {
        Draw(start)
    }

    /// A number below `end`, which is not zero.
    pub fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % end
    }
}
