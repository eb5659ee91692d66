//! The disk that sleeps, for its owner: what he has said of it, a line in the log for each start and what caused it, and the object `spin` of
//! a status.

use serde_json::{Map, Value, json};
use tidegate_engine::block::{ATOM_BYTES, Span};
use tidegate_engine::spin::quiet::OfDay;
use tidegate_engine::spin::{Cause, Config, Counters, Motor as State, Report, Start, State as Doing};
use tidegate_engine::time::Instant;

use crate::back::of_day::second_of_day;
use crate::back::spin::{Motor, Which};

/// What the owner has said.
#[derive(Clone, Debug)]
pub struct Options {
    pub which: Which,
    pub config: Config,
    pub tariff: Option<Tariff>,
}

/// What electricity costs.
#[derive(Clone, Debug, PartialEq)]
pub struct Tariff {
    pub per_kwh: f64,
    /// As the owner calls it: "EUR".
    pub currency: String,
}

/// A disk whose motor takes commands.
pub struct Sleeper {
    motor: Motor,
    config: Config,
    tariff: Option<Tariff>,
    /// Of these it has been told already.
    told: Counters,
    /// A start that has not ended yet is told when it has.
    untold: bool,
}

impl Sleeper {
    /// Where the disk itself says how often it was started, that counts, and not what the owner has said.
    pub fn new(motor: Motor, options: &Options) -> Sleeper {
        let mut config = options.config.clone();
        config.cycles_before = motor.starts().unwrap_or(config.cycles_before);
        config.quiet.at_zero = Some(OfDay(second_of_day()));
        Sleeper { motor, config, tariff: options.tariff.clone(), told: Counters::default(), untold: false }
    }

    /// For the engine. Its clock starts now, more or less.
    pub fn config(&self) -> Config {
        self.config.clone()
    }

    pub fn motor(&self) -> &Motor {
        &self.motor
    }

    pub fn motor_mut(&mut self) -> &mut Motor {
        &mut self.motor
    }

    /// What the owner is to know since the last time: a line for each start, and for each failure.
    pub fn news(&mut self, state: &State) -> Vec<String> {
        let (counters, disk) = (state.counters(), self.motor.disk().display());
        if *counters == self.told && !self.untold {
            return Vec::new();
        }
        let mut lines = Vec::new();
        if counters.wake_failures > self.told.wake_failures {
            lines.push(format!("disk {disk} was told to turn and does not; it is told again, and meanwhile what needs it waits"));
        }
        if counters.stop_failures > self.told.stop_failures {
            lines.push(format!("disk {disk} was told to stand still and turns on; it is left alone for an hour"));
        }
        self.untold |= counters.all_starts() > self.told.all_starts();
        if let Some(start) = state.last_start().filter(|start| self.untold && (start.took.is_some() || start.cause == Cause::Stranger)) {
            lines.push(format!("disk {disk} {}", describe(start)));
            self.untold = false;
        }
        self.told = counters.clone();
        lines
    }

