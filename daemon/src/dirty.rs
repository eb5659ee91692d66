//! `tidegate.dirty`: which parts of a volume were newer in the cache than on the origin when somebody last looked. If the cache is lost,
//! these are known to be lost with it; what was written afterwards is not known, and the file says since when.
//!
//! It is a note, not a promise: written every minute without waiting for the disk, and once more, complete, when the daemon stops. A file
//! that is missing or cannot be read means that nothing is known. It tells people the time of day; nothing is decided by that.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use tidegate_engine::block::{ATOM_BYTES, Span};

use crate::state::Place;

/// Ranges in the file at most: neighbours are joined beyond that, so it says too much rather than too little.
pub const RANGES_MAX: usize = 1024;
/// The largest file that is read, in bytes.
const BYTES_MAX: u64 = 1 << 20;

/// What was dirty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dirty {
    /// The cache that held it: its format id in hexadecimal digits.
    pub format: String,
    /// Seconds since 1970, UTC.
    pub at: u64,
    /// Nothing was written afterwards: the daemon had stopped.
    pub is_complete: bool,
    /// On the volume, ascending.
    pub ranges: Vec<Span>,
}

impl Dirty {
    /// What is dirty at this moment.
    pub fn now(format: &str, is_complete: bool, ranges: Vec<Span>) -> Dirty {
        let at = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        Dirty { format: format.to_owned(), at, is_complete, ranges }
    }

    /// Beside the state of the volume.
    pub fn path(state: &Path) -> PathBuf {
        state.with_extension("dirty")
    }

    /// Replaces the file, beside the state. That it cannot be is no reason to stop: nothing rests on it.
    pub fn write(&self, place: &Place) {
        if let Some(name) = Dirty::path(place.path()).file_name() {
            let _ = place.note(name, &self.format, self.text().as_bytes());
        }
    }

    /// What is known of the last cache; nothing if the file is of another one, or cannot be read.
    pub fn read(state: &Path, format: &str) -> Option<Dirty> {
        let path = Dirty::path(state);
        if fs::symlink_metadata(&path).ok().filter(|metadata| metadata.is_file())?.len() > BYTES_MAX {
            return None;
        }
        Dirty::parse(&fs::read_to_string(path).ok()?).filter(|dirty| dirty.format == format)
    }

    /// One line that says what it is, one for each range (first byte, bytes), one that ends it.
    fn text(&self) -> String {
        let complete = if self.is_complete { "complete" } else { "and-later" };
        let mut text = format!("tidegate-dirty 1 {} {} {complete}\n", self.format, self.at);
        for span in &self.ranges {
            let _ = writeln!(text, "{} {}", span.start * ATOM_BYTES, span.bytes()); // writing to a string cannot fail
        }
        text + "end\n"
    }

    fn parse(text: &str) -> Option<Dirty> {
        let mut lines = text.lines();
        let head: Vec<&str> = lines.next()?.split(' ').collect();
        let ["tidegate-dirty", "1", format, at, complete] = head[..] else { return None };
        let mut ranges = Vec::new();
        loop {
            let line = lines.next()?;
            if line == "end" {
                break;
            }
            let (start, bytes) = line.split_once(' ')?;
            let (start, bytes): (u64, u64) = (start.parse().ok()?, bytes.parse().ok()?);
            ranges.push(Span::new(start / ATOM_BYTES, bytes / ATOM_BYTES));
        }
        Some(Dirty { format: format.to_owned(), at: at.parse().ok()?, is_complete: complete == "complete", ranges })
    }

    /// One line for the operator, and the ranges themselves as far as they are few.
    pub fn describe(&self, state: &Path) -> Vec<String> {
        const SHOWN: usize = 16;
        let bytes: u64 = self.ranges.iter().map(|span| span.bytes()).sum();
        let later = if self.is_complete { "nothing was written afterwards" } else { "what was written afterwards may be lost too" };
        let mut lines = vec![format!(
            "lost: what was newer in the last cache at {}, at most {bytes} bytes in {} ranges ({}); {later}",
            utc(self.at),
            self.ranges.len(),
            Dirty::path(state).display()
        )];
        lines.extend(
            self.ranges.iter().take(SHOWN).map(|span| format!("lost: {} bytes from byte {} on", span.bytes(), span.start * ATOM_BYTES)),
        );
        if self.ranges.len() > SHOWN {
            lines.push(format!("lost: and {} more ranges", self.ranges.len() - SHOWN));
        }
        lines
    }
}

/// When a file was written, in words.
pub fn written_at(path: &Path) -> Option<String> {
    let written = fs::metadata(path).and_then(|metadata| metadata.modified()).ok()?;
    written.duration_since(UNIX_EPOCH).ok().map(|since| utc(since.as_secs()))
}

/// A moment in words, as RFC 3339 has it.
pub fn utc(seconds: u64) -> String {
    let (days, rest) = (seconds / 86_400, seconds % 86_400);
    // Years that begin in March put the leap day last; 400 of them have 146,097 days. 0000-03-01 is 719,468 days before 1970.
    let days = days + 719_468;
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let (day, month) = (day - (153 * month + 2) / 5 + 1, if month < 10 { month + 3 } else { month - 9 });
    let year = year + era * 400 + u64::from(month <= 2);
    format!("{year:04}-{month:02}-{day:02}T{:02}:{:02}:{:02}Z", rest / 3_600, rest / 60 % 60, rest % 60)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_noted_reads_back_and_what_was_cut_short_is_not_believed() {
        let folder = tempfile::tempdir().unwrap();
        let state = folder.path().join("tidegate.state");
        assert_eq!(Dirty::read(&state, "ab"), None);
        let dirty = Dirty { format: "ab".into(), at: 7, is_complete: false, ranges: vec![Span::new(0, 8), Span::new(2_048, 16)] };
        dirty.write(&Place::open(&state).unwrap());
        assert_eq!(Dirty::read(&state, "ab"), Some(dirty.clone()));
        assert_eq!(Dirty::read(&state, "cd"), None, "of another cache");
        let text = dirty.text();
        for cut in 0..text.len() - 1 {
            assert_eq!(Dirty::parse(&text[..cut]), None, "{cut}");
        }
        let told = dirty.describe(&state);
        assert!(told[0].contains("12288 bytes in 2 ranges") && told[0].contains("1970-01-01T00:00:07Z"), "{told:?}");
        assert_eq!(told[2], "lost: 8192 bytes from byte 1048576 on");
    }

    #[test]
    fn moments_are_told_as_people_write_them() {
        for (seconds, text) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (1_709_164_799, "2024-02-28T23:59:59Z"),
            (1_735_689_599, "2024-12-31T23:59:59Z"),
            (4_107_542_400, "2100-03-01T00:00:00Z"),
        ] {
            assert_eq!(utc(seconds), text);
        }
    }
}
