//! The language of the back: what devices are asked and what they answer.
//!
//! There are no barriers: the engine waits for [`Done`] before it hands out what depends on it. [`Action::Flush`] covers exactly the
//! writes whose `Done` was handled before the flush was handed out. Operations in flight on one device never overlap
//! (reads among themselves may), so any queue may reorder them.

use crate::block::Span;
use crate::payload::Pieces;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum DeviceId {
    Cache,
    Origin,
}

/// A place that no other operation has at the time, and the end of a serial number: none of the 2^36 before it is called the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OpId(pub u64);

impl OpId {
    /// More than can be under way: a read has one for each atom at most, and 64 GiB of requests (the most that `[limits] bytes` allows) are 2^27
    /// atoms; writes and what the engine does by itself are bounded by windows of memory, far below that.
    const PLACE_BITS: u32 = 28;

    pub fn new(serial: u64, place: usize) -> Self {
        assert!(place >> Self::PLACE_BITS == 0, "so many operations are never under way at once");
        OpId(serial << Self::PLACE_BITS | place as u64)
    }

    /// Its place among the operations that wait or are under way: small.
    pub fn place(self) -> usize {
        (self.0 & ((1 << Self::PLACE_BITS) - 1)) as usize
    }
}

/// For whom: a scheduler may prefer one over another. Recorded in every count of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Class {
    /// A client waits for it.
    Client,
    /// Metadata, flushes of the SSD.
    Log,
    /// Copying what was read into the cache.
    Fill,
    Destage,
    /// Moving what lives in a set that is emptied.
    Clean,
    /// Verifying what lies on the SSD.
    Scrub,
    /// Telling the SSD what it need not keep.
    Discard,
}

impl Class {
    pub const ALL: [Class; 7] = [Class::Client, Class::Log, Class::Fill, Class::Destage, Class::Clean, Class::Scrub, Class::Discard];

    /// For people and programs outside.
    pub fn name(self) -> &'static str {
        match self {
            Class::Client => "client",
            Class::Log => "log",
            Class::Fill => "fill",
            Class::Destage => "destage",
            Class::Clean => "clean",
            Class::Scrub => "scrub",
            Class::Discard => "discard",
        }
    }
}

/// Which part of a device: every access names it, and the worlds check that the span lies in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Zone {
    Superblock,
    Map,
    Header,
    HeaderCopy,
    Journal,
    Data,
    Origin,
}

/// One operation on one device.
#[derive(Clone, Debug)]
pub struct Op<P> {
    pub id: OpId,
    pub device: DeviceId,
    pub class: Class,
    pub action: Action<P>,
}

#[derive(Clone, Debug)]
pub enum Action<P> {
    Read(Zone, Span),
    /// The payloads, in order, are exactly the span. One device command wherever the device takes it.
    Write(Zone, Span, Pieces<P>),
    /// The span reads as zeros afterwards.
    Zero(Zone, Span, Hole),
    /// What the span holds is not needed any more: from now on it may read as anything. May be larger than [`Limits::op_atoms`].
    Discard(Zone, Span),
    /// Which parts of the span are allocated (SEEK_HOLE, SEEK_DATA; a device that cannot tell says all).
    Allocation(Zone, Span),
    /// The device's volatile cache becomes durable.
    Flush,
    /// Something about the motor of a disk. Nothing else is in flight there meanwhile.
    Spin(Spin),
}

/// A word to the motor of a disk. Each is answered with what it does then.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Spin {
    /// Stand still (ATA STANDBY IMMEDIATE; SCSI START STOP UNIT). What the drive had in its own cache is on the platters when it does.
    Stop,
    /// Turn, and be ready (ATA IDLE IMMEDIATE; SCSI START STOP UNIT).
    Wake,
    /// What do you do (ATA CHECK POWER MODE)? Wakes nothing.
    Look,
}

/// What the motor of a disk does. One without a motor always turns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Power {
    Turning,
    Standby,
}

/// What a disk says when it was told something about its motor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Said {
    pub power: Power,
    /// Has anybody used it since the last word? None: nobody counts that.
    pub used: Option<bool>,
}

impl From<Power> for Said {
    fn from(power: Power) -> Said {
        Said { power, used: None }
    }
}

/// May [`Action::Zero`] release the space behind it?
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hole {
    Allowed,
    Forbidden,
}

/// The end of an operation; final. A failed write may have landed in any subset of its atoms.
#[derive(Clone, Debug)]
pub struct Done<P> {
    pub id: OpId,
    pub result: Result<Answer<P>, DeviceError>,
}

#[derive(Clone, Debug)]
pub enum Answer<P> {
    /// Of a write, zero, discard or flush.
    Done,
    /// Of a read: in order, together exactly its span.
    Data(Pieces<P>),
    /// Of an allocation query: in order, together exactly its span.
    Allocation(Vec<crate::request::Extent>),
    /// Of a word to the motor.
    Power(Said),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceError {
    /// The medium could not be read or written there.
    Medium,
    /// No space left behind a sparse file or a thin volume.
    NoSpace,
    /// The device does not answer any more.
    Gone,
}

/// The parts of a device that work side by side, if each has an equal stretch of its addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lanes {
    count: u32,
    atoms: u64,
}

impl Lanes {
    /// So many on a device of `atoms`; 1 where nothing is known of them.
    pub fn new(count: u32, atoms: u64) -> Self {
        assert!(count > 0);
        Lanes { count, atoms: atoms.div_ceil(u64::from(count)).max(1) }
    }
    pub fn count(self) -> u32 {
        self.count
    }
    /// The lane of an atom.
    pub fn of(self, atom: u64) -> usize {
        (atom / self.atoms).min(u64::from(self.count) - 1) as usize
    }
}

/// What a device can do, as the world found out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Size in atoms.
    pub atoms: u64,
    /// Operations in flight at once.
    pub depth: usize,
    /// The largest operation, in atoms.
    pub op_atoms: u64,
    /// It takes [`Action::Discard`].
    pub discards: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_atom_of_64_gib_has_a_place_and_serial_numbers_may_go_round() {
        for serial in [0, 1, (1 << 36) - 1, 1 << 36, (1 << 44) + 3, u64::MAX] {
            for place in [0, 1, 1 << 20, 1 << 27, (1 << 28) - 1] {
                let id = OpId::new(serial, place);
                assert_eq!(id.place(), place);
                assert!(id != OpId::new(serial.wrapping_add(1), place), "the next one at that place is another");
            }
        }
    }
}
