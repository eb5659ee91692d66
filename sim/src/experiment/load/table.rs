//! A load as a plan's file describes it, checked.

use super::files;
use super::files::layout::Kind;
use super::files::workload::Workload;
use super::gaps::{Gaps, Law as GapLaw, Part};
use super::made::{Made, Pattern};
use super::skew::Law;
use super::trace::{self, Format};
use super::{Job, Load, Pace, Replay};
use crate::experiment::plan::file::{Arrivals, LoadTable, PatternName, Source, Timing};
use crate::experiment::units::{Size, shorten};
use std::sync::Arc;
use tidegate_engine::block::ATOM_BYTES;
use tidegate_engine::time::Duration;
use toml::Spanned;

/// The largest request (of NBD clients, too).
const REQUEST_BYTES_MAX: u64 = 32 << 20;
/// Bytes of a page of a trace whose format does not say (keys), and whose load does not.
const PAGE_BYTES: u64 = 4096;
const HOT: &str = "pattern = \"hot\" needs hot_requests and hot_places, in per cent";
const COUNT_MAX: u64 = 1_000_000_000;
const DEPTH_MAX: u32 = 4096;
const WORKERS_MAX: u32 = 1024;
const RATE_MAX: u64 = 100_000_000;

/// The load of one table.
pub(crate) fn load(source: &Source, name: &Spanned<String>, table: &LoadTable) -> Result<Load, String> {
    let title = name.as_ref();
    let mut jobs = Vec::new();
    if table.jobs.is_empty() {
        jobs.push(job(source, name, title, table)?);
    } else if is_made(table) || table.span.is_some() || table.trace.is_some() || table.optional.is_some() {
        return Err(source.wrong(name, format!("load {title} has jobs and keys of a job: put them all into [[loads.{title}.jobs]]")));
    }
    for part in &table.jobs {
        let inner = part.as_ref();
        if !inner.jobs.is_empty() || !inner.after.is_empty() || inner.rest.is_some() {
            return Err(source.wrong(part, format!("load {title}: a job has no jobs, `after` or `rest` of its own")));
        }
        if let Some(files) = &inner.files {
            return Err(source.wrong(files, format!("load {title}: an application has a load of its own")));
        }
        if let Some(gaps) = inner.gaps.first().filter(|_| table.jobs.len() > 1) {
            return Err(source.wrong(gaps, format!("load {title}: gaps are of a load with one job")));
        }
        jobs.push(job(source, part, title, inner)?);
    }
    Ok(Load { name: title.clone(), jobs })
}

/// Why a load is left out: a trace that may be missing is.
pub(crate) fn missing(source: &Source, table: &LoadTable) -> Option<String> {
    let jobs = table.jobs.iter().map(Spanned::as_ref).chain([table]).filter(|job| job.optional.as_ref().is_some_and(|is| *is.as_ref()));
    let mut paths = jobs.filter_map(|job| job.trace.as_ref()).map(|trace| source.trace(trace.as_ref()));
    let path = paths.find(|path| !path.exists())?;
    Some(format!("there is no {}; TIDEGATE_TRACES names the folder of published traces", path.display()))
}

fn is_made(table: &LoadTable) -> bool {
    table.pattern.is_some()
        || table.background.is_some()
        || table.theta.is_some()
        || table.hot_requests.is_some()
        || table.hot_places.is_some()
        || table.reads.is_some()
        || table.size.is_some()
        || !table.sizes.is_empty()
        || table.workers.is_some()
        || table.start.is_some()
        || table.file.is_some()
        || table.pool.is_some()
        || table.every.is_some()
        || table.rate.is_some()
        || table.arrivals.is_some()
        || table.pause.is_some()
        || table.burst.is_some()
        || !table.gaps.is_empty()
        || table.flush_every.is_some()
}

/// An application over a file system.
fn files(source: &Source, title: &str, named: &Spanned<String>, table: &LoadTable) -> Result<files::Spec, String> {
    if is_made(table) || table.trace.is_some() || table.count.is_some() || table.depth.is_some() || table.span.is_some() {
        return Err(source.wrong(named, format!("load {title}: an application knows its own requests: only fs and time go with it")));
    }
    let known = Workload::ALL.map(|(name, _)| name).join(", ");
    let workload = Workload::ALL.iter().find(|(name, _)| name == named.as_ref()).map(|(_, workload)| *workload);
    let workload =
        workload.ok_or_else(|| source.wrong(named, format!("no application {:?}: there are {known}", shorten(named.as_ref()))))?;
    let known = Kind::ALL.map(|(name, _)| name).join(", ");
    let Some(fs) = &table.fs else { return Err(source.wrong(named, format!("load {title}: say the fs: {known}"))) };
    let kind = Kind::ALL.iter().find(|(name, _)| name == fs.as_ref()).map(|(_, kind)| *kind);
    let kind = kind.ok_or_else(|| source.wrong(fs, format!("no file system {:?}: there are {known}", shorten(fs.as_ref()))))?;
    Ok(files::Spec { workload, fs: kind, time: table.time.map(|time| time.0) })
}

