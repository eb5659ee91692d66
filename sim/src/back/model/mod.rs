//! How long a device takes, and what it costs: commands go in, their ends come out when it is time. A model knows neither contents nor
//! faults (`back/device.rs` does): it is the mechanics of a drive, in whole nanoseconds.
//!
//! The end of a command is not known at its start, because a drive has a queue, a buffer and work of its own. So a model is a small
//! world: [`Model::next`] tells when something happens inside it, [`Model::advance`] lets it happen.

pub mod energy;
pub mod hdd;
pub mod plain;
pub mod port;
pub mod spec;
pub mod ssd;

pub use energy::{Account, Charge};
pub use hdd::Hdd;
pub use plain::{Plain, Speed};
pub use port::Port;
pub use spec::Spec;
pub use ssd::Ssd;

use tidegate_engine::op::Spin;
use tidegate_engine::time::{Duration, Instant};

/// One command at a device. Its number is the model user's own, and no two commands in flight share one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Command {
    pub id: u64,
    pub what: What,
    /// The first atom on the device; 0 of a flush.
    pub start: u64,
    /// Length in atoms; 0 of a flush.
    pub atoms: u64,
    /// On whose account.
    pub cause: Cause,
}

impl Command {
    /// The atom behind the last one.
    pub fn end(&self) -> u64 {
        self.start + self.atoms
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    Read,
    Write,
    Flush,
    Discard,
    /// A word to the motor.
    Spin(Spin),
}

impl What {
    /// Of no part of the device.
    fn is_of_nothing(self) -> bool {
        matches!(self, What::Flush | What::Spin(_))
    }
}

/// For what a device works: energy is charged to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Cause {
    HostRead,
    HostWrite,
    Log,
    Fill,
    Destage,
    /// The device's own housekeeping: garbage collection, merges.
    Cleaning,
}

impl Cause {
    pub const ALL: [Cause; 6] = [Cause::HostRead, Cause::HostWrite, Cause::Log, Cause::Fill, Cause::Destage, Cause::Cleaning];
}

/// What a device does at one moment, for pictures.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum PowerState {
    /// Seeks, transfers, programs, erases.
    Active,
    Idle,
    SpinningDown,
    Standby,
    SpinningUp,
}

impl PowerState {
    pub const fn name(self) -> &'static str {
        match self {
            PowerState::Active => "active",
            PowerState::Idle => "idle",
            PowerState::SpinningDown => "spinning-down",
            PowerState::Standby => "standby",
            PowerState::SpinningUp => "spinning-up",
        }
    }
}

/// What a device has done since it was built. Bytes are the host's unless said otherwise.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    pub reads: u64,
    pub writes: u64,
    pub flushes: u64,
    pub discards: u64,
    pub bytes_read: u64,
    pub bytes_written: u64,
    /// Of an HDD: movements of the arm to another track.
    pub seeks: u64,
    /// Of an HDD: entries written from the buffer to the platter.
    pub drained: u64,
    /// Of an HDD, by the cause of the command that woke it (in the order of [`Cause::ALL`]).
    pub spin_ups: [u64; 6],
    /// Of an SSD: bytes programmed into flash, the host's and moved ones.
    pub bytes_programmed: u64,
    /// Of those: moved by garbage collection and merges.
    pub bytes_moved: u64,
    /// Of an SSD: blocks erased.
    pub erases: u64,
    /// Of a log-block FTL: merges that copy, and switches that only erase.
    pub full_merges: u64,
    pub switch_merges: u64,
}

/// How long `bytes` take at `mb_s` megabytes (10⁶ bytes) a second.
fn transfer_time(bytes: u64, mb_s: u64) -> Duration {
    Duration((u128::from(bytes) * 1_000 / u128::from(mb_s)) as u64)
}

/// A device's mechanics.
#[expect(clippy::large_enum_variant, reason = "the swarm's devices are plain, and cloned at every crash point: a box would cost more")]
#[derive(Clone, Debug)]
pub enum Model {
    /// A fixed time for each operation, with jitter.
    Plain(Plain),
    Hdd(Box<Hdd>),
    Ssd(Box<Ssd>),
    /// A part of a drive that somebody else owns.
    Port(Port),
}

