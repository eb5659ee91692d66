//! `[spin]`: whether the origin's disk is told to stand still, and what its owner knows of it.

use serde::Deserialize;
use std::path::PathBuf;
use tidegate_daemon::back::spin::Which;
use tidegate_daemon::sleeper::{self, Tariff};
use tidegate_engine::spin::predictor::Kind;
use tidegate_engine::spin::quiet::{Hours, OfDay};
use tidegate_engine::spin::{Config, Drive, Quiet};

use super::values::Span;
use crate::units::{self, shorten};

/// The longest time that a disk may take to come to speed; more is a typing error.
const SPIN_UP_SECONDS: u64 = 120;
const STARTS_MAX: u32 = 10_000_000;
/// As `mW` meant and `W` written.
const POWER_MAX_MW: u64 = 1_000_000;

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Spin {
    motor: Option<Motor>,
    predictor: Option<Predictor>,
    starts_per_hour: Option<Starts>,
    max_dirty_age: Option<Span>,
    quiet: Option<Vec<Between>>,
    idle: Option<Power>,
    standby: Option<Power>,
    spin_up: Option<Span>,
    spin_up_power: Option<Power>,
    rated_starts: Option<Starts>,
    starts_before: Option<Starts>,
    kwh_price: Option<Price>,
}

// A price is a finite number.
impl Eq for Spin {}

impl Spin {
    /// Relations between values. The error names the key whose line is to blame.
    pub fn validate(&self) -> Result<(), (&'static str, String)> {
        if *self != Spin::default() && self.motor.is_none() {
            let key = self.first_key();
            return Err((key, format!("`{key}` without `motor`; say which disk is meant: motor = \"auto\"")));
        }
        let drive = self.drive();
        if drive.standby_mw >= drive.idle_mw {
            return Err(("standby", "`standby` must be less than `idle`, or standing still saves nothing".to_owned()));
        }
        if drive.spin_up_mw < drive.idle_mw {
            let key = if self.spin_up_power.is_some() { "spin_up_power" } else { "idle" };
            let watts = |milliwatts: u64| milliwatts as f64 / 1e3;
            let (spin_up, idle) = (watts(drive.spin_up_mw), watts(drive.idle_mw));
            let what = format!("`spin_up_power` ({spin_up} W) must be at least `idle` ({idle} W): what comes to speed turns as well");
            return Err((key, what));
        }
        if drive.spin_up.as_secs_f64() > SPIN_UP_SECONDS as f64 {
            return Err(("spin_up", format!("`spin_up` must be at most {SPIN_UP_SECONDS} s")));
        }
        Ok(())
    }

