//! The lines of `tidegate status` about a disk that is told to stand still.

use serde_json::Value;

use crate::units;

/// Name and value of each line; none of a disk that is told nothing.
pub fn lines(spin: &Value) -> Vec<(&'static str, String)> {
    if !spin.is_object() {
        return Vec::new();
    }
    let number = |key: &str| spin[key].as_u64().unwrap_or(0);
    let amount = |key: &str| spin[key].as_f64().unwrap_or(0.0);
    let word = |key: &str| spin[key].as_str().unwrap_or("-").to_owned();
    let since = spin["state_seconds"].as_f64().map_or(String::new(), |seconds| format!(" for {}", units::show_seconds(seconds)));
    let next = spin["next_stop_seconds"]
        .as_f64()
        .map_or(String::new(), |seconds| format!(", to be stopped in {}{}", units::show_seconds(seconds), later(spin)));
    let mut lines = vec![("disk", format!("{}{since}{next} ({}, {})", word("state"), word("disk"), word("commands")))];
    let cost = spin["saved_cost"]["amount"].as_f64();
    let cost = cost.map_or(String::new(), |cost| format!(", {cost:.2} {}", spin["saved_cost"]["currency"].as_str().unwrap_or("-")));
    let losses = if number("losses") > 0 { format!("; {} rests did not pay", number("losses")) } else { String::new() };
    let saved =
        format!("{:.1} kJ ({:.3} kWh{cost}) saved beside a disk that is always on", amount("saved_joules") / 1e3, amount("saved_kwh"));
    lines.push(("slept", format!("{} in {} rests; {saved}{losses}", units::show_seconds(amount("slept_seconds")), number("stops"))));
    let causes = super::status::counts(&spin["starts"]);
    let life = format!("{} of {} in the disk's life", number("cycles"), number("rated_cycles"));
    let hour =
        spin["starts_per_hour"].as_u64().map_or(String::new(), |most| format!("{} of {most} in this hour, ", number("starts_in_the_hour")));
    lines.push(("starts", format!("{causes}; {hour}{life}")));
    lines.extend(pays(spin).map(|value| ("pays", value)));
    if let Some(last) = spin["last_starts"].as_array().and_then(|starts| starts.last()) {
        lines.push(("woken", woken(last)));
    }
    const TROUBLES: [(&str, &str); 5] = [
        ("stop_failures", "times it did not stop"),
        ("wake_failures", "times it did not wake"),
        ("own_stops", "times it stopped by itself"),
        ("over_budget", "rests later or left out for the budget"),
        ("used_by_others", "times it turned on because others used it"),
    ];
    let troubles: Vec<String> =
        TROUBLES.iter().filter(|(key, _)| number(key) > 0).map(|(key, what)| format!("{} {what}", number(key))).collect();
    if !troubles.is_empty() {
        lines.push(("motor", troubles.join(", ")));
    }
    lines
}

/// Why a stop is as late as it is, if that is for the budget.
fn later(spin: &Value) -> String {
    let later = spin["later_for_budget_seconds"].as_f64().filter(|&seconds| seconds >= 1.0);
    later.map_or(String::new(), |seconds| format!(" ({} later, to spare the hour's starts)", units::show_seconds(seconds)))
}

/// From which rest on standing still saves something, and where the spin-up's time is from that this follows from.
fn pays(spin: &Value) -> Option<String> {
    let seconds = |key: &str| spin[key].as_f64().map(units::show_seconds);
    let (break_even, spin_up) = (seconds("break_even_seconds")?, seconds("spin_up_seconds")?);
    let origin = match spin["spin_up_learnt_from_starts"].as_u64() {
        Some(starts) => format!("learnt from {starts} starts: {spin_up}"),
        None => format!("{spin_up} as configured, until it is learnt"),
    };
    Some(format!("from {break_even} of standby on; spin-up {origin}"))
}

/// The last start: when, by what, and after how long.
fn woken(start: &Value) -> String {
    let seconds = |key: &str| start[key].as_f64().map(units::show_seconds);
    let place = start["offset_bytes"].as_u64().map_or(String::new(), |offset| format!(" at {}", units::show_size(offset)));
    let took = seconds("took_seconds").map_or(String::new(), |took| format!(", ready after {took}"));
    let cause = start["cause"].as_str().unwrap_or("-");
    let (ago, standby) = (seconds("seconds_ago").unwrap_or_default(), seconds("standby_seconds").unwrap_or_default());
    format!("{ago} ago ({cause}{place}), after {standby} of standby{took}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_spin_up_that_is_not_learnt_yet_is_as_configured() {
        let told = json!({ "spin_up_seconds": 7.0, "spin_up_learnt_from_starts": null, "break_even_seconds": 18.6 });
        assert_eq!(pays(&told).unwrap(), "from 19 s of standby on; spin-up 7.0 s as configured, until it is learnt");
        assert_eq!(pays(&json!({})), None, "a daemon of an earlier version does not say");
    }

    #[test]
    fn a_stop_that_waits_for_the_budget_says_so() {
        let disk = |later: f64| {
            let told = json!({ "disk": "/dev/sdb", "commands": "ATA", "state": "idle", "next_stop_seconds": 150.0, "later_for_budget_seconds": later });
            lines(&told)[0].1.clone()
        };
        assert_eq!(disk(130.0), "idle, to be stopped in 2 min 30 s (2 min 10 s later, to spare the hour's starts) (/dev/sdb, ATA)");
        assert_eq!(disk(0.2), "idle, to be stopped in 2 min 30 s (/dev/sdb, ATA)");
    }

    #[test]
    fn a_disk_that_is_told_nothing_has_no_lines() {
        assert!(lines(&Value::Null).is_empty());
    }

    #[test]
    fn the_owner_sees_what_it_did_and_what_that_saved() {
        let told = lines(&json!({
            "disk": "/dev/sdb", "commands": "ATA", "state": "idle", "state_seconds": 8.0, "next_stop_seconds": 12.0,
            "slept_seconds": 7384.0, "stops": 2, "starts": { "read": 2, "room": 0 }, "saved_joules": 39_000.0, "saved_kwh": 0.0108,
            "saved_cost": { "amount": 0.0032, "currency": "EUR" }, "losses": 1, "own_stops": 3, "used_by_others": 7, "cycles": 1236, "rated_cycles": 50_000,
            "spin_up_seconds": 7.1, "spin_up_learnt_from_starts": 5, "break_even_seconds": 18.9,
            "later_for_budget_seconds": 0.0, "starts_in_the_hour": 2, "starts_per_hour": 12,
            "last_starts": [{ "seconds_ago": 30.0, "cause": "read", "offset_bytes": 4096, "standby_seconds": 7200.0, "took_seconds": 7.1 }],
        }));
        let expected = [
            ("disk", "idle for 8.0 s, to be stopped in 12 s (/dev/sdb, ATA)"),
            ("slept", "2 h 03 min in 2 rests; 39.0 kJ (0.011 kWh, 0.00 EUR) saved beside a disk that is always on; 1 rests did not pay"),
            ("starts", "read 2; 2 of 12 in this hour, 1236 of 50000 in the disk's life"),
            ("pays", "from 19 s of standby on; spin-up learnt from 5 starts: 7.1 s"),
            ("woken", "30 s ago (read at 4.0 KiB), after 2 h 00 min of standby, ready after 7.1 s"),
            ("motor", "3 times it stopped by itself, 7 times it turned on because others used it"),
        ];
        assert_eq!(told, expected.map(|(name, value)| (name, value.to_owned())));
    }
}
