//! Every policy on one trace at several sizes, and what that comes to over several traces.

use std::fmt::Write;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::{Value, json};
use tidegate_engine::policy::Kind;

use super::size::{Size, show_bytes};
use super::{Rings, least_misses, misses, misses_deferred, working_set};

/// Threads that hit, where a policy is told of hits late.
const THREADS: usize = 4;
/// What each of them has under way at once.
const QUEUE: usize = 8;

/// One trace.
pub struct Comparison {
    pub trace: String,
    pub accesses: u64,
    /// Of a block, if that is known.
    pub block_bytes: Option<u64>,
    /// Different blocks that are asked for: the misses of a cache that keeps everything.
    pub working_set: u64,
    pub rows: Vec<Row>,
    /// Notes in the ring of each thread that hits; without it a policy is told of each hit at once.
    deferred: Option<usize>,
}

/// One size of the cache.
pub struct Row {
    pub size: Size,
    pub blocks: u64,
    /// The misses of a cache that knows the future (Belady).
    pub least: u64,
    /// By policy, in the order of [`Kind::ALL`].
    pub misses: Vec<u64>,
    /// The same with hits that are told of late; empty if that was not asked for.
    pub misses_deferred: Vec<u64>,
}

impl Row {
    /// The fewest misses of a policy that is not made of others.
    fn best(&self) -> u64 {
        let singles = Kind::ALL.iter().zip(&self.misses).filter(|((_, kind), _)| kind.is_single());
        singles.map(|(_, &misses)| misses).min().expect("there are policies")
    }
}

/// What one thread finds out at a time.
#[derive(Clone, Copy)]
enum Task {
    Least,
    Misses(Kind),
    Deferred(Kind, usize),
}

/// Runs every policy at every size, none of which is [unfit](Size::unfit) for blocks of so many bytes. `progress` hears how many of
/// how many runs are done, from the calling thread.
pub fn compare(
    trace: &str,
    accesses: &[u64],
    block_bytes: Option<u64>,
    sizes: &[Size],
    deferred: Option<usize>,
    threads: usize,
    progress: &mut dyn FnMut(usize, usize),
) -> Comparison {
    let working_set = working_set(accesses);
    let kinds = || Kind::ALL.into_iter().map(|(_, kind)| kind);
    let late = || deferred.into_iter().flat_map(|notes| kinds().map(move |kind| Task::Deferred(kind, notes)));
    let of_size: Vec<Task> = std::iter::once(Task::Least).chain(kinds().map(Task::Misses)).chain(late()).collect();
    let blocks: Vec<u64> = sizes.iter().map(|size| size.blocks(working_set, block_bytes)).collect();
    let tasks: Vec<(u64, Task)> = blocks.iter().flat_map(|&blocks| of_size.iter().map(move |&task| (blocks, task))).collect();
    let found = in_parallel(&tasks, threads, progress, |&(blocks, task)| {
        // A cache that has room for everything is as good as a larger one.
        let capacity = blocks.min(working_set) as usize;
        match task {
            Task::Least => least_misses(capacity, accesses),
            Task::Misses(kind) => misses(kind, capacity, accesses),
            Task::Deferred(kind, notes) => misses_deferred(kind, capacity, Rings { threads: THREADS, queue: QUEUE, notes }, accesses),
        }
    });
    let rows = sizes.iter().zip(blocks).zip(found.chunks(of_size.len())).map(|((&size, blocks), found)| {
        let (misses, misses_deferred) = found[1..].split_at(Kind::ALL.len());
        Row { size, blocks, least: found[0], misses: misses.to_vec(), misses_deferred: misses_deferred.to_vec() }
    });
    Comparison { trace: trace.to_owned(), accesses: accesses.len() as u64, block_bytes, working_set, rows: rows.collect(), deferred }
}

/// The answers in the order of the tasks.
pub fn in_parallel<T: Sync, A: Send + Clone + Default>(
    tasks: &[T],
    threads: usize,
    progress: &mut dyn FnMut(usize, usize),
    work: impl Fn(&T) -> A + Sync,
) -> Vec<A> {
    let (next, mut answers) = (AtomicUsize::new(0), vec![A::default(); tasks.len()]);
    let (done, results) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        for _ in 0..threads.clamp(1, tasks.len().max(1)) {
            let (next, work, done) = (&next, &work, done.clone());
            scope.spawn(move || {
                while let Some((at, task)) = Some(next.fetch_add(1, Ordering::Relaxed)).and_then(|at| Some((at, tasks.get(at)?))) {
                    let _ = done.send((at, work(task))); // the receiver lives as long as the scope
                }
            });
        }
        drop(done);
        for (count, (at, answer)) in results.iter().enumerate() {
            answers[at] = answer;
            progress(count + 1, tasks.len());
        }
    });
    answers
}

