//! Applications before a device that takes the same time for everything.

use super::layout::Kind;
use super::*;

const VOLUME: u64 = 1_000_000_000_000 / 512;

/// What was asked, and when it was answered; and how many operations that made.
struct Story {
    asked: Vec<(Instant, Ask, Span)>,
    operations: u64,
}

fn run(workload: Workload, fs: Kind, seconds: u64, takes: Duration) -> Story {
    let spec = Spec { workload, fs, time: (seconds > 0).then_some(Duration::from_secs(seconds)) };
    let mut files = Files::new(spec, 1, VOLUME, Instant::ZERO);
    let (mut now, mut asked) = (Instant::ZERO, Vec::new());
    let mut flight: VecDeque<(Instant, usize)> = VecDeque::new();
    while !files.is_done() {
        while let Some(access) = files.pop(now) {
            assert!(access.span.end() <= VOLUME && access.due <= now);
            asked.push((now, access.ask, access.span));
            flight.push_back((now + takes, access.lane));
        }
        let next = [files.next_time(), flight.front().map(|(end, _)| *end)].into_iter().flatten().min();
        let Some(next) = next else { continue };
        now = next.max(now);
        while flight.front().is_some_and(|(end, _)| *end <= now) {
            let (_, lane) = flight.pop_front().expect("it was just seen");
            files.answered(now, lane);
        }
    }
    Story { asked, operations: files.operations() }
}

const MILLI: Duration = Duration::from_millis(1);

#[test]
fn every_application_runs_over_every_file_system_and_is_repeatable() {
    for (name, workload) in Workload::ALL {
        for (fs_name, fs) in Kind::ALL {
            let [one, other] = [0, 1].map(|_| run(workload, fs, 1, MILLI));
            assert!(one.operations > 100, "{name} over {fs_name}: {}", one.operations);
            assert_eq!((one.operations, one.asked), (other.operations, other.asked), "{name} over {fs_name}");
        }
    }
}

#[test]
fn files_are_made_as_large_as_they_are() {
    let made = |workload| run(workload, Kind::Ext3, 0, MILLI).asked.iter().map(|(_, _, span)| span.bytes()).sum::<u64>() >> 20;
    // 40,000 of 256 KiB; 40,000 of 16 KiB in whole pages of it; 20,000 of 32 KiB; 10 of 800 MiB.
    let sizes = [Workload::Fileserver, Workload::Varmail, Workload::Webserver, Workload::Oltp].map(made);
    assert!((10_000..10_700).contains(&sizes[0]) && (800..1_000).contains(&sizes[1]) && (750..850).contains(&sizes[2]), "{sizes:?}");
    assert_eq!(sizes[3], 8_000);
}

#[test]
fn the_web_server_over_ext3_misses_every_twenty_seconds_and_over_others_never() {
    let reads = |fs| {
        let story = run(Workload::Webserver, fs, 110, MILLI);
        story.asked.iter().filter(|(_, ask, _)| *ask == Ask::Read).map(|(when, _, _)| when.0 / 1_000_000_000).collect::<Vec<_>>()
    };
    let misses = reads(Kind::Ext3);
    assert!(misses.len() >= 5 && misses.windows(2).skip(1).all(|pair| (18..23).contains(&(pair[1] - pair[0]))), "{misses:?}");
    assert_eq!((reads(Kind::Xfs), reads(Kind::Nilfs)), (vec![], vec![]));
}

#[test]
fn who_asks_for_durability_waits_for_the_device() {
    for (name, fs) in Kind::ALL {
        let [quick, slow] = [1, 20].map(|ms| run(Workload::Varmail, fs, 5, Duration::from_millis(ms)).operations);
        // The quick one is bound by its processors.
        assert!(quick > slow * 4, "{name}: {quick}, {slow}");
        let [quick, slow] = [1, 20].map(|ms| run(Workload::Webserver, fs, 5, Duration::from_millis(ms)).operations);
        assert!(slow * 100 > quick * 95, "{name}: {quick}, {slow}: what is in memory is as quick before any device");
    }
}

#[test]
fn only_nilfs_writes_one_after_the_other() {
    let in_sequence = |fs| {
        let story = run(Workload::Varmail, fs, 5, MILLI);
        let writes: Vec<Span> = story.asked.iter().filter(|(_, ask, _)| *ask == Ask::Write).map(|(_, _, span)| *span).collect();
        writes.windows(2).filter(|pair| pair[0].end() == pair[1].start).count() * 100 / writes.len()
    };
    assert!(in_sequence(Kind::Nilfs) > 95 && in_sequence(Kind::Ext3) < 30, "{} {}", in_sequence(Kind::Nilfs), in_sequence(Kind::Ext3));
}
