//! What was measured, as a line of the table and as JSON. A goal that is missed is printed as missed.

use serde_json::{Value, json};
use tidegate_engine::block::ATOM_BYTES;
use tidegate_engine::probe::Snapshot;

use crate::load::{Limit, Load, MIB, Way};
use crate::quartiles::Quartiles;
use crate::ssd::Ssd;

/// Half of the writes of data that the device gets under random writes are no smaller.
const DATA_WRITE_BYTES: f64 = 256.0 * 1024.0;
/// The bare file beside itself: further away from 1, nothing can be said.
const BAND: f64 = 0.05;

/// Seconds of each slice: A B B A.
#[derive(Clone, Copy, Debug)]
pub struct Round {
    pub ours: [f64; 2],
    pub bare: [f64; 2],
}

/// Of all slices of ours together. Bytes, except where the name says otherwise.
#[derive(Default)]
pub struct Counted {
    clients: u64,
    written: u64,
    metadata: u64,
    read: u64,
    data_writes: Vec<u64>,
    pub cpu_ns: u64,
    destaged_blocks: u64,
    moved_blocks: u64,
}

impl Counted {
    pub fn add(&mut self, before: &Snapshot, after: &Snapshot, ssd: &Ssd) {
        let (one, other) = (&before.wear.since_start, &after.wear.since_start);
        self.clients += (other.clients - one.clients) * ATOM_BYTES;
        self.written += (other.cache.total() - one.cache.total()) * ATOM_BYTES;
        self.metadata += (other.cache.metadata() - one.cache.metadata()) * ATOM_BYTES;
        self.read += ssd.read_bytes;
        self.data_writes.extend(&ssd.data_writes);
        self.destaged_blocks += after.counters.destaged_blocks - before.counters.destaged_blocks;
        self.moved_blocks += after.counters.moved_blocks - before.counters.moved_blocks;
    }

    /// Written to the device for each byte of the client.
    fn amplification(&self) -> Option<f64> {
        (self.clients > 0).then(|| self.written as f64 / self.clients as f64)
    }
}

pub struct Row<'a> {
    pub load: &'a Load,
    pub rounds: Vec<Round>,
    pub counted: Counted,
}