/// Over all rows of all traces, of one policy.
pub struct Summary {
    pub policy: &'static str,
    /// Geometric mean of its misses over LRU's.
    pub over_lru: f64,
    /// Points of the miss ratio over the best single policy of the row, on average.
    pub mean_regret: f64,
    /// The same where it is worst, and where that is: trace and blocks.
    pub worst_regret: f64,
    pub worst: (String, u64),
}

/// By policy, in the order of [`Kind::ALL`].
pub fn summaries(comparisons: &[Comparison]) -> Vec<Summary> {
    let rows = || comparisons.iter().flat_map(|comparison| comparison.rows.iter().map(move |row| (comparison, row)));
    let lru = Kind::ALL.iter().position(|&(_, kind)| kind == Kind::Lru).expect("LRU is one of them");
    let of = |(at, &(policy, _)): (usize, &(&'static str, Kind))| {
        let logarithms = rows().map(|(_, row)| (row.misses[at] as f64 / row.misses[lru] as f64).ln());
        let over_lru = (logarithms.sum::<f64>() / rows().count() as f64).exp();
        let regret = |comparison: &Comparison, row: &Row| 100.0 * (row.misses[at] as f64 - row.best() as f64) / comparison.accesses as f64;
        let mean_regret = rows().map(|(comparison, row)| regret(comparison, row)).sum::<f64>() / rows().count() as f64;
        let (worst_regret, worst) = rows()
            .map(|(comparison, row)| (regret(comparison, row), (comparison.trace.clone(), row.blocks)))
            .max_by(|(one, _), (other, _)| one.total_cmp(other))
            .expect("there is a row");
        Summary { policy, over_lru, mean_regret, worst_regret, worst }
    };
    Kind::ALL.iter().enumerate().map(of).collect()
}

const COLUMN: usize = 9;

/// One trace for people. Miss ratios in per cent; `*` marks the best of each row, Belady apart.
pub fn table(comparison: &Comparison) -> String {
    let Comparison { trace, accesses, block_bytes, working_set, rows, deferred } = comparison;
    let bytes = |blocks: u64| block_bytes.map(|bytes| show_bytes(blocks.saturating_mul(bytes)));
    let working_bytes = bytes(*working_set).map_or(String::new(), |bytes| format!(" ({bytes})"));
    let mut out = format!("{trace}: {accesses} accesses of {working_set} different blocks{working_bytes}; misses in % of them\n");
    let head = names().map(|name| format!("{name:>COLUMN$} ")).collect::<String>();
    put(&mut out, &format!("{:<9}{:>10}{:>12}{:>COLUMN$} {head}", "cache", "blocks", "", "Belady"));
    for row in rows {
        let percent = |misses: u64| 100.0 * misses as f64 / *accesses as f64;
        let fewest = row.misses.iter().min();
        let figure = |misses: &u64| format!("{:>COLUMN$.2}{}", percent(*misses), if Some(misses) == fewest { '*' } else { ' ' });
        let figures: String = row.misses.iter().map(figure).collect();
        let size = format!("{:<9} {:>9} {:>11}", row.size.to_string(), row.blocks, bytes(row.blocks).unwrap_or_default());
        put(&mut out, &format!("{size}{:>COLUMN$.2} {figures}", percent(row.least)));
        if let Some(notes) = deferred {
            let late = row.misses_deferred.iter().zip(&row.misses).map(|(late, exact)| percent(*late) - percent(*exact));
            let late: String = late.map(|points| format!("{points:>+COLUMN$.2} ")).collect();
            put(&mut out, &format!("{:<31}{:>COLUMN$} {late}", format!("  {THREADS} rings of {notes} hits"), ""));
        }
    }
    out
}

/// What several traces come to, for people.
pub fn summary_table(comparisons: &[Comparison]) -> String {
    let rows: usize = comparisons.iter().map(|comparison| comparison.rows.len()).sum();
    let mut out = format!("All {} traces, {rows} rows\n", comparisons.len());
    put(&mut out, &format!("{:<10}{:>16}{:>16}{:>16}  {}", "policy", "misses / LRU's", "mean regret", "worst regret", "where"));
    for Summary { policy, over_lru, mean_regret, worst_regret, worst: (trace, blocks) } in summaries(comparisons) {
        put(
            &mut out,
            &format!("{policy:<10}{over_lru:>16.4}{mean_regret:>9.2} points{worst_regret:>9.2} points  {trace}, {blocks} blocks"),
        );
    }
    out.push_str("misses / LRU's: geometric mean; regret: points of the miss ratio over the best single policy of the row\n");
    out
}

fn names() -> impl Iterator<Item = &'static str> {
    Kind::ALL.into_iter().map(|(name, _)| name)
}

fn put(out: &mut String, line: &str) {
    writeln!(out, "{}", line.trim_end()).expect("a string takes everything");
}

