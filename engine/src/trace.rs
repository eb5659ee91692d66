//! The recorder's format: what clients have asked of a volume, and when. Written by the daemon (`serve --record`), read by the simulator.
//!
//! A header of 32 bytes, then records of 24, little-endian, without gaps; a file that was cut off loses its last record and no other. A TRIM or
//! zeroes of 2 TiB and more are written down as 2 TiB less an atom.
//!
//! ```text
//! header   magic (8 bytes) · volume in atoms (8) · zeros (16)
//! record   nanoseconds since the recording began (8) · first atom (8) · atoms (4) · kind (1) · flags (1; bit 0: FUA) · zeros (2)
//! ```

use crate::block::Span;
use crate::request::Command;

/// What such a file begins with; its last byte is the version.
pub const MAGIC: [u8; 8] = *b"tgtrace\x01";
pub const HEADER_BYTES: usize = 32;
pub const RECORD_BYTES: usize = 24;
/// What a record has room for.
const ATOMS_MAX: u64 = u32::MAX as u64;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    pub volume_atoms: u64,
}

/// What was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Read = 0,
    Write = 1,
    Trim = 2,
    Zero = 3,
    Flush = 4,
}

impl Kind {
    const ALL: [Kind; 5] = [Kind::Read, Kind::Write, Kind::Trim, Kind::Zero, Kind::Flush];
}

/// One request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    /// Nanoseconds since the recording began.
    pub at_ns: u64,
    pub kind: Kind,
    pub fua: bool,
    /// Empty of a FLUSH. At most [`ATOMS_MAX`].
    pub span: Span,
}

impl Record {
    /// None of what asks for no contents: a question for the allocation, a wish to have something in the cache.
    pub fn of<P>(at_ns: u64, command: &Command<P>, span: Span) -> Option<Record> {
        let (kind, fua) = match command {
            Command::Read => (Kind::Read, false),
            Command::Write { fua, .. } => (Kind::Write, *fua),
            Command::Trim { fua } => (Kind::Trim, *fua),
            Command::Zero { fua, .. } => (Kind::Zero, *fua),
            Command::Flush => return Some(Record { at_ns, kind: Kind::Flush, fua: false, span: Span::default() }),
            Command::Cache | Command::Status { .. } => return None,
        };
        Some(Record { at_ns, kind, fua, span: Span::new(span.start, span.atoms.min(ATOMS_MAX)) })
    }

    pub fn encode(&self) -> [u8; RECORD_BYTES] {
        assert!(self.span.atoms <= ATOMS_MAX, "a record has 32 bits for them");
        let mut bytes = [0; RECORD_BYTES];
        bytes[..8].copy_from_slice(&self.at_ns.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.span.start.to_le_bytes());
        bytes[16..20].copy_from_slice(&(self.span.atoms as u32).to_le_bytes());
        (bytes[20], bytes[21]) = (self.kind as u8, u8::from(self.fua));
        bytes
    }

    /// None: no record of this version.
    pub fn decode(bytes: &[u8; RECORD_BYTES]) -> Option<Record> {
        let kind = Kind::ALL.into_iter().find(|kind| *kind as u8 == bytes[20])?;
        let fua = match bytes[21] {
            0 => false,
            1 => true,
            _ => return None,
        };
        let atoms = u32::from_le_bytes(bytes[16..20].try_into().expect("four bytes"));
        let is_sound = bytes[22..] == [0; 2] && (atoms == 0) == (kind == Kind::Flush);
        let span = Span::new(little64(bytes, 8), u64::from(atoms));
        is_sound.then_some(Record { at_ns: little64(bytes, 0), kind, fua, span })
    }
}

impl Header {
    pub fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8..16].copy_from_slice(&self.volume_atoms.to_le_bytes());
        bytes
    }

    /// None: no header of this version.
    pub fn decode(bytes: &[u8; HEADER_BYTES]) -> Option<Header> {
        let is_ours = bytes[..8] == MAGIC && bytes[16..] == [0; 16];
        is_ours.then(|| Header { volume_atoms: little64(bytes, 8) })
    }
}

fn little64(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_header_of_another_version_is_none() {
        let header = Header { volume_atoms: 1 << 33 };
        let mut bytes = header.encode();
        assert_eq!(Header::decode(&bytes), Some(header));
        bytes[7] = 2;
        assert_eq!(Header::decode(&bytes), None);
    }

    #[test]
    fn damage_is_no_record() {
        let record = Record { at_ns: 7, kind: Kind::Write, fua: true, span: Span::new(8, 16) };
        let sound = record.encode();
        for (place, value) in [(20, 5), (20, 4), (21, 2), (22, 1), (16, 0)] {
            let mut bytes = sound;
            bytes[place] = value;
            assert_eq!(Record::decode(&bytes), None, "byte {place} is {value}");
        }
    }

    #[test]
    fn a_request_that_is_longer_than_a_record_can_say_is_as_long_as_it_can() {
        let span = Span::new(8, 1 << 32);
        let record = Record::of::<()>(7, &Command::Trim { fua: false }, span).unwrap();
        assert_eq!(record.span, Span::new(8, u64::from(u32::MAX)));
        assert_eq!(Record::decode(&record.encode()), Some(record));
    }

    proptest! {
        #[test]
        fn what_was_written_is_read(at_ns: u64, place in 0usize..5, fua: bool, start: u64, atoms in 1u64..1 << 32) {
            let kind = Kind::ALL[place];
            let span = if kind == Kind::Flush { Span::new(start, 0) } else { Span::new(start, atoms) };
            let record = Record { at_ns, kind, fua, span };
            prop_assert_eq!(Record::decode(&record.encode()), Some(record));
        }

        #[test]
        fn any_bytes_are_a_record_or_none(bytes: [u8; RECORD_BYTES]) {
            if let Some(record) = Record::decode(&bytes) {
                prop_assert_eq!(record.encode(), bytes);
            }
        }
    }
}
