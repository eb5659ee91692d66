//! What goes wrong with devices, and how often.
//!
//! # What a passing run proves
//!
//! The volume kept its promises (`front/oracle.rs`) although
//!
//! * the power went at any moment, and of every write not covered by a successful flush any subset survived, in any order, torn
//!   at any atom; or the daemon was killed, and any subset of its operations in flight ended behind its back;
//! * reads and writes failed, once or for good, and a failed write landed in any subset of its atoms, pages of the journal often as a whole;
//! * flushes failed: what they covered stayed visible, was partly lost, and no later flush saved it;
//! * what was discarded was gone, zeros or garbage in its place;
//! * operations were stuck for a minute and then ended after all;
//! * of the cache's *data*, bits rotted and writes went to other places: nothing false was ever returned. A block whose only copy was
//!   hit may answer with an error; blocks that were not hit answer as ever;
//! * at a crash one of the two superblocks, one of the two state maps, or one of the two copies of a header was damaged besides, or could
//!   not be read any more, and so could not places of the ring that nothing needs;
//! * metadata, and what was written last, was given only at a later time of asking, in recoveries and in service;
//! * recoveries met all of that: failing reads, writes and flushes of both devices, and an origin that was away for a while;
//! * the origin failed, was full, refused to take one sector again and again, slowed down, went away, and came back without what had not
//!   been flushed; it stood still and did not wake, or late, was woken by somebody else or stopped by itself, or its motor
//!   did not answer;
//! * the cache failed in service, for good: it was gone, or took no writes any more; the volume went on without it, and at the next start
//!   the failed one was refused or, where the host did not know yet, missed nothing;
//! * the host could not write down that the cache had failed, for a while; somebody asked for a detach, and mostly called it off, or it was
//!   stopped or crashed on the way: once it was done the origin alone held everything;
//! * the volume was started again with other options than before, all but what its cache was made for, or had become larger, though only one
//!   superblock said so;
//! * what it reported was true meanwhile: requests, bytes written to the SSD, dirty blocks, zeros and tiers, and all that is not at risk was
//!   on the origin (`world/books.rs`);
//! * it ended: every request, start, drain, switch of the mode, detach and stop within what the documented pauses and the work come to
//!   (`front/patience.rs`);
//! * operations ended in any order (fixed times with jitter), or in the order of a drive with a queue, a buffer and work of its own.
//!
//! # What it does not prove
//!
//! * Nothing of the origin's own contents rots here: the origin carries no checksums, and nobody would notice.
//! * What is needed of the journal neither rots nor fails to be read for long in a swarm, and in runs with crashes only *settled* slots rot or
//!   fail for good: those that the log itself knows to be durable (`back/settled.rs`). Damage to what was written last cannot be told, after a crash,
//!   from a write that was never flushed; a log without a second copy must cut there. (Runs without crashes damage anything.)
//! * A device that says "flushed" without having flushed is not simulated: nothing can be promised on it.

use crate::chance::Chance;
use tidegate_engine::block::Span;
use tidegate_engine::op::{Action, Class, Zone};
use tidegate_engine::time::Duration;

/// How often what goes wrong on one device: operations of a million.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rates {
    /// Reads of data that fail; half of them leave an atom that stays unreadable until it is written again.
    pub read_error: u32,
    /// Reads of metadata that fail, for this once, and those of what was written last, by a recovery. (The cache only.)
    pub metadata_error: u32,
    /// Writes that fail; any subset of their atoms lands.
    pub write_error: u32,
    /// Writes of which one atom refuses the next ones as well. (The origin only.)
    pub refused: u32,
    /// Writes and zeroes for which there is no space. (The origin only.)
    pub no_space: u32,
    pub flush_error: u32,
    /// Words to the motor that it does not follow, and that have no answer for longer than anybody waits for one.
    pub spin_error: u32,
    pub spin_silence: u32,
    /// Operations that take one second to a minute.
    pub stuck: u32,
    /// Writes of data that go to another place of their zone. (The cache only.)
    pub misdirected: u32,
    /// Writes of data after which one atom of the cache's data rots. (The cache only.)
    pub rot: u32,
    /// Reads fail and atoms rot in settled slots only. Set for the cache wherever a crash may follow.
    pub settled_only: bool,
}