fn job<T>(source: &Source, place: &Spanned<T>, title: &str, table: &LoadTable) -> Result<Job, String> {
    if let Some(named) = &table.files {
        return files(source, title, named, table).map(Job::Files);
    }
    if let Some(fs) = &table.fs {
        return Err(source.wrong(fs, format!("load {title}: fs goes with files, the name of an application")));
    }
    match &table.trace {
        Some(trace) if is_made(table) => {
            const KEYS: &str = "format, page, count, depth, timing, speedup, wrap, span and optional";
            Err(source.wrong(trace, format!("load {title}: a trace knows its own requests: only {KEYS} go with it")))
        }
        Some(trace) => replay(source, title, trace, table).map(Job::Replay),
        None => match &table.optional {
            Some(optional) => Err(source.wrong(optional, format!("load {title}: `optional` is of a trace, whose file may be missing"))),
            None => made(source, place, title, table).map(Job::Made),
        },
    }
}

fn replay(source: &Source, title: &str, trace: &Spanned<String>, table: &LoadTable) -> Result<Replay, String> {
    let names = Format::ALL.map(|(name, _)| name).join(", ");
    let named = table.format.as_ref().ok_or_else(|| source.wrong(trace, format!("load {title}: say the trace's format: {names}")))?;
    let format = Format::ALL.iter().find(|(name, _)| name == named.as_ref()).map(|(_, format)| *format);
    let format = format.ok_or_else(|| source.wrong(named, format!("no format {:?}: there are {names}", shorten(named.as_ref()))))?;
    let says_no_times = |timing, what| source.wrong(timing, format!("load {title}: {what} says no times: use timing = \"closed\""));
    let recorded = match &table.timing {
        Some(timing) if *timing.as_ref() == Timing::Recorded => {
            if !format.is_timed() {
                return Err(says_no_times(timing, "a trace of this format"));
            }
            if let Some(depth) = &table.depth {
                return Err(source.wrong(depth, format!("load {title}: recorded times have no depth")));
            }
            Some(timing)
        }
        _ => None,
    };
    if let Some(page) = table.page.as_ref().filter(|_| !format.has_pages()) {
        return Err(source.wrong(page, format!("load {title}: a trace of this format has no pages: it says how long its requests are")));
    }
    let page_atoms = whole(source, &table.page)?.unwrap_or(format.page_bytes().unwrap_or(PAGE_BYTES) / ATOM_BYTES);
    let depth = within(source, &table.depth, 1, 1, DEPTH_MAX)?;
    let speedup = within(source, &table.speedup, 1, 1, COUNT_MAX)?;
    let limit = match &table.count {
        None => None,
        some => Some(within(source, some, 1, 1, COUNT_MAX)?),
    };
    let trace =
        trace::read(&source.trace(trace.as_ref()), format, page_atoms, limit).map_err(|why| source.wrong(trace, why.to_string()))?;
    if let Some(timing) = recorded.filter(|_| !trace.whole.is_timed) {
        return Err(says_no_times(timing, "this trace"));
    }
    let span = whole(source, &table.span)?;
    let wrap = match (table.wrap.unwrap_or(false), &table.span) {
        (false, Some(place)) => {
            return Err(source.wrong(place, format!("load {title}: a trace has a span where its addresses wrap around: wrap = true")));
        }
        (true, Some(place)) if span < Some(trace.largest()) => {
            return Err(
                source.wrong(place, format!("load {title}: a request has {} bytes, more than this span", trace.largest() * ATOM_BYTES))
            );
        }
        (false, None) => None,
        (true, _) => Some(span.unwrap_or(u64::MAX)),
    };
    Ok(Replay { trace: Arc::new(trace), depth: recorded.is_none().then_some(depth), speedup, wrap })
}

