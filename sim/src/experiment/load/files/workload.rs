//! Applications: Filebench's four, with the figures of paper 001, table 4. Their flowops are those of Filebench's own `fileserver.f`,
//! `varmail.f`, `webserver.f` and `oltp.f`; of a file that is open already, opening and closing cost the processor only.

use tidegate_engine::time::Duration;

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Workload {
    Fileserver,
    Varmail,
    Webserver,
    Oltp,
}

/// What a thread does next; each counts as one operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flowop {
    /// A name that is free.
    Create,
    /// All of the file at hand.
    WriteWhole,
    /// To the file at hand.
    Append,
    /// Some file, from now on at hand.
    Pick,
    Close,
    ReadWhole,
    Delete,
    Stat,
    /// Of the file at hand.
    Fsync,
    /// To the one log that all threads share.
    AppendLog,
    /// A page somewhere.
    ReadRandom,
    /// A page somewhere, when enough was read.
    WriteRandom,
    /// A piece of the database's log, durable, when enough was read.
    WriteLog,
}

/// How large everything is.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    pub files: u32,
    pub file_bytes: u64,
    pub append_bytes: u64,
    /// Files of one directory (Filebench: 20, and a million in varmail and webserver's defaults are cut to the set's own).
    pub directory: u32,
    /// The grain of the page cache: what a file is made of at least.
    pub page_bytes: u64,
    /// Of the processor, for each operation. Assumed, but for the webserver: fitted, see there.
    pub cpu: Duration,
}

impl Workload {
    pub const ALL: [(&str, Workload); 4] = [
        ("fileserver", Workload::Fileserver),
        ("varmail", Workload::Varmail),
        ("webserver", Workload::Webserver),
        ("oltp", Workload::Oltp),
    ];

    pub fn shape(self) -> Shape {
        let cpu = Duration::from_micros(100);
        match self {
            Workload::Fileserver => {
                Shape { files: 50_000, file_bytes: 256 * KIB, append_bytes: 16 * KIB, directory: 20, page_bytes: 16 * KIB, cpu }
            }
            Workload::Varmail => {
                Shape { files: 50_000, file_bytes: 16 * KIB, append_bytes: 16 * KIB, directory: 50_000, page_bytes: 16 * KIB, cpu }
            }
            // 8 processors make 12,700 operations a second, 410 of them an append to the log: it fills a block group of ext3 in 20 s, which is
            // how often the paper saw a miss there.
            Workload::Webserver => Shape {
                files: 20_000,
                file_bytes: 32 * KIB,
                append_bytes: 16 * KIB,
                directory: 20,
                page_bytes: 16 * KIB,
                cpu: Duration::from_micros(630),
            },
            Workload::Oltp => Shape { files: 10, file_bytes: 800 * MIB, append_bytes: 256 * KIB, directory: 10, page_bytes: 4 * KIB, cpu },
        }
    }

    /// What each thread does, again and again.
    pub fn threads(self) -> Vec<&'static [Flowop]> {
        use Flowop::{
            Append, AppendLog, Close, Create, Delete, Fsync, Pick, ReadRandom, ReadWhole, Stat, WriteLog, WriteRandom, WriteWhole,
        };
        const FILESERVER: [Flowop; 11] = [Create, WriteWhole, Close, Pick, Append, Close, Pick, ReadWhole, Close, Delete, Stat];
        const VARMAIL: [Flowop; 13] = [Delete, Create, Append, Fsync, Close, Pick, ReadWhole, Append, Fsync, Close, Pick, ReadWhole, Close];
        const WEBSERVER: [Flowop; 31] = {
            let mut all = [AppendLog; 31];
            let mut at = 0;
            while at < 30 {
                (all[at], all[at + 1], all[at + 2]) = (Pick, ReadWhole, Close);
                at += 3;
            }
            all
        };
        match self {
            Workload::Fileserver => vec![&FILESERVER; 100],
            Workload::Varmail => vec![&VARMAIL; 100],
            Workload::Webserver => vec![&WEBSERVER; 100],
            Workload::Oltp => {
                let readers = std::iter::repeat_n(&[ReadRandom][..], 200);
                let writers = std::iter::repeat_n(&[WriteRandom][..], 10);
                readers.chain(writers).chain([&[WriteLog][..]]).collect()
            }
        }
    }
}

/// Reads of the database for each write of a page, and for each piece of its log (table 4; `oltp.f`).
pub const READS_PER_WRITE: u64 = 20;
pub const READS_PER_LOG: u64 = 3_200;
/// The database's log, written round and round.
pub const LOG_BYTES: u64 = 10 * MIB;
