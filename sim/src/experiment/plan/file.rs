//! What a plan's file may say. Every error is one line: `file:line: what; what to do`.

use super::Plan;
use crate::experiment::load::unpack::regular;
use crate::experiment::options::Options;
use crate::experiment::units::{Size, Time};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::io::Read;
use std::path::{Path, PathBuf};
use toml::Spanned;

/// The largest plan, in bytes.
const FILE_BYTES_MAX: u64 = 1 << 20;
/// The environment's variable that names the folder of published traces, for plans that look for some.
const TRACES: &str = "TIDEGATE_TRACES";

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct File {
    pub name: Spanned<String>,
    pub shows: String,
    /// The folder in which traces are looked for, unless `TIDEGATE_TRACES` names another one. Default: the plan's own.
    pub traces: Option<String>,
    /// Names in this plan, and the devices they stand for.
    #[serde(default)]
    pub devices: BTreeMap<String, Spanned<String>>,
    pub configurations: BTreeMap<Spanned<String>, Options>,
    pub loads: BTreeMap<Spanned<String>, LoadTable>,
    #[serde(default)]
    pub rows: Vec<Spanned<RowTable>>,
    #[serde(default)]
    pub grids: Vec<Spanned<GridTable>>,
}

/// A load: the keys of one job, or several `jobs` that run side by side.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default, expecting = "a table such as { pattern = \"random\", size = \"4KiB\", count = 1000 }")]
pub(crate) struct LoadTable {
    /// Loads that come first and are not measured.
    pub after: Vec<Spanned<String>>,
    /// Idle time between them and this one.
    pub rest: Option<Time>,
    pub jobs: Vec<Spanned<LoadTable>>,
    pub pattern: Option<PatternName>,
    pub theta: Option<Spanned<f64>>,
    /// Per cent.
    pub hot_requests: Option<Spanned<u32>>,
    pub hot_places: Option<Spanned<u32>>,
    /// Nobody waits for it: the scheduler may put it off, and its latencies do not count.
    pub background: Option<bool>,
    /// Per cent.
    pub reads: Option<Spanned<u32>>,
    pub size: Option<Spanned<Size>>,
    pub sizes: Vec<SizeTable>,
    pub count: Option<Spanned<u64>>,
    pub depth: Option<Spanned<u32>>,
    pub workers: Option<Spanned<u32>>,
    pub start: Option<Spanned<Size>>,
    pub span: Option<Spanned<Size>>,
    /// Each worker has a file of this size, evenly over the span.
    pub file: Option<Spanned<Size>>,
    /// Of `buffered`: how much is dirty when it is written.
    pub pool: Option<Spanned<Size>>,
    /// A span that reaches beyond the volume ends with it.
    pub clip: Option<bool>,
    /// An open loop: one request in this time, or so many a second.
    pub every: Option<Spanned<Time>>,
    pub rate: Option<Spanned<u64>>,
    pub arrivals: Option<Spanned<Arrivals>>,
    /// Idle time after each request, or after each `burst` of them.
    pub pause: Option<Time>,
    pub burst: Option<Spanned<u64>>,
    /// Or idle times that differ.
    pub gaps: Vec<Spanned<GapTable>>,
    pub flush_every: Option<u64>,
    /// An application of Filebench's instead, over this file system, for so long; without a time its files are made.
    pub files: Option<Spanned<String>>,
    pub fs: Option<Spanned<String>>,
    pub time: Option<Time>,
    /// A file to replay instead.
    pub trace: Option<Spanned<String>>,
    pub format: Option<Spanned<String>>,
    /// What a page of it is, of a format that has pages. Default: as the format says (arc: 512 bytes), or else 4 KiB (keys, keys32).
    pub page: Option<Spanned<Size>>,
    /// Where the file is missing, rows of this load are left out, and the report says so.
    pub optional: Option<Spanned<bool>>,
    pub timing: Option<Spanned<Timing>>,
    pub speedup: Option<Spanned<u64>>,
    pub wrap: Option<bool>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, expecting = "a table such as { size = \"4KiB\", weight = 3 }")]
pub(crate) struct SizeTable {
    pub size: Spanned<Size>,
    pub weight: Spanned<u32>,
}