impl Model {
    /// Takes a command at `now`; everything due before has been taken out with [`Model::advance`].
    pub fn submit(&mut self, now: Instant, command: Command) {
        assert!(command.what.is_of_nothing() == (command.atoms == 0), "{command:?}: only a flush or a word to the motor is of nothing");
        match self {
            Model::Plain(plain) => plain.submit(now, command),
            Model::Hdd(hdd) => hdd.submit(now, command),
            Model::Ssd(ssd) => ssd.submit(now, command),
            Model::Port(port) => port.passed.push(command),
        }
    }

    /// When something happens inside, which need not be an end of a command.
    pub fn next(&self) -> Option<Instant> {
        match self {
            Model::Plain(plain) => plain.next(),
            Model::Hdd(hdd) => hdd.next(),
            Model::Ssd(ssd) => ssd.next(),
            Model::Port(_) => None,
        }
    }

    /// Lets everything happen that is due at `now`; the numbers of the commands that ended are appended in their order.
    pub fn advance(&mut self, now: Instant, ended: &mut Vec<u64>) {
        match self {
            Model::Plain(plain) => plain.advance(now, ended),
            Model::Hdd(hdd) => hdd.advance(now, ended),
            Model::Ssd(ssd) => ssd.advance(now, ended),
            Model::Port(port) => ended.append(&mut port.ended),
        }
    }

    /// The power goes and comes back at once: queue and volatile buffer are forgotten, and whatever was moving stands still.
    pub fn power_cut(&mut self, now: Instant) {
        match self {
            Model::Plain(plain) => plain.power_cut(),
            Model::Hdd(hdd) => hdd.power_cut(now),
            Model::Ssd(ssd) => ssd.power_cut(now),
            Model::Port(port) => *port = Port::default(),
        }
    }

    /// Energy used until `now`, by what it was used for. Nothing of a plain model, or of a part.
    pub fn energy(&self, now: Instant) -> Account {
        match self {
            Model::Plain(_) | Model::Port(_) => Account::default(),
            Model::Hdd(hdd) => hdd.energy(now),
            Model::Ssd(ssd) => ssd.energy(now),
        }
    }

    pub fn state(&self) -> PowerState {
        match self {
            Model::Plain(plain) => plain.state(),
            Model::Hdd(hdd) => hdd.state(),
            Model::Ssd(ssd) => ssd.state(),
            Model::Port(_) => PowerState::Idle,
        }
    }

    pub fn counters(&self) -> Counters {
        match self {
            Model::Plain(plain) => plain.counters(),
            Model::Hdd(hdd) => hdd.counters(),
            Model::Ssd(ssd) => ssd.counters(),
            Model::Port(_) => Counters::default(),
        }
    }

    /// Tells an HDD to spin down as soon as it has nothing to do (its user's timeout has passed). A command that comes before that keeps
    /// it turning, one that comes later wakes it. Of any other device: nothing happens.
    pub fn spin_down(&mut self, now: Instant) {
        match self {
            Model::Plain(_) | Model::Ssd(_) | Model::Port(_) => {}
            Model::Hdd(hdd) => hdd.spin_down(now),
        }
    }

    /// Somebody else wakes the drive, if it has a motor that stands still.
    pub fn disturb(&mut self, now: Instant) {
        match self {
            Model::Plain(plain) => plain.disturb(now),
            Model::Hdd(hdd) => hdd.disturb(now),
            Model::Ssd(_) | Model::Port(_) => {}
        }
    }

    /// A timer of its own stops it, if it has nothing to do.
    pub fn doze(&mut self, now: Instant) {
        match self {
            Model::Plain(plain) => plain.doze(),
            Model::Hdd(hdd) if hdd.state() == PowerState::Idle => hdd.spin_down(now),
            Model::Hdd(_) | Model::Ssd(_) | Model::Port(_) => {}
        }
    }
}
