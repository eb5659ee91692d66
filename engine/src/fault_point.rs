//! The registry of error paths: every place in journal, checkpoint, recovery and fence that is only reached when something has gone
//! wrong. An engine notes which of them it has met (a bit set on a path that is already lost for speed), and a test of the simulator
//! fails when one of them is never met (`sim/tests/fault_points.rs`). A new point without a way to reach it does not pass.

macro_rules! fault_points {
    ($($(#[doc = $about:literal])+ $name:ident,)+) => {
        /// One error path.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum FaultPoint {
            $($(#[doc = $about])+ $name,)+
        }

        impl FaultPoint {
            pub const ALL: &[FaultPoint] = &[$(FaultPoint::$name,)+];

            /// What has gone wrong, for people.
            pub fn about(self) -> &'static str {
                match self {
                    $(FaultPoint::$name => concat!($($about),+).trim_ascii(),)+
                }
            }
        }
    };
}

fault_points! {
    // --- writing: retry, journal, checkpoint ---
    /// Data could not be written: it takes another slot.
    DataWriteFailed,
    /// What could not be written is not needed any more, or not dirty: it is dropped.
    DataWriteDropped,
    /// No other slot is there: the old place is tried again.
    DataWriteInPlace,
    /// Data could not be written anywhere: the SSD counts as failed.
    DataWriteGivenUp,
    /// The SSD takes no writes any more.
    CacheFailed,
    /// A flush of the SSD failed: everything pinned is written again.
    FlushFailed,
    /// Data was on its way while a flush failed: it is written again.
    SuspectDataRepeated,
    /// Pages of the journal were on their way while a flush failed: they are written again.
    SuspectPagesRepeated,
    /// A page of the journal could not be written: it goes to the next place.
    JournalWriteFailed,
    /// No page of the journal could be written for long: the SSD counts as failed.
    JournalWriteGivenUp,
    /// A header could not be written in either place.
    HeaderUnwritable,
    /// A checkpoint finds a header that cannot be written: it begins again, later.
    CheckpointWithoutHeader,
    /// A checkpoint does not begin: the journal has no room for all the sets whose headers cannot be written.
    CheckpointCramped,
    /// The state map could not be written or flushed.
    MapWriteFailed,
    /// A flush failed between the map and the superblocks.
    CheckpointFlushFailed,
    /// A superblock could not be written.
    SuperblockWriteFailed,
    /// The flush of a superblock failed: it is written again.
    SuperblockFlushFailed,
    /// A stop does not wait for a checkpoint that fails.
    CheckpointAbandoned,
    /// The last superblock of a stop could not be written.
    StopWriteFailed,

    // --- fence, at a stop ---
    /// The origin has not given its marks in time.
    MarksOutOfTime,
    /// The origin could not be flushed before its marks were taken.
    MarkFlushFailed,
    /// A place to be marked could not be read.
    MarkUnread,

    // --- recovery: superblocks ---
    /// A superblock cannot be read.
    SuperblockUnread,
    /// A superblock is damaged.
    SuperblockDamaged,
    /// A superblock is of another format.
    SuperblockForeign,
    /// There is no valid superblock.
    NoSuperblock,
    /// The superblock describes another geometry.
    OtherGeometry,
    /// The cache was detached.
    Detached,
    /// The cache belongs to another origin.
    OtherOrigin,

    // --- recovery: state map and ring ---
    /// A stretch of a state map cannot be read: page by page.
    MapUnread,
    /// A page of a state map cannot be read.
    MapPageUnread,
    /// A state map is damaged: the one before serves.
    MapDamaged,
    /// Neither state map is whole.
    NoMap,
    /// A stretch of the journal cannot be read: page by page.
    JournalUnread,
    /// A page of the journal cannot be read.
    JournalPageUnread,
    /// A page of the journal is damaged, and counts as not written.
    JournalPageDamaged,
    /// An intact page of the journal has impossible records.
    RecordsImpossible,
    /// The same of a page that only the older checkpoint needs.
    OlderRecordsImpossible,
    /// Reads have failed too often: nothing is tried again.
    ReadsGivenUp,
    /// A page of the journal is of a later epoch than any superblock.
    EpochFromTheFuture,
    /// A page has the number that comes next, and does not follow.
    PageUnchained,
    /// The last group is not complete.
    GroupIncomplete,
    /// The journal ends before the last point that was promised to be durable.
    JournalGap,

    // --- recovery: tail ---
    /// A run of the tail cannot be read: slot by slot.
    TailUnread,
    /// A slot of the tail cannot be read: taken for not written.
    TailSlotUnread,
    /// A slot of the tail does not hold what its PUT says.
    TailSlotDamaged,
    /// Groups at the end are cut off.
    TailCut,
    /// A checkpoint that never ended is cut off.
    RestateCut,

    // --- recovery: headers ---
    /// A stretch of the headers cannot be read: one by one.
    HeadersUnread,
    /// A header cannot be read, is damaged or of another life: its copy serves.
    HeaderDamaged,
    /// A header is of another life or another SEAL.
    HeaderOfAnotherLife,
    /// A header does not describe every live slot.
    HeaderIncomplete,
    /// Neither header of a set with dirty slots can be used.
    DirtyHeaderLost,
    /// Neither header of a clean set can be used: the origin has it all.
    CleanHeaderLost,
    /// A header that was to be compared cannot be used yet.
    FenceHeaderUnusable,

    // --- recovery: replay and mapping ---
    /// A record is about another life of its set.
    RecordOfAnotherLife,
    /// A SEAL of a set that is not open.
    SealOutOfOrder,
    /// A restated slot out of order.
    RestateOutOfOrder,
    /// A PUT out of order.
    PutOutOfOrder,
    /// A PUT into an open set of which a live slot was not told again.
    PutUntold,
    /// An OPEN of a life that does not follow.
    OpenOutOfOrder,
    /// An OPEN of a set with live slots.
    OpenOfLiveSet,
    /// Nothing tells what an open set holds.
    OpenSetUntold,
    /// More zeroed and lost ranges than the table holds.
    RangesBeyondTable,
    /// Two live slots of one block.
    TwoSlots,
    /// Two live slots of one block, of which a late header names one: that one is old.
    LateTwoSlots,
    /// A block in a slot of a placed set that is not its place.
    PlacedOutOfPlace,
    /// OPENED slots of a set that is not placed.
    OpenedOutOfOrder,
    /// OPENED slots that hold nothing.
    OpenedOfNothing,
    /// Opened slots cannot be read together: one by one.
    OpenedUnread,
    /// An opened slot cannot be read.
    OpenedSlotUnread,

    // --- recovery: fence ---
    /// A block of the origin cannot be compared.
    FenceUnread,
    /// Nobody is there to be asked.
    FenceOriginGone,
    /// The origin takes too long: what was not compared is not.
    FenceOutOfTime,
    /// The origin was changed.
    OriginChanged,

    // --- recovery: the end ---
    /// The tail could not be written again.
    RewriteFailed,
    /// The new superblock could not be written or flushed.
    CutWriteFailed,
    /// The new cut cannot be made durable.
    CutGivenUp,
}

/// Which points were met.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FaultPoints(u128);

const _: () = assert!(FaultPoint::ALL.len() <= 128, "a bit for each point");

impl FaultPoints {
    pub(crate) fn meet(&mut self, point: FaultPoint) {
        self.0 |= 1 << point as u32;
    }
    pub fn has(self, point: FaultPoint) -> bool {
        self.0 >> point as u32 & 1 == 1
    }
    pub fn union(self, other: FaultPoints) -> FaultPoints {
        FaultPoints(self.0 | other.0)
    }
    /// In the order of the registry.
    pub fn iter(self) -> impl Iterator<Item = FaultPoint> {
        FaultPoint::ALL.iter().copied().filter(move |&point| self.has(point))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_point_is_told_in_one_line_and_has_a_bit_of_its_own() {
        let mut met = FaultPoints::default();
        for &point in FaultPoint::ALL {
            assert!(!point.about().is_empty() && !met.has(point));
            met.meet(point);
        }
        assert_eq!(met.iter().count(), FaultPoint::ALL.len());
    }
}