/// A part of a load's gaps: one law, and how many follow each other, or how likely they are.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default, expecting = "a table such as { exponential = \"20s\", count = 10 }")]
pub(crate) struct GapTable {
    pub exponential: Option<Time>,
    pub spread: Option<[Time; 2]>,
    pub cycle: Vec<Time>,
    pub count: Option<u32>,
    pub weight: Option<u32>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum PatternName {
    Sequential,
    Random,
    /// By Zipf's law, with `theta`.
    Zipf,
    /// `hot_requests` per cent of the requests go to `hot_places` per cent of the places.
    Hot,
    Buffered,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Arrivals {
    Fixed,
    Exponential,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Timing {
    Closed,
    Recorded,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default, expecting = "a table such as { run = \"configuration/load\", metric = \"seconds\" }")]
pub(crate) struct RowTable {
    pub name: Option<String>,
    /// `configuration/load`.
    pub run: Option<Spanned<String>>,
    /// The runs of a `ratio`, a `sum-ratio`, a `difference`, a `slowdown`, an `order` or a `break-even`.
    pub of: Vec<Spanned<String>>,
    pub metric: Option<Spanned<String>>,
    /// Of what a `ratio`, a `difference`, a `slowdown` or an `order` is; seconds unless said otherwise.
    pub by: Option<Spanned<String>>,
    pub paper: Option<Spanned<f64>>,
    pub low: Option<Spanned<f64>>,
    pub high: Option<Spanned<f64>>,
    /// A band around the paper's figure: per cent of it, or plus and minus so much.
    pub percent: Option<Spanned<f64>>,
    pub plus_minus: Option<Spanned<f64>>,
    /// Of an `order`: differences up to so many per cent are none.
    pub slack_percent: Option<f64>,
    /// Of `knee-mib`: MB/s.
    pub below: Option<f64>,
    /// Of `mb-per-second`: a stretch of what was transferred.
    pub from: Option<Size>,
    pub to: Option<Size>,
    pub note: Option<String>,
}

/// A row for each group of configurations under each load, named `configuration/load` after the first of the group.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, expecting = "a table such as { of = [[\"cached\", \"bare\"]], under = [\"load\"] }")]
pub(crate) struct GridTable {
    /// Groups of configurations: what is measured, and what it is held against; one alone is a number of its own.
    pub of: Vec<Spanned<Vec<String>>>,
    pub loads: Vec<Spanned<String>>,
    /// How the rows are named instead: `{configuration}` and `{load}` are replaced, and points in the load's name become slashes.
    pub named: Option<String>,
    pub metric: Spanned<String>,
    pub by: Option<Spanned<String>>,
    pub low: Option<Spanned<f64>>,
    pub high: Option<Spanned<f64>>,
}

impl GridTable {
    /// Its rows, load by load. Errors in them have the place of the load.
    pub fn rows(&self) -> impl Iterator<Item = Spanned<RowTable>> {
        let row = |load: &Spanned<String>, group: &Spanned<Vec<String>>| {
            let runs: Vec<String> = group.as_ref().iter().map(|configuration| format!("{configuration}/{}", load.as_ref())).collect();
            let pattern = self.named.as_deref().unwrap_or("{configuration}/{load}");
            let load_name = if self.named.is_some() { load.as_ref().replace('.', "/") } else { load.as_ref().clone() };
            let name = group.as_ref().first().map(|first| pattern.replace("{configuration}", first).replace("{load}", &load_name));
            let mut of: Vec<_> = runs.into_iter().map(|run| Spanned::new(load.span(), run)).collect();
            let run = if of.len() == 1 { of.pop() } else { None };
            let row = RowTable {
                name,
                run,
                of,
                metric: Some(self.metric.clone()),
                by: self.by.clone(),
                low: self.low.clone(),
                high: self.high.clone(),
                ..RowTable::default()
            };
            Spanned::new(load.span(), row)
        };
        self.loads.iter().flat_map(move |load| self.of.iter().map(move |group| row(load, group)))
    }
}

/// Whatever a place in the file is needed for.
pub(crate) struct Source<'a> {
    pub name: &'a str,
    pub text: &'a str,
    /// Where relative paths start.
    pub folder: &'a Path,
    /// Where those of traces do.
    pub traces: PathBuf,
}

impl Source<'_> {
    /// An error at a place.
    pub fn wrong<T>(&self, place: &Spanned<T>, what: impl AsRef<str>) -> String {
        self.at(place.span().start, what.as_ref())
    }

    fn at(&self, offset: usize, what: &str) -> String {
        let line = self.text.as_bytes().iter().take(offset).filter(|&&byte| byte == b'\n').count() + 1;
        format!("{}:{line}: {what}", self.name)
    }

    /// A path of the plan: relative ones start at its folder.
    pub fn path(&self, path: &str) -> PathBuf {
        self.folder.join(path)
    }

    /// The path of a trace.
    pub fn trace(&self, path: &str) -> PathBuf {
        self.traces.join(path)
    }
}

/// The line of `shows` alone, for a list.
pub(crate) fn shows(text: &str) -> String {
    #[derive(Deserialize)]
    struct Head {
        shows: String,
    }
    toml::from_str::<Head>(text).map(|head| head.shows).unwrap_or_default()
}

/// Reads a plan's text. `name` is the file's, for errors; `folder` is where its relative paths start.
pub fn parse(name: &str, text: &str, folder: &Path) -> Result<Plan, String> {
    let mut source = Source { name, text, folder, traces: folder.to_path_buf() };
    let file: File = toml::from_str(text).map_err(|error| {
        let what = error.message().lines().map(str::trim).filter(|line| !line.is_empty()).collect::<Vec<_>>().join("; ");
        source.at(error.span().map_or(0, |span| span.start), &what)
    })?;
    if let Some(traces) = &file.traces {
        source.traces = std::env::var_os(TRACES).map_or_else(|| folder.join(traces), PathBuf::from);
    }
    super::runs::check(&source, file)
}

/// The text of a plan's file, if it is one.
pub(crate) fn read_text(path: &Path) -> Result<String, String> {
    let file = regular(path).map_err(|why| why.to_string())?;
    let mut text = String::new();
    let bytes = file.take(FILE_BYTES_MAX + 1).read_to_string(&mut text).map_err(|why| why.to_string())?;
    if bytes as u64 > FILE_BYTES_MAX {
        return Err(format!("larger than {FILE_BYTES_MAX} bytes: no plan"));
    }
    Ok(text)
}
