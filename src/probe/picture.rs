//! What a probe has measured, drawn with characters.

use tidegate_engine::device_probe::{Findings, Point};

use crate::units::{show_latency, show_size};

const ROWS: i64 = 6;
const BAR: f64 = 40.0;

/// How much longer two reads took than one, over their distance.
pub fn pairs(found: &Findings) -> String {
    let range = match found.interleave.seen() {
        Some(interleave) => format!("within one period of {}: they meet at its ends", show_size(interleave.period_bytes())),
        None => "over all distances up to 32 MiB".to_owned(),
    };
    let top = found.pairs.iter().map(|tooth| tooth.extra).max().unwrap_or(0).max(1);
    let mut lines = vec![format!("\nhow much longer two reads take than one, {range}")];
    for row in (0..ROWS).rev() {
        // A column reaches a row from its middle on.
        let bar: String = found.pairs.iter().map(|tooth| if 2 * ROWS * tooth.extra >= (2 * row + 1) * top { '#' } else { ' ' }).collect();
        let label = if row == ROWS - 1 { show_latency(top as u64) } else { String::new() };
        lines.push(format!("{label:>10} |{bar}").trim_end().to_owned());
    }
    let width = found.pairs.len();
    let ends = found.pairs.last().map_or(String::new(), |last| show_size(last.distance_bytes));
    lines.push(format!("{:>10} +{}", "", "-".repeat(width)));
    lines.push(format!("{:>10}  0{ends:>width$}", "", width = width.saturating_sub(1)));
    lines.join("\n")
}

/// Throughput and latency over depth.
pub fn curve(curve: &[Point]) -> String {
    let greatest = curve.iter().map(|point| point.throughput).fold(1.0, f64::max);
    let mut lines = vec![format!("\n{:>6}{:>12}{:>12}{:>12}", "depth", "reads/s", "mean", "p99")];
    for Point { depth, throughput, mean, p99, .. } in curve {
        let bar = "#".repeat((throughput / greatest * BAR).round() as usize);
        lines.push(format!("{depth:>6}{throughput:>12.0}{:>12}{:>12}  {bar}", show_latency(mean.0), show_latency(p99.0)));
    }
    lines.join("\n")
}