impl Row<'_> {
    fn of_rounds(&self, value: impl Fn(&Round) -> f64) -> Quartiles {
        Quartiles::of(self.rounds.iter().map(value).collect())
    }

    /// Our bandwidth over that of the bare file.
    fn ratio(&self) -> Quartiles {
        self.of_rounds(|round| round.bare.iter().sum::<f64>() / round.ours.iter().sum::<f64>())
    }

    fn self_check(&self) -> Quartiles {
        self.of_rounds(|round| round.bare[1] / round.bare[0])
    }

    fn is_void(&self) -> bool {
        (self.self_check().median() - 1.0).abs() > BAND
    }

    /// What has to reach the floor.
    fn owed(&self) -> Quartiles {
        let amplification = self.counted.amplification().filter(|_| self.load.is_random());
        self.ratio().times(amplification.unwrap_or(1.0))
    }

    /// Sizes of the writes of data, in KiB.
    fn data_writes(&self) -> Option<Quartiles> {
        let sizes: Vec<f64> = self.counted.data_writes.iter().map(|&bytes| bytes as f64).collect();
        (self.load.way == Way::Write).then(|| Quartiles::of(sizes).times(1.0 / 1024.0))
    }

    /// Of a random load only.
    fn is_large(&self) -> Option<bool> {
        let median = self.data_writes().filter(|_| self.load.is_random())?.median();
        Some(median * 1024.0 >= DATA_WRITE_BYTES)
    }

    fn megabytes(&self, seconds: impl Fn(&Round) -> [f64; 2]) -> f64 {
        self.of_rounds(|round| 2.0 * self.load.slice_bytes as f64 / 1e6 / seconds(round).iter().sum::<f64>()).median()
    }

    fn cpu_us(&self) -> f64 {
        let requests = 2 * self.rounds.len() as u64 * (self.load.slice_bytes / self.load.bytes);
        self.counted.cpu_ns as f64 / 1e3 / requests as f64
    }

    pub fn print_heading() {
        println!(
            "{:<34}{:>6}{:>6}  {:<19}{:>6}{:>6}  {:<19}{:>5} {:<8}{:<22}{:<8}{:>6}{:>8}",
            "", "MB/s", "bare", "ratio [quartiles]", "WA", "read", "ratio × WA", "goal", "", "KiB of a data write", "", "self", "CPU µs"
        );
    }

    pub fn print_legend() {
        println!(
            "WA: bytes written to the device for each byte of the client; read: bytes read of it, for each that the client writes, or reads. \
             Goal of a data write: {} KiB or more in the median.\nself: the bare file beside itself; further from 1 than {BAND}: void. CPU: per request, of the one thread.",
            DATA_WRITE_BYTES / 1024.0
        );
    }

    pub fn print(&self) {
        let shown = |of: Quartiles| of.shown([3, 2]);
        let per_client = |bytes: u64| match self.counted.clients {
            0 => "-".to_owned(),
            clients => format!("{:.2}", bytes as f64 / clients as f64),
        };
        let verdict = |is_met: bool| match (self.is_void(), is_met) {
            (true, _) => "void",
            (false, true) => "met",
            (false, false) => "missed",
        };
        let sizes = self.data_writes().map_or(String::new(), |of| of.shown([0, 0]));
        println!(
            "{:<34}{:>6.0}{:>6.0}  {:<19}{:>6}{:>6}  {:<19}{:>5.2} {:<8}{sizes:<22}{:<8}{:>6.2}{:>8.1}",
            self.load.what,
            self.megabytes(|round| round.ours),
            self.megabytes(|round| round.bare),
            shown(self.ratio()),
            per_client(self.counted.written),
            match self.load.way {
                Way::Write => per_client(self.counted.read),
                Way::Read => format!("{:.2}", self.counted.read as f64 / (2 * self.rounds.len() as u64 * self.load.slice_bytes) as f64),
            },
            if self.load.is_random() { shown(self.owed()) } else { String::new() },
            self.load.floor,
            verdict(self.owed().median() >= self.load.floor),
            self.is_large().map_or("", |is_large| if is_large { "met" } else { "missed" }),
            self.self_check().median(),
            self.cpu_us(),
        );
        if self.counted.destaged_blocks > 0 {
            println!("{:<34}disturbed: {} blocks destaged", "", self.counted.destaged_blocks);
        }
    }

    pub fn json(&self) -> Value {
        let Load { what, way, bytes, depth, limit, slice_bytes, floor, .. } = *self.load;
        let Counted { clients, written, metadata, read, destaged_blocks, moved_blocks, .. } = self.counted;
        json!({
            "what": what, "way": if way == Way::Write { "write" } else { "read" }, "bytes": bytes, "depth": depth, "rate": limit.rate(),
            "reads_apart": matches!(limit, Limit::EachWay(_)),
            "rounds": self.rounds.len(), "slices_per_round": 2, "slice_mib": slice_bytes / MIB,
            "megabytes_per_second": self.megabytes(|round| round.ours), "bare_megabytes_per_second": self.megabytes(|round| round.bare),
            "ratio": self.ratio().json(), "write_amplification": self.counted.amplification(),
            "ratio_times_amplification": self.load.is_random().then(|| self.owed().json()),
            "floor": floor, "met": self.owed().median() >= floor, "void": self.is_void(), "bare_over_itself": self.self_check().json(),
            "data_write_kib": self.data_writes().map(Quartiles::json), "data_write_met": self.is_large(),
            "data_writes": self.counted.data_writes.len(), "cpu_us_per_request": self.cpu_us(),
            "bytes": { "clients": clients, "written": written, "metadata": metadata, "read": read },
            "destaged_blocks": destaged_blocks, "moved_blocks": moved_blocks,
        })
    }
}