fn gaps(source: &Source, title: &str, table: &LoadTable) -> Result<Option<Gaps>, String> {
    let mut parts = Vec::new();
    for place in &table.gaps {
        let part = place.as_ref();
        let law = match (&part.exponential, &part.spread, &part.cycle[..]) {
            (Some(mean), None, []) => GapLaw::Exponential(mean.0),
            (None, Some([low, high]), []) if low.0 <= high.0 && low.0 > Duration::ZERO => GapLaw::Spread(low.0, high.0),
            (None, None, [_, ..]) => GapLaw::Cycle(part.cycle.iter().map(|gap| gap.0).collect()),
            _ => {
                return Err(source.wrong(
                    place,
                    format!("load {title}: a part of its gaps is `exponential`, `spread` from a shorter to a longer one, or a `cycle`"),
                ));
            }
        };
        let count = match (part.count, part.weight) {
            (Some(count), None) | (None, Some(count)) if count > 0 => count,
            (None, None) if table.gaps.len() == 1 => 1,
            _ => {
                return Err(source.wrong(
                    place,
                    format!("load {title}: a part of its gaps has a count, to follow the one before, or a weight, to be drawn"),
                ));
            }
        };
        parts.push(Part { law, count });
    }
    let drawn = table.gaps.iter().filter(|part| part.as_ref().weight.is_some()).count();
    match table.gaps.get(1) {
        Some(place) if drawn > 0 && drawn < parts.len() => {
            Err(source.wrong(place, format!("load {title}: all parts of its gaps have counts, or all have weights")))
        }
        _ if parts.is_empty() => Ok(None),
        _ => Ok(Some(Gaps { parts, drawn: drawn > 0 })),
    }
}

fn made<T>(source: &Source, place: &Spanned<T>, title: &str, table: &LoadTable) -> Result<Made, String> {
    let wants = |what: &str| source.wrong(place, format!("load {title}: {what}"));
    const KNOWN: &str = "say its pattern: \"sequential\", \"random\", \"zipf\", \"hot\" or \"buffered\" (or a trace)";
    let pattern = match table.pattern.ok_or_else(|| wants(KNOWN))? {
        PatternName::Sequential => Pattern::Sequential,
        PatternName::Random => Pattern::Random,
        PatternName::Zipf => match &table.theta {
            Some(theta) if (0.0..=4.0).contains(theta.as_ref()) => Pattern::Skewed(Law::Zipf { theta: *theta.as_ref() }),
            Some(theta) => return Err(source.wrong(theta, format!("load {title}: theta is from 0 to 4"))),
            None => return Err(wants("pattern = \"zipf\" needs its theta")),
        },
        PatternName::Hot => {
            let part =
                |part: &Option<Spanned<u32>>| part.as_ref().map_or(Err(wants(HOT)), |part| check(source, part, *part.as_ref(), 1, 99));
            Pattern::Skewed(Law::Hot { requests: part(&table.hot_requests)?, places: part(&table.hot_places)? })
        }
        PatternName::Buffered => Pattern::Buffered,
    };
    let count = table.count.as_ref().ok_or_else(|| wants("say its count of requests"))?;
    let sizes = sizes(source, place, title, table)?;
    let made = Made {
        pattern,
        background: table.background.unwrap_or(false),
        reads: if pattern == Pattern::Buffered { 0 } else { within(source, &table.reads, 100, 0, 100)? },
        sizes,
        count: check(source, count, *count.as_ref(), 1, COUNT_MAX)?,
        depth: within(source, &table.depth, 1, 1, DEPTH_MAX)?,
        workers: within(source, &table.workers, 1, 1, WORKERS_MAX)?,
        start: whole(source, &table.start)?.unwrap_or(0),
        span: whole(source, &table.span)?,
        file: whole(source, &table.file)?,
        clip: table.clip.unwrap_or(false),
        pool: pool(source, place, title, table, pattern)?,
        pace: pace(source, title, table)?,
        pause: match (&table.burst, table.pause) {
            (burst, Some(pause)) => Some((within(source, burst, 1, 1, COUNT_MAX)?, pause.0)),
            (Some(burst), None) => return Err(source.wrong(burst, format!("load {title}: a burst needs the pause after it"))),
            (None, None) => None,
        },
        gaps: gaps(source, title, table)?,
        flush_every: table.flush_every.unwrap_or(0),
    };
    if made.gaps.is_some() && (made.depth > 1 || made.workers > 1 || made.pace != Pace::Closed || made.pause.is_some()) {
        return Err(wants("gaps are of one job with one request at a time, and no other pause or rate"));
    }
    if let (Some(file), Some(place)) = (made.file, &table.file)
        && file < made.largest()
    {
        return Err(source.wrong(place, format!("load {title}: a file of {} bytes has no room for a request", file * ATOM_BYTES)));
    }
    if let (Some(span), Some(place)) = (made.span, &table.span)
        && span < made.smallest_span()
    {
        return Err(source.wrong(place, format!("load {title}: a span of {} bytes has no room for its requests", span * ATOM_BYTES)));
    }
    Ok(made)
}

