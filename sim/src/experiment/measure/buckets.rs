//! Series over time that need no plan of how long a run takes: when the buckets run out, pairs of them are joined and their width doubles.

use tidegate_engine::time::{Duration, Instant};

/// Buckets at most.
const CELLS_MAX: usize = 512;
/// The first width: 65.536 us.
const WIDTH: u64 = 1 << 16;

/// Amounts over time, in `N` columns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Buckets<const N: usize> {
    started: Instant,
    width: u64,
    cells: Vec<[u64; N]>,
}

impl<const N: usize> Buckets<N> {
    pub fn new(started: Instant) -> Self {
        Buckets { started, width: WIDTH, cells: Vec::new() }
    }

    /// Adds an amount to a column at one moment.
    pub fn add(&mut self, at: Instant, column: usize, amount: u64) {
        let cell = self.reach(at.since(self.started).0);
        self.cells[cell][column] += amount;
    }

    /// Adds to each column by how much its count has grown, and notes the counts.
    pub fn add_news(&mut self, at: Instant, known: &mut [u64; N], counts: [u64; N]) {
        for (column, count) in counts.into_iter().enumerate().filter(|&(column, count)| count > known[column]) {
            self.add(at, column, count - known[column]);
        }
        *known = counts;
    }

    /// Adds the time from `from` to `to` to a column.
    pub fn add_span(&mut self, from: Instant, to: Instant, column: usize) {
        self.add_gauge(from, to, column, 1);
    }

    /// Adds `level` times the time from `from` to `to` to a column.
    pub fn add_gauge(&mut self, from: Instant, to: Instant, column: usize, level: u64) {
        let (mut from, to) = (from.since(self.started).0, to.since(self.started).0);
        if to <= from {
            return;
        }
        self.reach(to - 1);
        while from < to {
            let cell = (from / self.width) as usize;
            let end = ((cell as u64 + 1) * self.width).min(to);
            self.cells[cell][column] += (end - from) * level;
            from = end;
        }
    }

    /// The cell of an offset in time; there is one afterwards.
    fn reach(&mut self, offset: u64) -> usize {
        while offset / self.width >= CELLS_MAX as u64 {
            self.width *= 2;
            self.cells =
                self.cells.chunks(2).map(|pair| std::array::from_fn(|column| pair.iter().map(|cell| cell[column]).sum())).collect();
        }
        let cell = (offset / self.width) as usize;
        if self.cells.len() <= cell {
            self.cells.resize(cell + 1, [0; N]);
        }
        cell
    }

    pub fn width(&self) -> Duration {
        Duration(self.width)
    }

    /// When each bucket starts, counted from the start of the series, and what is in it.
    pub fn cells(&self) -> impl Iterator<Item = (Duration, &[u64; N])> {
        self.cells.iter().enumerate().map(|(index, cell)| (Duration(index as u64 * self.width), cell))
    }

    /// The sums of the columns.
    pub fn sums(&self) -> [u64; N] {
        std::array::from_fn(|column| self.cells.iter().map(|cell| cell[column]).sum())
    }
}

/// Marks at most.
const MARKS_MAX: usize = 1024;
/// The first distance of two marks, in bytes.
const STEP: u64 = 4096;

/// When how many bytes had been transferred: throughput over what was written, instead of over time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Marks {
    step: u64,
    /// When `step`, twice `step`, … bytes were reached.
    times: Vec<Duration>,
    bytes: u64,
}

impl Default for Marks {
    fn default() -> Self {
        Marks { step: STEP, times: Vec::new(), bytes: 0 }
    }
}

impl Marks {
    pub fn add(&mut self, at: Duration, bytes: u64) {
        self.bytes += bytes;
        while self.bytes / self.step > self.times.len() as u64 {
            if self.times.len() == MARKS_MAX {
                self.step *= 2;
                self.times = self.times.iter().copied().skip(1).step_by(2).collect();
                continue;
            }
            self.times.push(at);
        }
    }

    /// When `bytes` had been transferred, at the grain of a mark.
    pub fn time_of(&self, bytes: u64) -> Duration {
        match (bytes / self.step) as usize {
            0 => Duration::ZERO,
            mark => self.times[..mark.min(self.times.len())].last().copied().unwrap_or(Duration::ZERO),
        }
    }

    /// Bytes up to the last mark.
    pub fn end(&self) -> u64 {
        self.times.len() as u64 * self.step
    }

    /// Stretches of about a `parts`-th of the whole: bytes at their start, their length, and the time it took.
    pub fn stretches(&self, parts: usize) -> Vec<(u64, u64, Duration)> {
        let marks = self.times.len().div_ceil(parts).max(1);
        let mut last = (0, Duration::ZERO);
        let mut stretches = Vec::new();
        for (index, &time) in self.times.iter().enumerate() {
            let reached = (index as u64 + 1) * self.step;
            if (index + 1).is_multiple_of(marks) || index + 1 == self.times.len() {
                stretches.push((last.0, reached - last.0, time.since(last.1)));
                last = (reached, time);
            }
        }
        stretches
    }
}

/// Time between two times of one series.
trait Since {
    fn since(self, earlier: Duration) -> Duration;
}

impl Since for Duration {
    fn since(self, earlier: Duration) -> Duration {
        Duration(self.0.saturating_sub(earlier.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_lost_when_buckets_are_joined() {
        let mut buckets: Buckets<2> = Buckets::new(Instant(1_000));
        let mut total = 0;
        for step in 0..50_000u64 {
            let at = Instant(1_000 + step * step * 100);
            buckets.add(at, 0, step);
            buckets.add_span(Instant(1_000 + step * 7), Instant(1_000 + step * 7 + 3), 1);
            total += step;
        }
        assert_eq!(buckets.sums(), [total, 150_000]);
        assert!(buckets.cells().count() <= CELLS_MAX);
        let mut idle: Buckets<1> = Buckets::new(Instant(0));
        idle.add_span(Instant(5), Instant(1 << 45), 0);
        assert_eq!(idle.sums(), [(1 << 45) - 5]);
        assert!(idle.cells().all(|(start, cell)| cell[0] == idle.width().0 || start.0 == 0));
    }

    #[test]
    fn marks_keep_when_how_much_was_transferred() {
        let mut marks = Marks::default();
        // A MiB every ms, and from 2000 MiB on every 2 ms.
        let mut now = 0;
        for mib in 0..3_000 {
            now += if mib < 2_000 { 1_000_000 } else { 2_000_000 };
            marks.add(Duration(now), 1 << 20);
        }
        assert!(marks.end() <= 3_000 << 20 && marks.end() > 2_990 << 20);
        assert_eq!(marks.time_of(1_000 << 20), Duration(1_000_000_000));
        let stretches = marks.stretches(30);
        assert!(stretches.len() <= 31 && stretches.iter().map(|(_, bytes, _)| bytes).sum::<u64>() == marks.end());
        for (start, bytes, time) in stretches {
            let rate = bytes * 1_000 / time.0;
            if start + bytes <= 2_000 << 20 {
                assert_eq!(rate, 1_048);
            } else if start >= 2_000 << 20 {
                assert_eq!(rate, 524);
            }
        }
    }
}
