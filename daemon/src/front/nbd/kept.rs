//! What was received of a client and is not yet understood.

/// `buffer[start..]`.
#[derive(Debug, Default)]
pub struct Kept {
    buffer: Vec<u8>,
    start: usize,
}

impl Kept {
    pub fn bytes(&self) -> &[u8] {
        &self.buffer[self.start..]
    }

    pub fn is_empty(&self) -> bool {
        self.bytes().is_empty()
    }

    pub fn set(&mut self, bytes: &[u8]) {
        self.clear();
        // To the byte: thousands who shake hands slowly cost what they have sent, not twice that.
        self.buffer.reserve_exact(bytes.len());
        self.buffer.extend_from_slice(bytes);
    }

    /// The first `count` bytes are understood.
    pub fn take(&mut self, count: usize) {
        self.start += count;
        if self.is_empty() {
            self.clear();
        }
    }

    pub fn clear(&mut self) {
        self.buffer.clear();
        self.start = 0;
    }
}