    fn first_key(&self) -> &'static str {
        let keys = [
            ("predictor", self.predictor.is_some()),
            ("starts_per_hour", self.starts_per_hour.is_some()),
            ("max_dirty_age", self.max_dirty_age.is_some()),
            ("quiet", self.quiet.is_some()),
            ("idle", self.idle.is_some()),
            ("standby", self.standby.is_some()),
            ("spin_up", self.spin_up.is_some()),
            ("spin_up_power", self.spin_up_power.is_some()),
            ("rated_starts", self.rated_starts.is_some()),
            ("starts_before", self.starts_before.is_some()),
            ("kwh_price", self.kwh_price.is_some()),
        ];
        keys.into_iter().find(|(_, is_set)| *is_set).map_or("motor", |(key, _)| key)
    }

    fn drive(&self) -> Drive {
        let default = Drive::DESKTOP;
        Drive {
            idle_mw: self.idle.map_or(default.idle_mw, |power| power.0),
            standby_mw: self.standby.map_or(default.standby_mw, |power| power.0),
            spin_up: self.spin_up.map_or(default.spin_up, |span| span.0),
            spin_up_mw: self.spin_up_power.map_or(default.spin_up_mw, |power| power.0),
            rated_cycles: self.rated_starts.map_or(default.rated_cycles, |starts| starts.0),
            ..default
        }
    }

    /// None: no disk is told anything.
    pub fn options(&self) -> Option<sleeper::Options> {
        let which = self.motor.clone()?.0;
        let default = Config::new(self.drive());
        let config = Config {
            predictor: self.predictor.map_or(default.predictor, |predictor| predictor.0),
            per_hour: self.starts_per_hour.map_or(default.per_hour, |starts| starts.0),
            cycles_before: self.starts_before.map_or(default.cycles_before, |starts| starts.0),
            max_dirty_age: self.max_dirty_age.map_or(default.max_dirty_age, |span| span.0),
            quiet: Quiet { hours: self.quiet.iter().flatten().map(|between| between.0).collect(), at_zero: None },
            ..default
        };
        Some(sleeper::Options { which, config, tariff: self.kwh_price.clone().map(|price| price.0) })
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
struct Motor(Which);

impl TryFrom<String> for Motor {
    type Error = String;
    fn try_from(text: String) -> Result<Self, String> {
        match text.as_str() {
            "auto" => Ok(Motor(Which::Origins)),
            path if path.starts_with('/') => Ok(Motor(Which::Named(PathBuf::from(path)))),
            _ => Err(format!("{:?} is no motor: \"auto\", or a disk such as \"/dev/sdb\"", shorten(&text))),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
struct Predictor(Kind);

impl TryFrom<String> for Predictor {
    type Error = String;
    fn try_from(text: String) -> Result<Self, String> {
        let known = || Kind::ALL.map(Kind::name).join(", ");
        let found = Kind::ALL.into_iter().find(|kind| kind.name() == text);
        found.map(Predictor).ok_or_else(|| format!("{:?} is no predictor: there are {}", shorten(&text), known()))
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "i64")]
struct Starts(u32);

impl TryFrom<i64> for Starts {
    type Error = String;
    fn try_from(number: i64) -> Result<Self, String> {
        let starts = u32::try_from(number).ok().filter(|&starts| starts <= STARTS_MAX);
        starts.map(Starts).ok_or_else(|| format!("{number} is not a number of starts from 0 to {STARTS_MAX}"))
    }
}

/// Milliwatts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
struct Power(u64);

impl TryFrom<String> for Power {
    type Error = String;
    fn try_from(text: String) -> Result<Self, String> {
        match units::parse_power(&text)? {
            power if power > POWER_MAX_MW => {
                Err(format!("{:?} is more than any disk draws: at most {} W", shorten(&text), POWER_MAX_MW / 1_000))
            }
            power => Ok(Power(power)),
        }
    }
}

/// `23:00-07:00`
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
struct Between(Hours);

impl TryFrom<String> for Between {
    type Error = String;
    fn try_from(text: String) -> Result<Self, String> {
        let of_day = |text: &str| {
            let (hours, minutes) = text.trim().split_once(':')?;
            let (hours, minutes): (u32, u32) = (hours.parse().ok()?, minutes.parse().ok()?);
            (hours < 24 && minutes < 60).then_some(OfDay(hours * 3600 + minutes * 60))
        };
        let between = text.split_once('-').and_then(|(from, until)| Some(Hours { from: of_day(from)?, until: of_day(until)? }));
        let hours = between.filter(|hours| hours.from != hours.until);
        hours.map(Between).ok_or_else(|| format!("{:?} is not a time of the day such as \"23:00-07:00\"", shorten(&text)))
    }
}

/// `0.30 EUR`
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(try_from = "String")]
struct Price(Tariff);

impl TryFrom<String> for Price {
    type Error = String;
    fn try_from(text: String) -> Result<Self, String> {
        let price = text.trim().split_once(' ').and_then(|(amount, currency)| {
            let per_kwh = amount.parse().ok().filter(|amount: &f64| amount.is_finite() && *amount >= 0.0)?;
            let currency = currency.trim();
            (!currency.is_empty() && currency.chars().count() <= 8).then(|| Tariff { per_kwh, currency: currency.to_owned() })
        });
        price.map(Price).ok_or_else(|| format!("{:?} is not a price such as \"0.30 EUR\"", shorten(&text)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spin(text: &str) -> Result<Spin, String> {
        let spin: Spin = toml::from_str(text).map_err(|error| error.message().to_owned())?;
        spin.validate().map_err(|(key, what)| format!("{key}: {what}"))?;
        Ok(spin)
    }

    #[test]
    fn without_a_motor_nothing_is_told_anything() {
        assert!(spin("").unwrap().options().is_none());
        assert_eq!(spin("idle = \"5W\"").unwrap_err(), "idle: `idle` without `motor`; say which disk is meant: motor = \"auto\"");
    }

    #[test]
    fn what_the_data_sheet_says_is_taken() {
        let text = "motor = \"/dev/sdb\"\npredictor = \"share\"\nstarts_per_hour = 4\nidle = \"5.2W\"\nstandby = \"400mW\"\nspin_up = \"9s\"\n\
                    rated_starts = 300000\nquiet = [\"23:00-07:00\"]\nkwh_price = \"0.31 EUR\"";
        let options = spin(text).unwrap().options().unwrap();
        assert_eq!(options.which, Which::Named("/dev/sdb".into()));
        let config = options.config;
        assert_eq!((config.predictor, config.per_hour, config.drive.rated_cycles), (Kind::Share, 4, 300_000));
        assert_eq!((config.drive.idle_mw, config.drive.standby_mw, config.drive.spin_up.as_secs_f64()), (5_200, 400, 9.0));
        assert_eq!(config.wait_mw, 5_200, "waiting costs what the disk draws");
        assert_eq!(config.quiet.hours, [Hours { from: OfDay(23 * 3600), until: OfDay(7 * 3600) }]);
        assert_eq!(options.tariff, Some(Tariff { per_kwh: 0.31, currency: "EUR".to_owned() }));
    }

    #[test]
    fn what_cannot_be_is_one_line() {
        for (text, error) in [
            ("motor = \"sdb\"", "\"sdb\" is no motor: \"auto\", or a disk such as \"/dev/sdb\""),
            ("motor = \"auto\"\npredictor = \"luck\"", "\"luck\" is no predictor: there are fixed, break-even, share, history"),
            ("motor = \"auto\"\nquiet = [\"11pm\"]", "\"11pm\" is not a time of the day such as \"23:00-07:00\""),
            ("motor = \"auto\"\nquiet = [\"23:00-23:00\"]", "\"23:00-23:00\" is not a time of the day such as \"23:00-07:00\""),
            ("motor = \"auto\"\nkwh_price = \"cheap\"", "\"cheap\" is not a price such as \"0.30 EUR\""),
            ("motor = \"auto\"\nspin_up_power = \"19800W\"", "\"19800W\" is more than any disk draws: at most 1000 W"),
            ("motor = \"auto\"\nidle = \"7\"", "\"7\" has no unit: one of mW, W"),
            ("motor = \"auto\"\nstarts_per_hour = -1", "-1 is not a number of starts from 0 to 10000000"),
            ("motor = \"auto\"\nstandby = \"9W\"", "standby: `standby` must be less than `idle`, or standing still saves nothing"),
            (
                "motor = \"auto\"\nspin_up_power = \"4.5W\"",
                "spin_up_power: `spin_up_power` (4.5 W) must be at least `idle` (6.1 W): what comes to speed turns as well",
            ),
            (
                "motor = \"auto\"\nidle = \"21W\"",
                "idle: `spin_up_power` (19.8 W) must be at least `idle` (21 W): what comes to speed turns as well",
            ),
            ("motor = \"auto\"\nspin_up = \"10min\"", "spin_up: `spin_up` must be at most 120 s"),
        ] {
            assert_eq!(spin(text).unwrap_err(), error);
        }
    }
}