/// Pages that a page cache holds. It merges pages of one size, and its reads are nobody's.
fn pool<T>(source: &Source, place: &Spanned<T>, title: &str, table: &LoadTable, pattern: Pattern) -> Result<u64, String> {
    let (pool, page) = match (pattern, &table.pool, &table.size) {
        (Pattern::Buffered, Some(pool), Some(page)) => (pool, page.as_ref().0),
        (Pattern::Buffered, ..) => {
            return Err(source.wrong(place, format!("load {title}: \"buffered\" needs a pool, and one size of its pages")));
        }
        (Pattern::Sequential | Pattern::Random | Pattern::Skewed(_), Some(pool), _) => {
            return Err(source.wrong(pool, format!("load {title}: a pool goes with pattern = \"buffered\"")));
        }
        (Pattern::Sequential | Pattern::Random | Pattern::Skewed(_), None, _) => return Ok(0),
    };
    if let Some(reads) = table.reads.as_ref().filter(|reads| *reads.as_ref() > 0) {
        return Err(source.wrong(reads, format!("load {title}: what is buffered are writes: reads = 0")));
    }
    check(source, pool, pool.as_ref().0 / page.max(1), 1, COUNT_MAX)
}

fn pace(source: &Source, title: &str, table: &LoadTable) -> Result<Pace, String> {
    let every = match (&table.every, &table.rate) {
        (Some(every), Some(_)) => return Err(source.wrong(every, format!("load {title}: `every` and `rate` say the same: one is enough"))),
        (Some(every), None) if every.as_ref().0 == Duration::ZERO => return Err(source.wrong(every, "`every` is more than 0")),
        (Some(every), None) => Some(every.as_ref().0),
        (None, Some(_)) => Some(Duration(1_000_000_000 / within(source, &table.rate, 1, 1, RATE_MAX)?)),
        (None, None) => None,
    };
    let Some(every) = every else {
        return match &table.arrivals {
            None => Ok(Pace::Closed),
            Some(arrivals) => Err(source.wrong(arrivals, format!("load {title}: arrivals need a rate"))),
        };
    };
    if let Some(depth) = &table.depth {
        return Err(source.wrong(depth, format!("load {title}: an open loop does not wait, so it has no depth")));
    }
    match table.arrivals.as_ref().map(Spanned::as_ref) {
        None | Some(Arrivals::Fixed) => Ok(Pace::Every(every)),
        Some(Arrivals::Exponential) => Ok(Pace::Exponential(every)),
    }
}

fn sizes<T>(source: &Source, place: &Spanned<T>, title: &str, table: &LoadTable) -> Result<Vec<(u64, u32)>, String> {
    let size = |size: &Spanned<Size>| match size.as_ref().0 {
        bytes if bytes > 0 && bytes.is_multiple_of(ATOM_BYTES) && bytes <= REQUEST_BYTES_MAX => Ok(bytes / ATOM_BYTES),
        bytes => Err(source.wrong(size, format!("a request of {bytes} bytes: it is a multiple of 512 up to 32MiB"))),
    };
    match (&table.size, &table.sizes[..]) {
        (Some(one), []) => Ok(vec![(size(one)?, 1)]),
        (None, [_, ..]) => table
            .sizes
            .iter()
            .map(|entry| Ok((size(&entry.size)?, check(source, &entry.weight, *entry.weight.as_ref(), 1, 1_000_000)?)))
            .collect(),
        _ => Err(source.wrong(place, format!("load {title}: say the size of its requests: `size`, or `sizes` with weights"))),
    }
}

/// A place or a length, in atoms.
fn whole(source: &Source, size: &Option<Spanned<Size>>) -> Result<Option<u64>, String> {
    match size {
        None => Ok(None),
        Some(size) if size.as_ref().0.is_multiple_of(ATOM_BYTES) => Ok(Some(size.as_ref().atoms())),
        Some(size) => Err(source.wrong(size, "not a multiple of 512 bytes")),
    }
}

fn within<T: Copy + PartialOrd + std::fmt::Display>(
    source: &Source,
    value: &Option<Spanned<T>>,
    default: T,
    low: T,
    high: T,
) -> Result<T, String> {
    value.as_ref().map_or(Ok(default), |value| check(source, value, *value.as_ref(), low, high))
}

fn check<T: Copy + PartialOrd + std::fmt::Display, S>(source: &Source, place: &Spanned<S>, value: T, low: T, high: T) -> Result<T, String> {
    if (low..=high).contains(&value) { Ok(value) } else { Err(source.wrong(place, format!("{value} is not from {low} to {high}"))) }
}