/// The same for programs: one object, one row for each trace, size and policy.
pub fn json(comparisons: &[Comparison]) -> String {
    let mut rows: Vec<Value> = Vec::new();
    for comparison in comparisons {
        let Comparison { trace, accesses, working_set, deferred, .. } = comparison;
        for row in &comparison.rows {
            let mut add = |policy: &str, misses: u64, late: Option<&u64>| {
                let mut object = json!({
                    "trace": trace, "accesses": accesses, "working_set": working_set, "size": row.size.to_string(), "blocks": row.blocks,
                    "policy": policy, "misses": misses, "miss_ratio": misses as f64 / *accesses as f64,
                });
                if let (Some(late), Some(notes)) = (late, deferred) {
                    object["deferred"] = json!(notes);
                    object["misses_deferred"] = json!(late);
                }
                rows.push(object);
            };
            add("Belady", row.least, None);
            names().enumerate().for_each(|(at, name)| add(name, row.misses[at], row.misses_deferred.get(at)));
        }
    }
    let summary =
        summaries(comparisons).into_iter().map(|Summary { policy, over_lru, mean_regret, worst_regret, worst: (trace, blocks) }| {
            json!({
                "policy": policy, "misses_over_lru": over_lru, "mean_regret_points": mean_regret, "worst_regret_points": worst_regret,
                "worst": { "trace": trace, "blocks": blocks },
            })
        });
    json!({ "rows": rows, "summary": summary.collect::<Vec<_>>() }).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys() -> Vec<u64> {
        (0..4_000u64).map(|i| if i % 3 == 0 { i % 17 } else { i % 200 }).collect()
    }

    #[test]
    fn rows_are_what_each_policy_misses_whatever_the_number_of_threads() {
        let sizes = [Size::Blocks(20), "25%".parse().unwrap(), Size::Bytes(1 << 30)];
        let one = compare("t", &keys(), Some(4096), &sizes, Some(16), 1, &mut |_, _| {});
        let mut steps = 0;
        let two = compare("t", &keys(), Some(4096), &sizes, Some(16), 3, &mut |_, _| steps += 1);
        assert_eq!(json(&[one]), json(&[two]));
        assert_eq!(steps, sizes.len() * (1 + 2 * Kind::ALL.len()));
        let found = compare("t", &keys(), Some(4096), &sizes, None, 2, &mut |_, _| {});
        assert_eq!((found.accesses, found.working_set), (4_000, working_set(&keys())));
        for row in &found.rows {
            for (&(name, kind), &misses) in Kind::ALL.iter().zip(&row.misses) {
                assert_eq!(misses, super::super::misses(kind, row.blocks as usize, &keys()), "{name} at {}", row.blocks);
                assert!(misses >= row.least);
            }
        }
        assert!(found.rows[2].misses.iter().all(|&misses| misses == found.working_set), "it has room for everything");
    }

    #[test]
    fn a_summary_is_the_mean_over_lru_and_the_regret_on_average_and_at_worst() {
        let row = |misses: [u64; 2]| {
            let of = |kind: Kind| if kind == Kind::Lru { misses[0] } else { misses[1] };
            let misses = Kind::ALL.iter().map(|&(_, kind)| of(kind)).collect();
            Row { size: Size::Blocks(1), blocks: 1, least: 1, misses, misses_deferred: Vec::new() }
        };
        let trace =
            |name: &str, rows| Comparison { trace: name.into(), accesses: 1_000, block_bytes: None, working_set: 9, rows, deferred: None };
        let all = [trace("a", vec![row([400, 100])]), trace("b", vec![row([100, 200]), row([100, 150])])];
        let found = summaries(&all);
        let (lru, other) = (&found[1], &found[0]);
        assert_eq!((lru.policy, lru.over_lru, lru.mean_regret, lru.worst_regret, lru.worst.0.as_str()), ("LRU", 1.0, 10.0, 30.0, "a"));
        assert!((other.over_lru - (0.25f64 * 2.0 * 1.5).cbrt()).abs() < 1e-9);
        assert!((other.mean_regret, other.worst_regret, other.worst.0.as_str()) == (5.0, 10.0, "b"));
    }

    #[test]
    fn a_table_marks_the_best_of_each_row() {
        let text = table(&compare("t", &keys(), Some(4096), &[Size::Blocks(60)], Some(8), 1, &mut |_, _| {}));
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines[0].starts_with("t: 4000 accesses of ") && lines[0].contains(" KiB)") && lines[2].contains("240.0 KiB"), "{text}");
        assert!(lines[1].contains("Belady") && Kind::ALL.iter().all(|(name, _)| lines[1].contains(name)), "{text}");
        assert!(lines[2].contains('*') && lines[3].contains("4 rings of 8 hits"), "{text}");
        let text = table(&compare("t", &keys(), None, &[Size::Blocks(60)], None, 1, &mut |_, _| {}));
        assert!(!text.contains("iB"), "nobody knows how many bytes: {text}");
    }
}
