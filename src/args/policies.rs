//! What can be asked about replacement.

use std::path::PathBuf;
use std::str::FromStr;

use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use tidegate_sim::experiment::load::trace::Format;
use tidegate_sim::policies::size::Size;

use crate::units::parse_disk_size;

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  tidegate sim policies OLTP.lis.zst
  tidegate sim policies web.trace --format keys32 --sizes 1024,1GiB,5%
  tidegate sim policies traces/lirs/*.gz traces/arc/* --json | jq '.summary[]'
  tidegate sim policies OLTP.lis.zst --deferred 64     what it costs that hits are told late

A trace is a list of requests; each block of 4 KiB that one touches is an access, and one that the cache does not have is a miss. In formats
with pages or keys each of these is a block: of 512 bytes in arc, of unknown length in keys and keys32, or of --page. Reads and writes alike,
and the cache is empty at first. Belady is the cache that knows the future: no policy can miss less. The best policy of each
row has a star. With several traces a last table says how many misses each policy has for one of LRU's, and how far it ever is from the best.
Formats: arc (.lis), keys (a number a line; also in a folder lirs), keys32 (also in a folder cache2k), vscsi, disksim, mqsim, msr (.csv),
tidegate (.tgtrace: `tidegate serve --record`), iolog (fio, --write_iolog), blkparse (blktrace's text);
packed by gzip, xz or zstd, or not. A file's ending says which, or its folder's name, or --format.")]
pub struct Policies {
    /// Files of block traces
    #[arg(value_name = "TRACE", required = true)]
    pub traces: Vec<PathBuf>,
    /// Caches: blocks (2692), bytes (10GiB), or shares of the blocks that the trace asks for (1%)
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = Size::USUAL, value_parser = Size::from_str)]
    pub sizes: Vec<Size>,
    /// Bytes of a page or key of arc, keys or keys32
    #[arg(long, value_name = "SIZE", value_parser = parse_disk_size)]
    pub page: Option<u64>,
    /// How the files are written, where their names do not tell
    #[arg(long, value_name = "FORMAT", value_parser = format())]
    pub format: Option<Format>,
    /// Also with hits of four threads, eight at once of each, in rings for N of them, that the policy is told of before a miss and when a
    /// ring is full: how many points more that misses
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=65_536))]
    pub deferred: Option<u32>,
    /// One JSON object: {"rows": [{"trace", "accesses", "working_set", "size", "blocks", "policy", "misses", "miss_ratio"}],
    /// "summary": [{"policy", "misses_over_lru", "mean_regret_points", "worst_regret_points", "worst"}]}
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  tidegate sim curve OLTP.lis.zst
  tidegate sim curve web.trace --format keys32 --sample 10% --points 20
  tidegate sim curve OLTP.lis.zst --json | jq -r '.points[] | [.blocks, .miss_ratio] | @csv'

What would a larger cache bring, and a smaller one cost? One pass finds the miss ratio of LRU at every size, from a sample of the blocks; at
most 16,384 blocks are remembered, so a long trace needs no more memory than a short one. A row tells what a cache misses whose size is off
by no more than the per cent beside it, within the points that are stated: where a loop just fits, that is all or nothing. A single block
with a large part of all accesses may be more than the points allow for. `tidegate sim policies` is exact, and tells what other policies
miss at a size. Formats and blocks as there.")]
pub struct TraceCurve {
    /// File of a block trace
    #[arg(value_name = "TRACE")]
    pub trace: PathBuf,
    /// Sizes that are shown, at equal distances up to all blocks that the trace asks for
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub points: u32,
    /// Share of the blocks that are looked at in the beginning
    #[arg(long, value_name = "RATE", default_value = "100%", value_parser = rate)]
    pub sample: f64,
    /// Bytes of a page or key of arc, keys or keys32
    #[arg(long, value_name = "SIZE", value_parser = parse_disk_size)]
    pub page: Option<u64>,
    /// How the file is written, where its name does not tell
    #[arg(long, value_name = "FORMAT", value_parser = format())]
    pub format: Option<Format>,
    /// One JSON object: {"trace", "accesses", "working_set", "rate", "error", "points": [{"blocks", "miss_ratio", "size_error"}]}
    #[arg(long)]
    pub json: bool,
}

fn rate(text: &str) -> Result<f64, String> {
    match text.parse::<Size>() {
        Ok(Size::Share(share)) => Ok(share as f64 / Size::WHOLE as f64),
        Ok(Size::Blocks(_) | Size::Bytes(_)) | Err(_) => Err(format!("{:?} is no rate such as 10% or 0.1%", crate::units::shorten(text))),
    }
}

fn format() -> impl TypedValueParser<Value = Format> {
    PossibleValuesParser::new(Format::ALL.map(|(name, _)| name))
        .map(|name| Format::ALL.into_iter().find(|(known, _)| *known == name).expect("one of these names").1)
}
