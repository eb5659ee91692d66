//! The energy account: watts of the present state times the time spent in it, integrated exactly at every change of state, and charged to
//! what the device worked for.
//!
//! Power is whole microwatts and time whole nanoseconds, so energy is whole femtojoules: nothing is rounded before it is read.

use super::Cause;
use tidegate_engine::time::Instant;

/// Femtojoules of a nanojoule.
const FEMTO: u128 = 1_000_000;

/// What energy is used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Charge {
    Work(Cause),
    /// Spinning down and up again.
    Spin,
    /// Ready, or in standby, and nothing to do.
    Idle,
}

impl Charge {
    pub const ALL: [Charge; 8] = [
        Charge::Work(Cause::HostRead),
        Charge::Work(Cause::HostWrite),
        Charge::Work(Cause::Log),
        Charge::Work(Cause::Fill),
        Charge::Work(Cause::Destage),
        Charge::Work(Cause::Cleaning),
        Charge::Spin,
        Charge::Idle,
    ];

    const fn index(self) -> usize {
        match self {
            Charge::Work(cause) => cause as usize,
            Charge::Spin => 6,
            Charge::Idle => 7,
        }
    }

    /// The name in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Charge::Work(Cause::HostRead) => "host read",
            Charge::Work(Cause::HostWrite) => "host write",
            Charge::Work(Cause::Log) => "log",
            Charge::Work(Cause::Fill) => "fill",
            Charge::Work(Cause::Destage) => "destage",
            Charge::Work(Cause::Cleaning) => "cleaning",
            Charge::Spin => "spin-up",
            Charge::Idle => "idle",
        }
    }
}

/// Energy used, by what for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Account {
    femtojoules: [u128; Charge::ALL.len()],
}

impl Account {
    /// Nanojoules of one charge, rounded down.
    pub fn nanojoules(&self, charge: Charge) -> u64 {
        (self.femtojoules[charge.index()] / FEMTO) as u64
    }

    /// Nanojoules of everything, rounded down once.
    pub fn total_nanojoules(&self) -> u64 {
        (self.femtojoules.iter().sum::<u128>() / FEMTO) as u64
    }

    /// Joules, for reports.
    pub fn joules(&self, charge: Charge) -> f64 {
        self.nanojoules(charge) as f64 / 1e9
    }

    pub fn total_joules(&self) -> f64 {
        self.total_nanojoules() as f64 / 1e9
    }

    /// What was used since `earlier`, an account of the same device.
    pub fn since(&self, earlier: &Account) -> Account {
        Account { femtojoules: std::array::from_fn(|index| self.femtojoules[index] - earlier.femtojoules[index]) }
    }

    /// This and another device together.
    pub fn plus(&self, other: &Account) -> Account {
        Account { femtojoules: std::array::from_fn(|index| self.femtojoules[index] + other.femtojoules[index]) }
    }

    fn add(&mut self, charge: Charge, femtojoules: u128) {
        self.femtojoules[charge.index()] += femtojoules;
    }
}

/// An account that is being written: the power that is drawn now, and for what, since when.
#[derive(Clone, Debug)]
pub(super) struct Meter {
    account: Account,
    since: Instant,
    microwatts: u64,
    charge: Charge,
}

impl Meter {
    pub(super) fn new(microwatts: u64) -> Self {
        Meter { account: Account::default(), since: Instant::ZERO, microwatts, charge: Charge::Idle }
    }

    /// From `now` on the device draws `microwatts` for `charge`. Of several changes out of order the later moment counts.
    pub(super) fn set(&mut self, now: Instant, microwatts: u64, charge: Charge) {
        self.account.add(self.charge, u128::from(self.microwatts) * u128::from(now.since(self.since).0));
        (self.since, self.microwatts, self.charge) = (now.max(self.since), microwatts, charge);
    }

    pub(super) fn read(&self, now: Instant) -> Account {
        let mut account = self.account.clone();
        account.add(self.charge, u128::from(self.microwatts) * u128::from(now.since(self.since).0));
        account
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn energy_is_power_times_time_to_the_last_nanojoule() {
        let mut meter = Meter::new(700_000);
        let read = Charge::Work(Cause::HostRead);
        meter.set(Instant(3_000_000_001), 6_800_000, read);
        meter.set(Instant(4_000_000_001), 6_100_000, Charge::Idle);
        let account = meter.read(Instant(5_000_000_001));
        assert_eq!(account.nanojoules(read), 6_800_000_000);
        assert_eq!(account.nanojoules(Charge::Idle), 2_100_000_000 + 6_100_000_000);
        assert_eq!(account.total_nanojoules(), 15_000_000_000);
        assert_eq!(account.since(&account).total_nanojoules(), 0);
    }

    #[test]
    fn a_year_at_ten_watts_does_not_overflow() {
        let year = Instant(365 * 86_400 * 1_000_000_000);
        assert_eq!(Meter::new(10_000_000).read(year).total_nanojoules(), 315_360_000 * 1_000_000_000);
    }

    #[test]
    fn every_charge_has_its_place() {
        for (index, charge) in Charge::ALL.into_iter().enumerate() {
            assert_eq!(charge.index(), index);
        }
    }
}
