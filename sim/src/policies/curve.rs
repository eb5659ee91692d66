//! The miss ratio of LRU over the size of the cache, from one pass over a sample of a trace.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::Path;

use serde_json::json;
use tidegate_engine::policy::Curve;

use super::size::show_bytes;
use super::{BLOCK_ATOMS, blocks};
use crate::experiment::load::trace::{self, Format, Refused, Whole};

/// A curve, and where it is looked at.
pub struct Drawn {
    pub trace: String,
    pub curve: Curve,
    /// Of a block, if that is known.
    pub block_bytes: Option<u64>,
    /// Sizes in blocks up to the working set, about; none smaller than the sample tells apart.
    pub blocks: Vec<u64>,
}

/// The curve of a trace file, of which no more than a sample is ever in memory. `rate`: share of the blocks in it at first, more than 0 and at most
/// 1. The error is one line: file, line (or record), what.
pub fn of_file(path: &Path, format: Format, rate: f64) -> Result<(Curve, Whole), Refused> {
    /// How far apart volumes lie: by the golden ratio of all there is, so that no two of them meet.
    const APART: u64 = 0x9e37_79b9_7f4a_7c15;
    let mut curve = Curve::new(rate);
    let mut volumes: BTreeMap<u32, u64> = BTreeMap::new();
    let whole = trace::each(path, format, BLOCK_ATOMS, &mut |record| {
        let next = volumes.len() as u64;
        let volume = *volumes.entry(record.volume).or_insert(next);
        blocks(&record).for_each(|block| curve.touch(block.wrapping_add(volume.wrapping_mul(APART))));
        true
    })?;
    Ok((curve, whole))
}

/// At so many sizes. The error is one line.
pub fn draw(trace: &str, curve: Curve, block_bytes: Option<u64>, points: u32) -> Result<Drawn, String> {
    if !curve.is_known() {
        let (found, rate) = (curve.remembered(), 100.0 * curve.rate());
        return Err(format!("{trace}: {rate:.2}% of its blocks are only {found}, too few to tell anything: take a larger --sample"));
    }
    let working_set = (curve.keys().round() as u64).max(1);
    let size = |point: u64| (u128::from(working_set) * u128::from(point) / u128::from(points)) as u64;
    let mut blocks: Vec<u64> = (1..=u64::from(points)).map(|point| size(point).max(curve.blocks_min())).collect();
    blocks.dedup();
    Ok(Drawn { trace: trace.to_owned(), curve, block_bytes, blocks })
}

/// For people: miss ratios in per cent, and as bars.
pub fn table(drawn: &Drawn) -> String {
    const BAR: f64 = 50.0;
    let Drawn { trace, curve, block_bytes, blocks } = drawn;
    let (remembered, error) = (curve.remembered(), 100.0 * curve.error());
    let mut out = format!(
        "{trace}: {} accesses of about {:.0} different blocks; LRU, from {remembered} of them ({:.2}%): ± {error:.1} points\n",
        curve.accesses(),
        curve.keys(),
        100.0 * curve.rate(),
    );
    put(&mut out, &format!("{:>10}{:>10}{:>12}{:>11}", "blocks", "± %", "", "misses, %"));
    for &blocks in blocks {
        let (ratio, off) = (curve.miss_ratio(blocks), 100.0 * curve.size_error(blocks));
        let bar = "#".repeat((ratio * BAR).round() as usize);
        let bytes = block_bytes.map_or(String::new(), |bytes| show_bytes(blocks.saturating_mul(bytes)));
        put(&mut out, &format!("{blocks:>10}{off:>10.1}{bytes:>12}{:>11.2}  {bar}", 100.0 * ratio));
    }
    out
}

fn put(out: &mut String, line: &str) {
    writeln!(out, "{}", line.trim_end()).expect("a string takes everything");
}

/// The same for programs: one object. `error` is in the unit of the ratios, `size_error` a share of the size.
pub fn json(drawn: &Drawn) -> String {
    let Drawn { trace, curve, blocks, .. } = drawn;
    let point = |&blocks: &u64| json!({ "blocks": blocks, "miss_ratio": curve.miss_ratio(blocks), "size_error": curve.size_error(blocks) });
    json!({
        "trace": trace, "accesses": curve.accesses(), "working_set": curve.keys().round() as u64, "rate": curve.rate(), "error": curve.error(),
        "points": blocks.iter().map(point).collect::<Vec<_>>(),
    })
    .to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(name: &str, text: &str, format: Format, rate: f64) -> Result<Curve, String> {
        let path = std::env::temp_dir().join(format!("tidegate-curve-{name}-{}", std::process::id()));
        std::fs::write(&path, text).unwrap();
        let found = of_file(&path, format, rate);
        std::fs::remove_file(&path).unwrap();
        found.map(|(curve, _)| curve).map_err(|why| why.to_string())
    }

    /// Two volumes of 100 blocks each, the same places in both.
    #[test]
    fn volumes_have_blocks_of_their_own() {
        let text: String = (0..2_000).map(|i| format!("{i} {} {} 8 1\n", i % 2, i / 2 % 100 * 8)).collect();
        let curve = of("volumes", &text, Format::Mqsim, 1.0).unwrap();
        assert_eq!((curve.remembered(), curve.accesses()), (200, 2_000));
        assert_eq!([190, 200].map(|blocks| (curve.miss_ratio(blocks) * 10.0).round()), [10.0, 1.0]);
    }

    #[test]
    fn a_sample_of_next_to_nothing_is_refused() {
        let keys: String = (0..1_000).map(|i| format!("{}\n", i % 50)).collect();
        let curve = |rate| of("few", &keys, Format::Keys, rate).unwrap();
        let why = draw("t", curve(0.02), None, 5).err().unwrap();
        assert!(why.starts_with("t: 2.00% of its blocks are only ") && why.ends_with("take a larger --sample"), "{why}");
        let whole = draw("t", curve(1.0), None, 5).unwrap();
        assert_eq!(whole.blocks, [10, 20, 30, 40, 50], "all of a few are known");
        assert!(!table(&whole).contains("iB"), "nobody knows how many bytes");
    }
}