impl Rates {
    /// Can what was written well get lost on this device alone?
    pub fn spoils(&self) -> bool {
        self.read_error > 0 || self.misdirected > 0 || self.rot > 0
    }
}

/// What goes wrong with one operation. A script names it, or it is drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// It fails; of a write any subset lands, of a flush any part becomes durable.
    Error,
    /// A write fails, and lands as a whole.
    Denied,
    /// A read fails, and goes on failing until the atom is written.
    Bad,
    /// A read fails, and whoever asks again is given everything.
    Passing,
    /// A write fails, and so do the next so many of one of its atoms: a sector that is replaced only then, if ever.
    Refused(u32),
    /// A write that finds no space: nothing of it lands.
    Full,
    /// It takes so long, then ends as if nothing had been.
    Stuck(Duration),
    /// It lands at this atom instead, and says that all is well.
    Misdirected(u64),
    /// It lands nowhere, and says that all is well.
    Lost,
    /// It is well, but this atom of the device rots.
    Rot(u64),
}

/// What a device tells about itself when a fault is drawn.
pub trait Places {
    /// The bounds of a zone.
    fn zone(&self, zone: Zone) -> Span;
    /// Does the log itself know that everything in `span` is durable?
    fn is_settled(&self, span: Span) -> bool;
}

/// Draws what goes wrong with `action` of that class.
pub fn draw<P>(rates: &Rates, class: Class, action: &Action<P>, places: &impl Places, chance: &mut Chance) -> Option<Fault> {
    if chance.ppm(rates.stuck) {
        return Some(Fault::Stuck(Duration::from_millis(chance.between(1_000, 60_000))));
    }
    let may_hit = |span| !rates.settled_only || places.is_settled(span);
    match action {
        Action::Read(zone, _)
            if (class == Class::Log || !matches!(zone, Zone::Data | Zone::Origin)) && chance.ppm(rates.metadata_error) =>
        {
            Some(Fault::Passing)
        }
        Action::Read(Zone::Data | Zone::Origin, span) if chance.ppm(rates.read_error) => {
            let fault = if chance.one_in(2) { Fault::Bad } else { Fault::Error };
            may_hit(*span).then_some(fault)
        }
        Action::Write(Zone::Data, span, _) if chance.ppm(rates.misdirected) => {
            let zone = places.zone(Zone::Data);
            // Devices lose their way by whole sectors: to another slot rather than to the middle of one.
            let grain = span.atoms.min(8).next_power_of_two();
            let place = zone.start + chance.below((zone.atoms - span.atoms) / grain + 1) * grain;
            (place != span.start).then_some(Fault::Misdirected(place))
        }
        Action::Write(Zone::Data, ..) if chance.ppm(rates.rot) => {
            let zone = places.zone(Zone::Data);
            let atom = zone.start + chance.below(zone.atoms);
            may_hit(Span::new(atom, 1)).then_some(Fault::Rot(atom))
        }
        Action::Write(Zone::Origin, ..) if rates.refused > 0 && chance.ppm(rates.refused) => {
            Some(Fault::Refused(chance.spread(1, 30) as u32))
        }
        Action::Write(..) | Action::Zero(..) if chance.ppm(rates.no_space) => Some(Fault::Full),
        // In any part, and not seldom as a whole: then it lies in the ring twice.
        Action::Write(Zone::Journal, ..) if chance.ppm(rates.write_error) => {
            Some(if chance.one_in(4) { Fault::Denied } else { Fault::Error })
        }
        Action::Write(..) | Action::Zero(..) | Action::Discard(..) if chance.ppm(rates.write_error) => Some(Fault::Error),
        Action::Flush if chance.ppm(rates.flush_error) => Some(Fault::Error),
        Action::Spin(_) if chance.ppm(rates.spin_error) => Some(Fault::Error),
        Action::Spin(_) if chance.ppm(rates.spin_silence) => Some(Fault::Stuck(Duration::from_secs(chance.between(181, 600)))),
        Action::Read(..)
        | Action::Write(..)
        | Action::Zero(..)
        | Action::Discard(..)
        | Action::Allocation(..)
        | Action::Flush
        | Action::Spin(_) => None,
    }
}
