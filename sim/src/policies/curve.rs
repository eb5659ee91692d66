//! The miss ratio of LRU over the size of the cache, from one pass over a sample of a trace.

use std::fmt::Write;

use serde_json::json;
use tidegate_engine::policy::Curve;

use super::BLOCK_BYTES;
use super::size::show_bytes;

/// A curve, and where it is looked at.
pub struct Drawn {
    pub trace: String,
    pub curve: Curve,
    /// Sizes in blocks up to the working set, about; none smaller than the sample tells apart.
    pub blocks: Vec<u64>,
}

/// `rate`: share of the blocks in the sample, more than 0 and at most 1.
pub fn draw(trace: &str, accesses: &[u64], rate: f64, points: u32) -> Drawn {
    let mut curve = Curve::new(rate);
    accesses.iter().for_each(|&key| curve.touch(key));
    let working_set = (curve.keys().round() as u64).max(1);
    let size = |point: u64| (u128::from(working_set) * u128::from(point) / u128::from(points)) as u64;
    let mut blocks: Vec<u64> = (1..=u64::from(points)).map(|point| size(point).max(curve.blocks_min())).collect();
    blocks.dedup();
    Drawn { trace: trace.to_owned(), curve, blocks }
}

/// For people: miss ratios in per cent, and as bars.
pub fn table(drawn: &Drawn) -> String {
    const BAR: f64 = 50.0;
    let Drawn { trace, curve, blocks } = drawn;
    let (remembered, error) = (curve.remembered(), 100.0 * curve.error());
    let mut out = format!(
        "{trace}: {} accesses of about {:.0} different blocks; LRU, from {remembered} of them ({:.2}%): ± {error:.1} points\n",
        curve.accesses(),
        curve.keys(),
        100.0 * curve.rate(),
    );
    put(&mut out, &format!("{:>10}{:>12}{:>11}", "blocks", "", "misses, %"));
    for &blocks in blocks {
        let ratio = curve.miss_ratio(blocks);
        let bar = "#".repeat((ratio * BAR).round() as usize);
        put(&mut out, &format!("{blocks:>10}{:>12}{:>11.2}  {bar}", show_bytes(blocks * BLOCK_BYTES), 100.0 * ratio));
    }
    out
}

fn put(out: &mut String, line: &str) {
    writeln!(out, "{}", line.trim_end()).expect("a string takes everything");
}

/// The same for programs: one object. `error` is in the unit of the ratios.
pub fn json(drawn: &Drawn) -> String {
    let Drawn { trace, curve, blocks } = drawn;
    let points: Vec<_> = blocks.iter().map(|&blocks| json!({ "blocks": blocks, "miss_ratio": curve.miss_ratio(blocks) })).collect();
    json!({
        "trace": trace, "accesses": curve.accesses(), "working_set": curve.keys().round(), "rate": curve.rate(), "error": curve.error(),
        "points": points,
    })
    .to_string()
}
