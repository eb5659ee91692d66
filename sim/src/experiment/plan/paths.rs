//! Paths: what an I/O costs a system of processes, step by step: on cores, under the system's lock, at the controller of its mirror.

use super::file::Source;
use crate::experiment::options::Options;
use crate::experiment::units::Time;
use serde::Deserialize;
use std::ops::RangeInclusive;
use tidegate_engine::time::Duration;
use toml::Spanned;

const CORES_MAX: u32 = 4096;
const STEPS_MAX: usize = 32;
const RECORDS_MAX: usize = 1024;
/// One step takes at most so long.
const STEP_MAX: Duration = Duration::from_secs(1);

/// A system as its processes meet it.
#[derive(Clone, Debug)]
pub struct System {
    pub cores: u32,
    /// Every time is drawn evenly from so many per cent below to as many above what the plan says.
    pub spread_percent: u64,
    pub read: Vec<Step>,
    pub write: Vec<Step>,
    /// There is one where a path sends.
    pub controller: Option<Controller>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Step {
    /// On a core.
    Core(Time),
    /// On a core, and holding the system's only lock.
    Lock(Time),
    /// A record to the mirror for each of these times; without a core until the last of them is answered, which is so long after the
    /// controller began with it, if it is alone in its message.
    Send(Vec<Time>),
}

/// The controller of a mirror: one message at a time, which carries what waits.
#[derive(Clone, Copy, Debug)]
pub struct Controller {
    /// Of each message.
    pub message: Duration,
    /// More for each record in it.
    pub record: Duration,
    /// Records in one message at most.
    pub records: usize,
}

/// As a plan says it.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ControllerTable {
    message: Time,
    record: Option<Time>,
    records: Option<usize>,
}

/// The system that a configuration with `cores` describes.
pub(super) fn system(source: &Source, title: &str, cores: &Spanned<u32>, options: &Options) -> Result<System, String> {
    let wrong = |what: &str| source.wrong(cores, format!("configuration {title}: {what}"));
    if options.device_keys() || options.cached_keys() || options.volume.is_some() {
        return Err(wrong("with `cores`, only `spread_percent`, `read`, `write` and `controller` may be set"));
    }
    if !(1..=CORES_MAX).contains(cores.as_ref()) {
        return Err(wrong(&format!("{} cores: from 1 to {CORES_MAX}", cores.as_ref())));
    }
    let spread_percent = options.spread_percent.as_ref().map_or(0, |spread| *spread.as_ref());
    if let Some(spread) = options.spread_percent.as_ref().filter(|_| spread_percent > 99) {
        return Err(source.wrong(spread, format!("a spread of {spread_percent} is not from 0 to 99 per cent")));
    }
    let [read, write] = [&options.read, &options.write].map(|path| path.iter().map(|step| step.as_ref().clone()).collect::<Vec<_>>());
    for steps in [&read, &write] {
        if !(1..=STEPS_MAX).contains(&steps.len()) {
            return Err(wrong(&format!("`read` and `write` are 1 to {STEPS_MAX} steps each, such as {{ core = \"5us\" }}")));
        }
    }
    let controller = controller(source, &wrong, options)?;
    for spanned in options.read.iter().chain(&options.write) {
        check_step(source, spanned, controller)?;
    }
    Ok(System { cores: *cores.as_ref(), spread_percent, read, write, controller })
}

fn controller(source: &Source, wrong: &dyn Fn(&str) -> String, options: &Options) -> Result<Option<Controller>, String> {
    let sends = options.read.iter().chain(&options.write).any(|step| matches!(step.as_ref(), Step::Send(_)));
    let (spanned, table) = match &options.controller {
        None if sends => return Err(wrong("a `send` needs the `controller` that sends it")),
        None => return Ok(None),
        Some(spanned) => (spanned, spanned.as_ref()),
    };
    if !sends {
        return Err(source.wrong(spanned, "a controller without a `send` step: nothing goes through it"));
    }
    let record = table.record.map_or(Duration::ZERO, |time| time.0);
    let records = table.records.unwrap_or(1);
    if !(1..=RECORDS_MAX).contains(&records) {
        return Err(source.wrong(spanned, format!("{records} records in a message: from 1 to {RECORDS_MAX}")));
    }
    for time in [table.message.0, record] {
        check_time(source, spanned, time, Duration::ZERO..=STEP_MAX)?;
    }
    Ok(Some(Controller { message: table.message.0, record, records }))
}

fn check_step(source: &Source, spanned: &Spanned<Step>, controller: Option<Controller>) -> Result<(), String> {
    match spanned.as_ref() {
        Step::Core(time) | Step::Lock(time) => check_time(source, spanned, time.0, Duration(1)..=STEP_MAX),
        Step::Send(times) if !(1..=STEPS_MAX).contains(&times.len()) => {
            Err(source.wrong(spanned, format!("a `send` is of 1 to {STEPS_MAX} records, such as [\"8us\"]")))
        }
        Step::Send(times) => {
            let busy = controller.map_or(Duration::ZERO, |controller| Duration(controller.message.0 + controller.record.0));
            times.iter().try_for_each(|time| check_time(source, spanned, time.0, busy.max(Duration(1))..=STEP_MAX))
        }
    }
}

fn check_time<T>(source: &Source, place: &Spanned<T>, time: Duration, within: RangeInclusive<Duration>) -> Result<(), String> {
    if within.contains(&time) {
        return Ok(());
    }
    let (low, high) = (within.start().0, within.end().0);
    Err(source
        .wrong(place, format!("a step of {} ns is not from {low} to {high} ns (a record takes at least what its message does)", time.0)))
}
