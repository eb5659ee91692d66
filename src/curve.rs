//! `tidegate curve`: what a running volume would miss with more memory or a larger cache, or less.

use std::fmt::Write as _;
use std::process::ExitCode;

use serde_json::Value;
use tidegate_daemon::Failure;
use tidegate_daemon::control::Verb;

use crate::args::Curve;
use crate::{say, status, units};

pub fn run(args: &Curve) -> Result<ExitCode, Failure> {
    let answer = status::asked(&args.of, Verb::Curve)?;
    if args.json {
        say(&answer.to_string());
        return Ok(ExitCode::SUCCESS);
    }
    let volumes = status::volumes(&answer);
    let one = |volume: &Value| {
        let name = if volumes.len() > 1 { format!("{}\n", volume["name"].as_str().unwrap_or("-")) } else { String::new() };
        name + &status::gone(volume).map_or_else(|| describe(volume), |why| format!("the volume {why}\n"))
    };
    say(&volumes.iter().map(one).collect::<Vec<_>>().join("\n"));
    Ok(ExitCode::SUCCESS)
}

/// A picture of each tier, and of which reads it tells.
fn describe(curve: &Value) -> String {
    let count = |name: &str| curve[name].as_u64().unwrap_or(0);
    let mut text = tier("memory", &curve["memory"]) + &tier("cache", &curve["cache"]);
    let (of_fronts, unnoted) = (count("front_blocks"), count("unnoted_blocks"));
    if unnoted > 0 {
        let share = 100.0 * unnoted as f64 / of_fronts.max(1) as f64;
        put(
            &mut text,
            &format!("front threads read {of_fronts} blocks from memory; {share:.1}% of them were not noted, and count like the others"),
        );
    }
    text
}

fn tier(name: &str, tier: &Value) -> String {
    const BAR: f64 = 50.0;
    let number = |name: &str| tier[name].as_u64().unwrap_or(0);
    let per_cent = |ratio: &Value| 100.0 * ratio.as_f64().unwrap_or(0.0);
    let (now, accesses) = (number("bytes"), number("accesses"));
    let size = if now == 0 { "none now".to_owned() } else { format!("{} now", units::show_size(now)) };
    let mut text = String::new();
    if accesses == 0 {
        put(&mut text, &format!("{name}: {size}; nothing was read yet"));
        return text;
    }
    let points = tier["points"].as_array().map_or(&[][..], Vec::as_slice);
    if points.is_empty() {
        put(&mut text, &format!("{name}: {size}; too few blocks were read yet to tell what others would miss"));
        return text;
    }
    let missed = if tier["missed"].is_null() { String::new() } else { format!(", which missed {:.1}%", per_cent(&tier["missed"])) };
    let (keys, rate, error) = (number("keys"), per_cent(&tier["rate"]), per_cent(&tier["error"]));
    put(
        &mut text,
        &format!(
            "{name}: {size}{missed}; LRU, from {accesses} reads of about {keys} blocks, {rate:.2}% of these looked at: ± {error:.1} points"
        ),
    );
    put(&mut text, &format!("{:>12}{:>8}{:>11}", "", "± %", "misses, %"));
    for point in points {
        let bytes = point["bytes"].as_u64().unwrap_or(0);
        let (ratio, off) = (per_cent(&point["miss_ratio"]), per_cent(&point["size_error"]));
        let mark = if bytes == now { '*' } else { ' ' };
        put(
            &mut text,
            &format!(
                "{mark}{:>11}{off:>8.1}{ratio:>11.2}  {}",
                units::show_size(bytes),
                "#".repeat((ratio / 100.0 * BAR).round() as usize)
            ),
        );
    }
    text
}

fn put(out: &mut String, line: &str) {
    writeln!(out, "{}", line.trim_end()).expect("a string takes everything");
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_curve_is_a_picture_with_the_present_size_marked() {
        let text = describe(&json!({
            "memory": {
                "bytes": 1 << 20, "accesses": 5000, "keys": 400, "rate": 1.0, "error": 0.005, "missed": 0.25,
                "points": [
                    { "bytes": 1 << 19, "miss_ratio": 0.5, "size_error": 0.01 },
                    { "bytes": 1 << 20, "miss_ratio": 0.26, "size_error": 0.01 },
                    { "bytes": 1 << 21, "miss_ratio": 0.0, "size_error": 0.0 },
                ],
            },
            "cache": { "bytes": 1 << 30, "accesses": 0 },
            "front_blocks": 1000, "unnoted_blocks": 250,
        }));
        let expected = "\
memory: 1.0 MiB now, which missed 25.0%; LRU, from 5000 reads of about 400 blocks, 100.00% of these looked at: ± 0.5 points
                 ± %  misses, %
   512.0 KiB     1.0      50.00  #########################
*    1.0 MiB     1.0      26.00  #############
     2.0 MiB     0.0       0.00
cache: 1.0 GiB now; nothing was read yet
front threads read 1000 blocks from memory; 25.0% of them were not noted, and count like the others
";
        assert_eq!(text, expected);
        let few = describe(&json!({
            "memory": { "bytes": 1 << 20, "accesses": 50, "rate": 0.01, "error": 1.0, "points": [] }, "cache": { "bytes": 0, "accesses": 0 },
        }));
        assert!(few.starts_with("memory: 1.0 MiB now; too few blocks were read yet"), "{few}");
    }
}