    /// The object `spin` of a status.
    pub fn json(&self, report: &Report, now: Instant) -> Value {
        let Report { counters, .. } = report;
        let starts: Map<_, _> =
            Cause::ALL.into_iter().map(|cause| (cause.name().to_owned(), json!(counters.starts[cause as usize]))).collect();
        let joules = report.saved as f64 / 1e6;
        let cost =
            self.tariff.as_ref().map(|Tariff { per_kwh, currency }| json!({ "amount": kwh(joules) * per_kwh, "currency": currency }));
        let (state, since) = doing(report.state);
        json!({
            "disk": self.motor.disk().display().to_string(),
            "commands": self.motor.language(),
            "state": state,
            "state_seconds": since.map(|since| now.since(since).as_secs_f64()),
            "next_stop_seconds": report.next_stop.map(|stop| stop.since(now).as_secs_f64()),
            "later_for_budget_seconds": report.later_for_budget.as_secs_f64(),
            "starts_in_the_hour": report.hour.0,
            "starts_per_hour": report.hour.1,
            "slept_seconds": report.slept.as_secs_f64(),
            "stops": counters.stops,
            "starts": starts,
            "saved_joules": joules,
            "saved_kwh": kwh(joules),
            "saved_cost": cost,
            "losses": counters.losses,
            "over_budget": counters.over_budget,
            "used_by_others": counters.others,
            "own_stops": counters.own_stops,
            "stop_failures": counters.stop_failures,
            "wake_failures": counters.wake_failures,
            "spin_up_seconds": report.drive.spin_up.as_secs_f64(),
            "spin_up_learnt_from_starts": report.learnt.map(|learnt| learnt.starts),
            "break_even_seconds": report.drive.break_even().as_secs_f64(),
            "cycles": report.cycles,
            "rated_cycles": report.rated_cycles,
            "last_starts": report.starts.iter().map(|start| start_json(start, now)).collect::<Vec<_>>(),
        })
    }
}

fn kwh(joules: f64) -> f64 {
    joules / 3.6e6
}

/// As a status names what it does, and since when.
fn doing(state: Doing) -> (&'static str, Option<Instant>) {
    match state {
        Doing::Unknown => ("unknown", None),
        Doing::Active => ("active", None),
        Doing::Idle { since } => ("idle", Some(since)),
        Doing::Stopping { since } => ("stopping", Some(since)),
        Doing::Standby { since } => ("standby", Some(since)),
        Doing::Waking { since, .. } => ("waking", Some(since)),
    }
}

fn start_json(start: &Start, now: Instant) -> Value {
    json!({
        "seconds_ago": now.since(start.at).as_secs_f64(),
        "cause": start.cause.name(),
        "offset_bytes": start.span.map(|span| span.offset()),
        "bytes": start.span.map(|span| span.bytes()),
        "standby_seconds": start.standby.as_secs_f64(),
        "took_seconds": start.took.map(|took| took.as_secs_f64()),
        "saved_joules": start.saved as f64 / 1e6,
    })
}

/// Why and how a start was, as the log tells it.
fn describe(start: &Start) -> String {
    let why = match start.cause {
        Cause::Read => "for a read",
        Cause::Write => "for a write past the log",
        Cause::Room => "because the log has little room",
        Cause::Age => "because something has been dirty for too long",
        Cause::Command => "for a command",
        Cause::Stranger => "by somebody else",
    };
    let place =
        start.span.map_or(String::new(), |Span { start, atoms }| format!(" of {} bytes at {}", atoms * ATOM_BYTES, start * ATOM_BYTES));
    let ready = start.took.map_or(String::new(), |took| format!(", ready after {:.1} s", took.as_secs_f64()));
    let worth = if start.saved < 0 { "; the rest was too short to save anything" } else { "" };
    format!("was started {why}{place} after {:.0} s of standby{ready}{worth}", start.standby.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_engine::time::Duration;

    fn start(cause: Cause) -> Start {
        let (standby, took) = (Duration::from_secs(7_200), Some(Duration::from_millis(7_100)));
        Start { at: Instant(0), cause, span: None, standby, took, saved: 5_000_000 }
    }

    #[test]
    fn a_start_is_told_with_its_cause() {
        let read = Start { span: Some(Span::new(8, 16)), ..start(Cause::Read) };
        assert_eq!(describe(&read), "was started for a read of 8192 bytes at 4096 after 7200 s of standby, ready after 7.1 s");
        let stranger = Start { took: None, saved: -1, standby: Duration::from_secs(5), ..start(Cause::Stranger) };
        assert_eq!(describe(&stranger), "was started by somebody else after 5 s of standby; the rest was too short to save anything");
    }

    #[test]
    fn a_kilowatt_hour_is_3_6_megajoules() {
        assert!((kwh(7.2e6) - 2.0).abs() < 1e-9);
    }
}
