//! A model of a slow disk, as a file: nbdkit's pattern (each word is its own place), writable for show, behind its rate and delay filters, and
//! with one head: one request at a time. nbdfuse keeps nothing of it in the page cache.

use std::path::PathBuf;

use crate::common::mount::Fuse;

/// Sparse: there is always something that nobody has read.
pub const BYTES: u64 = 64 << 30;
/// Of a disk of 7,200 rpm at its outer tracks.
pub const BYTES_PER_SECOND: u64 = 180_000_000;
/// It goes on reading ahead for so long while nobody asks, as a disk does into its buffer.
pub const AHEAD_MS: u64 = 10;

/// What is between a request and its first byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seek {
    /// The head is there.
    None,
    /// Milliseconds.
    Each(u64),
}

impl Seek {
    pub fn ms(self) -> u64 {
        match self {
            Seek::None => 0,
            Seek::Each(ms) => ms,
        }
    }
}

pub struct Disk(Fuse);

impl Disk {
    pub fn new(seek: Seek) -> Disk {
        // The filter that is named first sees a request first: it seeks, then it transfers.
        let [rate, ahead] = [format!("rate={}", BYTES_PER_SECOND * 8), format!("burstiness={}", AHEAD_MS as f64 / 1e3)];
        let [delay, size] = [format!("delay-read={}ms", seek.ms()), format!("size={BYTES}")];
        let filters = ["--filter=noparallel", "--filter=delay", "--filter=rate", "--filter=cow"];
        let options = ["pattern", &size, "serialize=requests", &delay, &rate, &ahead, "]"];
        Disk(Fuse::new(&[&["[", "nbdkit", "--exit-with-parent", "--log=null"], &filters[..], &options[..]].concat()))
    }

    pub fn file(&self) -> PathBuf {
        self.0.file()
    }
}
