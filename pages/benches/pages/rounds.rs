//! How rates are compared on a machine that others use, too: slices of 3 ms on threads that are pinned, baseline and subject in turns, one
//! round after the other. A round in which a thread lost its CPU to somebody is thrown away. What is told is the median of the rounds'
//! ratios and their quartiles; the baseline beside itself, one round later, says how much to believe. (Not one slice beside another of the
//! same round: what follows its own kind finds more in the caches, and baseline and subject do so equally often.)

use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::BATCH;
use crate::chance::Chance;
use crate::quartiles::Quartiles;

const SLICE: Duration = Duration::from_millis(3);
/// A row ends after this long, with the rounds that it has.
const PATIENCE: Duration = Duration::from_secs(30);
/// With fewer clean rounds nothing is said.
const ROUNDS_MIN: usize = 60;
/// The baseline beside itself: further away from 1, nothing can be said.
const BAND: f64 = 0.02;

/// Something that serves reads, on one thread.
pub trait Subject {
    /// Serves a queue of reads.
    fn batch(&mut self, keys: &[u64; BATCH]);
    /// Between slices; not measured.
    fn rest(&mut self) {}
}

/// Makes the subject of a thread.
pub type Make<'a> = dyn Fn(usize) -> Box<dyn Subject + 'a> + Sync + 'a;

/// One slice: which subject runs on which thread.
#[derive(Clone, Copy)]
pub struct Step {
    subjects: [Option<usize>; 2],
    is_base: bool,
    /// Threads whose rates count.
    counted: usize,
}

impl Step {
    pub const fn base(subjects: [Option<usize>; 2]) -> Step {
        Step { subjects, is_base: true, counted: 2 }
    }
    pub const fn ours(subjects: [Option<usize>; 2]) -> Step {
        Step { subjects, is_base: false, counted: 2 }
    }
    /// The second thread only disturbs.
    pub const fn first_of(subjects: [Option<usize>; 2]) -> Step {
        Step { subjects, is_base: false, counted: 1 }
    }
}

pub struct Row {
    name: &'static str,
    /// Floor and aim.
    goal: Option<[f64; 2]>,
}

impl Row {
    pub fn new(name: &'static str, floor: f64, aim: f64) -> Row {
        Row { name, goal: Some([floor, aim]) }
    }
    /// What the machine gives, for comparison.
    pub fn told(name: &'static str) -> Row {
        Row { name, goal: None }
    }
}

/// What one thread has done in one slice.
struct Slice {
    thread: usize,
    /// Reads per second.
    rate: f64,
    was_interrupted: bool,
}

pub struct Bench<W> {
    rounds: usize,
    wanted: W,
    rows: Vec<Value>,
}

impl<W: Fn(&str) -> bool> Bench<W> {
    pub fn new(rounds: usize, wanted: W) -> Self {
        Bench { rounds, wanted, rows: Vec::new() }
    }

    pub fn rows(&self) -> &[Value] {
        &self.rows
    }

    pub fn wants(&self, row: &Row) -> bool {
        (self.wanted)(row.name)
    }

    pub fn print_heading(&self) {
        println!(
            "{:<36}{:<22}{:>6}{:>6}  {:<8}{:>6}{:>10}{:>10}{:>8}",
            "", "ratio [quartiles]", "floor", "aim", "", "self", "base ns", "ours ns", "rounds"
        );
    }

