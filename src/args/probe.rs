//! What can be asked about the inside of a device.

use std::path::PathBuf;

use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use tidegate_engine::time::Duration;
use tidegate_sim::back::model::spec::Layout;

use crate::units::{parse_duration, parse_share};

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  tidegate probe /dev/nvme0n1                    reads only; the device may be in use, but then others disturb what is measured
  tidegate probe /srv/scratch.img --overwrite    a file of at least 64 MiB whose contents are lost
  tidegate probe /dev/sdb --time 1min --json | jq .knee

Pairs of reads tell which addresses lie on the same part of an SSD (a die, a channel), reads at growing depth where more of them only wait.
Each finding says in which share of 40 repeats (drawn again from what was measured) it was the same, or why it cannot be seen. What a drive
was given at random shows no interleave: --overwrite first writes up to 1 GiB in order. Read docs/probe.md for the pictures.")]
pub struct Probe {
    /// The block device or file
    #[arg(value_name = "DEVICE")]
    pub device: PathBuf,
    /// Write on it: what is there is lost. Only what nobody uses is taken
    #[arg(long)]
    pub overwrite: bool,
    /// About how long it may take
    #[arg(long, value_name = "TIME", default_value = "20s", value_parser = time)]
    pub time: Duration,
    /// Places and distances are drawn from it
    #[arg(long, value_name = "S", default_value_t = 0)]
    pub seed: u64,
    /// One JSON object: {"alone_ns", "interleave", "stretches", "parts", "knee", "beside_writes", "pairs": [...], "curve": [...]}; what cannot
    /// be seen is {"unseen": why}
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  tidegate sim probe mx100-256gb
  tidegate sim probe mx100-256gb --layout contiguous --noise 10%
  tidegate sim probe nvme-tlc --overwritten 2 --overwrite

What `tidegate probe` would find on a model, whose file says what is true. A model without flash, a disk, and one that was never written
(--filled 0%) have nothing to find.")]
pub struct ProbeModel {
    /// Name of a model, or a file
    #[arg(value_name = "MODEL")]
    pub model: String,
    /// How addresses are spread over channels
    #[arg(long, value_name = "HOW", default_value = "striped", value_parser = layout())]
    pub layout: Layout,
    /// How much of it was written in order
    #[arg(long, value_name = "SHARE", default_value = "100%", value_parser = parse_share)]
    pub filled: u32,
    /// And how many times as much was then overwritten at random
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(u64).range(0..=10))]
    pub overwritten: u64,
    /// How much later an end is heard of, on average
    #[arg(long, value_name = "SHARE", default_value = "0%", value_parser = parse_share)]
    pub noise: u32,
    /// Write on it
    #[arg(long)]
    pub overwrite: bool,
    /// About how long it may take, in virtual time
    #[arg(long, value_name = "TIME", default_value = "20s", value_parser = time)]
    pub time: Duration,
    /// Places, distances and noise are drawn from it
    #[arg(long, value_name = "S", default_value_t = 0)]
    pub seed: u64,
    /// As `tidegate probe --json`
    #[arg(long)]
    pub json: bool,
}

fn time(text: &str) -> Result<Duration, String> {
    let time = parse_duration(text)?;
    let fits = (Duration::from_secs(1)..=Duration::from_secs(3_600)).contains(&time);
    if fits { Ok(time) } else { Err(format!("{:?} is not between 1s and 1h", crate::units::shorten(text))) }
}

fn layout() -> impl TypedValueParser<Value = Layout> {
    PossibleValuesParser::new(["striped", "contiguous"]).map(|name| if name == "striped" { Layout::Striped } else { Layout::Contiguous })
}
