//! One CSV file for each series of each run. Times in seconds, whole numbers as they are.

use crate::back::model::Charge;
use crate::experiment::Experiment;
use crate::experiment::load::Ask;
use crate::experiment::measure::{GATE_STATES, Measured, POWER_STATES};
use std::fmt::Write;
use tidegate_engine::time::Duration;

/// Name and contents of every file.
pub(super) fn all(experiment: &Experiment) -> Vec<(String, String)> {
    let mut files = Vec::new();
    for (run, measured) in experiment.plan.runs.iter().zip(&experiment.measured) {
        let name = run.name.replace('/', "-");
        files.push((format!("{name}-throughput.csv"), throughput(measured)));
        files.push((format!("{name}-latency.csv"), latency(measured)));
        files.push((format!("{name}-states.csv"), states(measured)));
        files.push((format!("{name}-energy.csv"), energy(measured)));
    }
    files
}

/// Nanoseconds as seconds, exactly.
fn exact(time: Duration) -> String {
    format!("{}.{:09}", time.0 / 1_000_000_000, time.0 % 1_000_000_000)
}

fn throughput(measured: &Measured) -> String {
    let mut text = "seconds,bytes\n".to_string();
    for (start, [bytes]) in measured.measure.throughput.cells() {
        let _ = writeln!(text, "{},{bytes}", exact(start));
    }
    text
}

fn latency(measured: &Measured) -> String {
    let mut text = "request,count,mean_ns,p50_ns,p90_ns,p99_ns,p999_ns,max_ns\n".to_string();
    for (name, ask) in [("read", Ask::Read), ("write", Ask::Write), ("flush", Ask::Flush)] {
        let latencies = &measured.measure.latencies[ask as usize];
        let shares = [500, 900, 990, 999].map(|share| latencies.per_mille(share).0.to_string()).join(",");
        let _ = writeln!(text, "{name},{},{},{shares},{}", latencies.count(), latencies.mean().0, latencies.max().0);
    }
    text
}

/// Nanoseconds in each state, bucket by bucket.
fn states(measured: &Measured) -> String {
    let mut text = "what,seconds,state,nanoseconds\n".to_string();
    for device in &measured.devices {
        for (start, cell) in device.states.cells() {
            for (state, time) in POWER_STATES.iter().zip(cell).filter(|(_, time)| **time > 0) {
                let _ = writeln!(text, "{},{},{},{time}", device.name, exact(start), state.name());
            }
        }
    }
    if let Some(gate) = &measured.gate {
        for (start, cell) in gate.states.cells() {
            for (state, time) in GATE_STATES.iter().zip(cell).filter(|(_, time)| **time > 0) {
                let _ = writeln!(text, "gate,{},{state},{time}", exact(start));
            }
        }
    }
    text
}

fn energy(measured: &Measured) -> String {
    let mut text = "device,cause,nanojoules\n".to_string();
    for device in &measured.devices {
        for charge in Charge::ALL {
            let _ = writeln!(text, "{},{},{}", device.name, charge.name(), device.account.nanojoules(charge));
        }
    }
    text
}