    /// Measures a row. `base` is what its baseline's rate is divided by: alone on each of two cores, it is the mean that counts.
    pub fn run(&mut self, row: Row, steps: &[Step], subjects: &[&Make]) {
        if !self.wants(&row) {
            return;
        }
        let rounds = measure(self.rounds, steps, subjects);
        let mean = |round: &[f64], is_base: bool| {
            let of = |index: &usize| steps[*index].is_base == is_base;
            let chosen: Vec<f64> = (0..steps.len()).filter(of).map(|index| round[index]).collect();
            chosen.iter().sum::<f64>() / chosen.len() as f64
        };
        let of_rounds = |value: &dyn Fn(&Vec<f64>) -> f64| Quartiles::of(rounds.iter().map(value).collect());
        let ratio = of_rounds(&|round| mean(round, false) / mean(round, true));
        let bases: Vec<f64> = rounds.iter().map(|round| mean(round, true)).collect();
        let itself = Quartiles::of(bases.windows(2).map(|pair| pair[1] / pair[0]).collect());
        let [base_ns, ours_ns] = [true, false].map(|is_base| 1e9 / of_rounds(&|round| mean(round, is_base)).median());
        let is_void = rounds.len() < ROUNDS_MIN || (itself.median() - 1.0).abs() > BAND;
        let verdict = match row.goal {
            _ if is_void => "void",
            None => "",
            Some([_, aim]) if ratio.median() >= aim => "aim",
            Some([floor, _]) if ratio.median() >= floor => "floor",
            Some(_) => "missed",
        };
        let [floor, aim] = [0, 1].map(|which| row.goal.map_or(String::new(), |goal| format!("{:.2}", goal[which])));
        println!(
            "{:<36}{:<22}{floor:>6}{aim:>6}  {verdict:<8}{:>6.3}{base_ns:>10.0}{ours_ns:>10.0}{:>8}",
            row.name,
            ratio.shown([3, 3]),
            itself.median(),
            rounds.len()
        );
        self.rows.push(json!({
            "name": row.name, "ratio": ratio.json(), "floor": row.goal.map(|goal| goal[0]), "aim": row.goal.map(|goal| goal[1]),
            "verdict": verdict, "void": is_void, "base_over_itself": itself.json(), "base_ns": base_ns, "ours_ns": ours_ns,
            "rounds": rounds.len(), "slice_ms": SLICE.as_millis() as u64,
        }));
    }
}

/// The rates of all steps of every clean round.
fn measure(wanted: usize, steps: &[Step], subjects: &[&Make]) -> Vec<Vec<f64>> {
    // Before each slice and after it all three wait for each other; the main thread sleeps meanwhile.
    let (barrier, step, ends) = (Barrier::new(3), AtomicUsize::new(0), AtomicBool::new(false));
    let (told, slices) = mpsc::channel();
    thread::scope(|scope| {
        for thread in 0..2 {
            let (told, barrier, step, ends) = (told.clone(), &barrier, &step, &ends);
            scope.spawn(move || {
                pin_to(thread);
                let mut subjects: Vec<_> = subjects.iter().map(|make| make(thread)).collect();
                let mut chance = Chance::new(thread as u64);
                loop {
                    barrier.wait();
                    if ends.load(Ordering::Relaxed) {
                        return;
                    }
                    if let Some(subject) = steps[step.load(Ordering::Relaxed)].subjects[thread] {
                        told.send(slice(thread, subjects[subject].as_mut(), &mut chance)).expect("it is waited for");
                    }
                    barrier.wait();
                }
            });
        }
        let (started, mut rounds) = (Instant::now(), Vec::new());
        // The first round warms up.
        let mut is_warm = false;
        while rounds.len() < wanted && started.elapsed() < PATIENCE {
            let (mut round, mut is_clean) = (vec![0.0; steps.len()], true);
            for (index, rate) in round.iter_mut().enumerate() {
                step.store(index, Ordering::Relaxed);
                barrier.wait();
                barrier.wait();
                for slice in slices.try_iter() {
                    is_clean &= !slice.was_interrupted;
                    *rate += if slice.thread < steps[index].counted { slice.rate } else { 0.0 };
                }
            }
            if is_clean && is_warm {
                rounds.push(round);
            }
            is_warm = true;
        }
        ends.store(true, Ordering::Relaxed);
        barrier.wait();
        rounds
    })
}

/// Random keys, never the same twice in a row: no slice finds what another one has left in the caches.
fn slice(thread: usize, subject: &mut dyn Subject, chance: &mut Chance) -> Slice {
    let interrupted = interruptions();
    let (started, mut count) = (Instant::now(), 0);
    let elapsed = loop {
        let keys = std::array::from_fn(|_| chance.below(crate::PAGES as u64));
        subject.batch(&keys);
        count += BATCH;
        let elapsed = started.elapsed();
        if elapsed >= SLICE {
            break elapsed;
        }
    };
    let was_interrupted = interruptions() != interrupted;
    subject.rest();
    Slice { thread, rate: count as f64 / elapsed.as_secs_f64(), was_interrupted }
}

fn pin_to(core: usize) {
    // SAFETY: a set of CPUs is plain data, and the call reads no more than its size.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(core, &mut set);
        libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &set);
    }
}

/// How often this thread has lost its CPU to another one.
fn interruptions() -> i64 {
    // SAFETY: the kernel fills in the whole structure, which is plain data.
    unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        libc::getrusage(libc::RUSAGE_THREAD, &mut usage);
        usage.ru_nivcsw
    }
}
