//! What the host takes of a processor that is busy, alone and while the disk reads. A host that counts its work for the disk as the guest's makes
//! server and client share their processors with it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// For so long each.
const TIME: Duration = Duration::from_secs(2);
/// Whoever only looks at the clock misses less than this unless it was stopped, by the host or by somebody else here.
const GAP: Duration = Duration::from_millis(2);

/// The share of its time that a busy thread loses while nobody else does anything, and while `work` is done again and again.
pub fn taken(mut work: impl FnMut()) -> [f64; 2] {
    let alone = lost_while(|| thread::sleep(TIME));
    let beside = lost_while(|| {
        let started = Instant::now();
        while started.elapsed() < TIME {
            work();
        }
    });
    [alone, beside]
}

fn lost_while(meanwhile: impl FnOnce()) -> f64 {
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        let busy = scope.spawn(|| {
            let started = Instant::now();
            let (mut last, mut lost) = (started, Duration::ZERO);
            while !is_over.load(Ordering::Relaxed) {
                let now = Instant::now();
                lost += Some(now - last).filter(|gap| *gap > GAP).unwrap_or_default();
                last = now;
            }
            lost.as_secs_f64() / started.elapsed().as_secs_f64()
        });
        meanwhile();
        is_over.store(true, Ordering::Relaxed);
        busy.join().expect("it only looks at the clock")
    })
}
