//! The lines of `tidegate status` about wear.

use serde_json::Value;

use crate::units::{show_days, show_decimal, show_seconds, show_size};

/// Name and text of each line; none of a daemon that does not tell.
pub fn lines(wear: &Value) -> Vec<(&'static str, String)> {
    if !wear.is_object() {
        return Vec::new();
    }
    let since_start = written(&wear["since_start"]);
    let text = match &wear["lifetime"] {
        // It recovers.
        Value::Null => format!("since the start {since_start}"),
        lifetime => format!("{}; since the start {since_start}", written(lifetime)),
    };
    let mut lines = vec![("wear", text)];
    let causes = wear["since_start"]["by_cause"].as_object().into_iter().flatten();
    let causes = causes.filter_map(|(cause, bytes)| Some((cause, bytes.as_u64().filter(|&bytes| bytes > 0)?)));
    let causes: Vec<String> = causes.map(|(cause, bytes)| format!("{cause} {}", show_size(bytes))).collect();
    if !causes.is_empty() {
        lines.push(("written", format!("since the start: {}", causes.join(", "))));
    }
    if let Some(life) = life(wear) {
        lines.push(("life", life));
    }
    if let Some(budget) = budget(&wear["budget"]) {
        lines.push(("budget", budget));
    }
    lines
}

/// `12.0 GiB written to the SSD, 1.26 for each byte of clients`.
fn written(of: &Value) -> String {
    let ratio = of["amplification"].as_f64().map_or(String::new(), |ratio| format!(", {ratio:.2} for each byte of clients"));
    format!("{} written to the SSD{ratio}", show_size(of["ssd_bytes"].as_u64().unwrap_or(0)))
}

fn life(wear: &Value) -> Option<String> {
    let used = wear.pointer("/life/used_percent")?.as_f64()?;
    let rated = show_decimal(wear.pointer("/life/rated_bytes")?.as_u64()?);
    let rate = wear["bytes_per_day"].as_u64().map_or(String::new(), |rate| {
        format!("; {} a day, measured over {}", show_decimal(rate), show_seconds(wear["measured_seconds"].as_f64().unwrap_or(0.0)))
    });
    let left = wear.pointer("/life/days_left").and_then(Value::as_f64).map_or(String::new(), |days| format!(": {} left", show_days(days)));
    Some(format!("{used:.1}% of {rated} used{rate}{left}"))
}

fn budget(budget: &Value) -> Option<String> {
    let daily = show_decimal(budget["daily_bytes"].as_u64()?);
    let left = budget["left_bytes"].as_i64()?;
    let unkept = match budget["unkept_blocks"].as_u64() {
        Some(0) | None => String::new(),
        Some(blocks) => format!("; {blocks} blocks that were read are not kept for it"),
    };
    let of = if left > 0 {
        format!("{} of {daily} a day left", show_decimal(left as u64))
    } else {
        format!("spent, {} more than {daily} a day: what is read is not kept", show_decimal(left.unsigned_abs()))
    };
    Some(of + &unkept)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn check(wear: &Value, expected: &[(&str, &str)]) {
        let lines = lines(wear);
        let lines: Vec<(&str, &str)> = lines.iter().map(|(name, text)| (*name, text.as_str())).collect();
        assert_eq!(lines, expected);
    }

    #[test]
    fn wear_reads_as_lines_with_units() {
        let lifetime = json!({ "ssd_bytes": 12u64 << 30, "amplification": 1.259 });
        let since_start = json!({ "ssd_bytes": 0, "amplification": null, "by_cause": { "clients": 0 } });
        check(&Value::Null, &[]);
        check(
            &json!({ "lifetime": lifetime, "since_start": since_start }),
            &[("wear", "12.0 GiB written to the SSD, 1.26 for each byte of clients; since the start 0 B written to the SSD")],
        );
        let since_start = json!({ "ssd_bytes": 6144, "amplification": 1.5, "by_cause": { "clients": 4096, "fills": 0, "journal": 2048 } });
        check(
            &json!({
                "lifetime": lifetime, "since_start": since_start, "bytes_per_day": 50_000_000_000u64, "measured_seconds": 3600.0,
                "life": { "rated_bytes": 150_000_000_000_000u64, "used_percent": 42.04, "days_left": 1739.2 },
                "budget": { "daily_bytes": 60_000_000_000u64, "left_bytes": 1_500_000_000u64, "unkept_blocks": 0 },
            }),
            &[
                (
                    "wear",
                    "12.0 GiB written to the SSD, 1.26 for each byte of clients; since the start 6.0 KiB written to the SSD, 1.50 for each \
                     byte of clients",
                ),
                ("written", "since the start: clients 4.0 KiB, journal 2.0 KiB"),
                ("life", "42.0% of 150.0 TB used; 50.0 GB a day, measured over 1 h 00 min: 1739 days left"),
                ("budget", "1.5 GB of 60.0 GB a day left"),
            ],
        );
    }

    #[test]
    fn a_spent_budget_says_what_that_means() {
        let spent = json!({ "daily_bytes": 60_000_000_000u64, "left_bytes": -2_000_000_000i64, "unkept_blocks": 7 });
        let expected = "spent, 2.0 GB more than 60.0 GB a day: what is read is not kept; 7 blocks that were read are not kept for it";
        assert_eq!(budget(&spent).as_deref(), Some(expected));
    }
}
