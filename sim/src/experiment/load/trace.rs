//! Block traces: what our own recorder writes, and the formats in which others have published what their systems asked of their disks, read as
//! one list of requests.
//! A file may be packed (gzip, xz, zstd). A bad line is one error that names it.

use super::Ask;
use super::unpack::{self, Opened};
use crate::experiment::units::shorten;
use std::collections::BTreeMap;
use std::fmt;
use std::io::{BufRead, Read};
use std::path::Path;
use tidegate_engine::block::ATOM_BYTES;
use tidegate_engine::trace::{self as recorder, HEADER_BYTES, Header, Kind, RECORD_BYTES};

/// A longer line is no trace.
const LINE_BYTES_MAX: u64 = 4096;
/// More requests than this would not fit into memory (32 bytes each).
const RECORDS_MAX: u64 = 100_000_000;
/// Addresses and sizes beyond these are damage (1 EiB, whose blocks have numbers of 48 bits, as much as policies keep of a key; 1 GiB).
const ATOM_MAX: u64 = 1 << 51;
const REQUEST_ATOMS_MAX: u64 = 1 << 21;
/// Volumes of one trace are laid out one after the other, each on a multiple of this (1 MiB).
const VOLUME_GRAIN: u64 = 2048;

/// How a file is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// `.lis` of the ARC paper: first page (of 512 bytes), pages, ignored, request number.
    Arc,
    /// One key to a line (LIRS); empty lines and `*` between them mean nothing. A key is a page that is read; of how many bytes, nobody says.
    Keys,
    /// Keys of 32 bits, big-endian, without separators (cache2k).
    Keys32,
    /// Records of 32 bytes (VMware's vscsiStats, version 1), or of 40 (version 2).
    Vscsi,
    /// DiskSim: time in ms, device, first sector, sectors, 1 for a read.
    Disksim,
    /// MQSim: time in ns, device, first sector, sectors, 1 for a read.
    Mqsim,
    /// MSR Cambridge: time in 100 ns, host, disk (each host has its own), Read or Write, offset and size in bytes, response time.
    Msr,
    /// Our own recorder's: `tidegate serve --record`.
    Tidegate,
    /// fio's `--write_iolog`, version 3: time in us, file, action, offset and length in bytes. Version 2 is the same without times; what comes
    /// behind its action `wait` comes so many us later.
    Iolog,
    /// The text of blktrace's `blkparse`: what was queued (action Q).
    Blkparse,
}

impl Format {
    pub const ALL: [(&str, Format); 10] = [
        ("arc", Format::Arc),
        ("keys", Format::Keys),
        ("keys32", Format::Keys32),
        ("vscsi", Format::Vscsi),
        ("disksim", Format::Disksim),
        ("mqsim", Format::Mqsim),
        ("msr", Format::Msr),
        ("tidegate", Format::Tidegate),
        ("iolog", Format::Iolog),
        ("blkparse", Format::Blkparse),
    ];

    pub fn name(self) -> &'static str {
        Format::ALL.into_iter().find(|&(_, format)| format == self).expect("every format has a name").0
    }

    /// What a file's name says of its format: its ending (behind that of a packer: `.gz`, `.xz`, `.zst`), or else the folder that it lies in.
    /// `None`: nothing, as `.trace` is everybody's.
    pub fn of_name(path: &Path) -> Option<Format> {
        let name = path.file_name()?.to_str()?.to_ascii_lowercase();
        let plain = [".gz", ".xz", ".zst"].iter().find_map(|packer| name.strip_suffix(packer)).unwrap_or(&name);
        let by_ending = plain.rsplit_once('.').and_then(|(_, ending)| match ending {
            "lis" => Some(Format::Arc),
            "csv" => Some(Format::Msr),
            "tgtrace" => Some(Format::Tidegate),
            other => Format::by_name(other),
        });
        let folder = || path.parent()?.file_name()?.to_str().map(str::to_ascii_lowercase);
        by_ending.or_else(|| match folder()?.as_str() {
            "lirs" => Some(Format::Keys),
            "cache2k" => Some(Format::Keys32),
            other => Format::by_name(other),
        })
    }

    fn by_name(name: &str) -> Option<Format> {
        Format::ALL.into_iter().find(|&(known, _)| known == name).map(|(_, format)| format)
    }

    /// Are its numbers those of pages?
    pub fn has_pages(self) -> bool {
        matches!(self, Format::Arc | Format::Keys | Format::Keys32)
    }

    /// Bytes of its pages, if it says so.
    pub fn page_bytes(self) -> Option<u64> {
        (self == Format::Arc).then_some(ATOM_BYTES)
    }

    fn is_lines(self) -> bool {
        !matches!(self, Format::Keys32 | Format::Vscsi | Format::Tidegate)
    }

    /// May it say when? ([`Whole::is_timed`] is of a file.)
    pub fn is_timed(self) -> bool {
        match self {
            Format::Arc | Format::Keys | Format::Keys32 => false,
            Format::Vscsi | Format::Disksim | Format::Mqsim | Format::Msr => true,
            Format::Tidegate | Format::Iolog | Format::Blkparse => true,
        }
    }
}

/// One request of a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    /// Nanoseconds since the first request; never less than of the one before.
    pub at_ns: u64,
    /// First atom and how many.
    pub start: u64,
    pub atoms: u32,
    /// Only some formats know of FLUSHes; theirs have no atoms.
    pub ask: Ask,
    /// Volume of the trace that it went to. `start` is a place in it, until a whole trace is laid out.
    pub volume: u32,
}

/// A whole trace, its volumes laid out one after the other.
#[derive(Clone, Debug, Default)]
pub struct Trace {
    pub records: Vec<Record>,
    /// Behind the last atom that is asked for.
    pub end: u64,
    pub whole: Whole,
}

/// What is known of a file that was read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Whole {
    /// Lines or records that should hold a request and hold none: it has no length, or no place.
    pub skipped: u64,
    /// Does it say when?
    pub is_timed: bool,
    /// It ends inside a record, of a format that may: so many are whole, and were read.
    pub cut_off_behind: Option<u64>,
}

/// Why a file is no trace: one line, with file, line (or record), and what.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refused {
    /// The system does not give it, or not all of it.
    Unreadable(String),
    /// It says what no trace of its format says.
    Wrong(String),
}

impl fmt::Display for Refused {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (Refused::Unreadable(what) | Refused::Wrong(what)) = self;
        to.write_str(what)
    }
}

impl Trace {
    /// Atoms of the largest request.
    pub fn largest(&self) -> u64 {
        self.records.iter().map(|record| u64::from(record.atoms)).max().unwrap_or(0)
    }
}

/// Reads a file, at most `limit` requests of it; a page, of a format that has pages, is so many atoms. The error is one line: file, line (or
/// record), what.
pub fn read(path: &Path, format: Format, page_atoms: u64, limit: Option<u64>) -> Result<Trace, Refused> {
    let (mut records, limit) = (Vec::new(), limit.unwrap_or(u64::MAX));
    let mut is_too_long = false;
    let whole = each(path, format, page_atoms, &mut |record| {
        let is_wanted = take(&mut records, record, limit, RECORDS_MAX);
        is_too_long = is_wanted.is_none();
        is_wanted.unwrap_or(false)
    })?;
    if is_too_long {
        let path = path.display();
        return Err(Refused::Wrong(format!(
            "{path}: more than {RECORDS_MAX} requests do not fit into memory: cut the trace, or say how many (a plan's `count`)"
        )));
    }
    let (records, end) = lay_out(records).map_err(|why| Refused::Wrong(format!("{}: {why}", path.display())))?;
    Ok(Trace { records, end, whole })
}

/// Are more wanted than with this one? `None`: it is one too many for memory.
fn take(records: &mut Vec<Record>, record: Record, limit: u64, most: u64) -> Option<bool> {
    if records.len() as u64 == most {
        return None;
    }
    records.push(record);
    Some((records.len() as u64) < limit)
}

/// Reads a file, request by request, until `keep` wants no more (false). Nothing of it stays in memory.
pub fn each(path: &Path, format: Format, page_atoms: u64, keep: &mut dyn FnMut(Record) -> bool) -> Result<Whole, Refused> {
    let name = path.display().to_string();
    let unreadable = |why: std::io::Error| Refused::Unreadable(format!("{name}: {why}; see that it can be read"));
    each_of(&name, unpack::open(path).map_err(unreadable)?, format, page_atoms, keep)
}

/// The same of a file that is open.
fn each_of(name: &str, mut file: Opened, format: Format, page_atoms: u64, keep: &mut dyn FnMut(Record) -> bool) -> Result<Whole, Refused> {
    let (mut requests, mut accesses) = (0u64, 0u64);
    let whole = each_from(&mut *file.bytes, format, page_atoms, &mut |record| {
        requests += 1;
        accesses += u64::from(record.atoms > 0);
        keep(record)
    });
    // Whoever unpacks it may take for its end what the system did not give.
    let whole = whole.and_then(|whole| match (whole.cut_off_behind, file.failure()) {
        (Some(records), Some(why)) => Err((records + 1, why.to_string())),
        _ => Ok(whole),
    });
    let whole = whole.map_err(|(place, what)| {
        let at = if format.is_lines() { format!("{name}:{place}") } else { format!("{name}: record {place}") };
        match file.failure() {
            Some(why) => Refused::Unreadable(format!("{at}: {why}; see that it can be read, or cut it off before that")),
            None => Refused::Wrong(format!("{at}: {what}")),
        }
    })?;
    match (requests, accesses) {
        (0, _) => Err(Refused::Wrong(format!("{name}: no request in it"))),
        (_, 0) => Err(Refused::Wrong(format!("{name}: no read or write in it, only FLUSHes"))),
        _ => Ok(whole),
    }
}

impl Whole {
    /// For people: a line for each thing that is missing of the file.
    pub fn notes(self, name: &str) -> Vec<String> {
        let skipped = (self.skipped > 0)
            .then(|| format!("{name}: {} of its requests have no length, or no place that can be read, and are left out", self.skipped));
        let cut_off = self.cut_off_behind.map(|records| {
            format!("{name}: it was cut off while it was written: its {records} whole records are used, the last one is left out")
        });
        skipped.into_iter().chain(cut_off).collect()
    }
}

type Bad = (u64, String);

fn each_from(file: &mut dyn BufRead, format: Format, page_atoms: u64, keep: &mut dyn FnMut(Record) -> bool) -> Result<Whole, Bad> {
    let mut whole = Whole { is_timed: format.is_timed(), ..Whole::default() };
    let mut cut_off_behind = None;
    let (mut first, mut before) = (None, 0);
    let mut take = |said| match said {
        Said::Nothing => true,
        Said::Skipped => {
            whole.skipped += 1;
            true
        }
        Said::Request(at_ns, record) => {
            before = at_ns.saturating_sub(*first.get_or_insert(at_ns)).max(before);
            keep(Record { at_ns: before, ..record })
        }
    };
    match format {
        Format::Keys32 => {
            each_record(file, 4, Ending::Whole, |bytes| Ok(Said::Request(0, page(u64::from(big32(bytes, 0)), 1, page_atoms)?)), &mut take)?;
        }
        Format::Vscsi => {
            let (length, version) = vscsi_version(file)?;
            each_record(file, length, Ending::Whole, |bytes| vscsi(bytes, version), &mut take)?;
        }
        Format::Arc => each_line(file, |line| arc(line, page_atoms), &mut take)?,
        Format::Keys => each_line(file, |line| key(line, page_atoms), &mut take)?,
        Format::Disksim => each_line(file, |line| numbered(line, millis), &mut take)?,
        Format::Mqsim => each_line(file, |line| numbered(line, |field| number(field, "a time in ns")), &mut take)?,
        Format::Msr => {
            let mut hosts = Names::default();
            each_line(file, |line| msr(line, &mut hosts), &mut take)?;
        }
        Format::Tidegate => {
            let mut header = [0; HEADER_BYTES];
            let is_ours = file.read_exact(&mut header).is_ok() && Header::decode(&header).is_some();
            is_ours.then_some(()).ok_or((0, "no recording of tidegate, or of another version".to_string()))?;
            // One that was cut off has lost its last record and no other.
            cut_off_behind = each_record(file, RECORD_BYTES, Ending::CutOff, recorded, &mut take)?;
        }
        Format::Iolog => {
            let mut log = Iolog::default();
            each_line(file, |line| log.line(line), &mut take)?;
            whole.is_timed = log.is_timed;
        }
        Format::Blkparse => each_line(file, blkparse, &mut take)?,
    }
    Ok(Whole { cut_off_behind, ..whole })
}

/// What a line or a record says.
enum Said {
    /// Nothing of a request, or of one that touches no block.
    Nothing,
    /// Something of a request, but not what.
    Skipped,
    /// When, in nanoseconds, and what.
    Request(u64, Record),
}

type Found = Result<Said, String>;

/// Names by number, in the order in which they come.
#[derive(Default)]
struct Names(Vec<String>);

impl Names {
    fn number(&mut self, name: &str) -> u32 {
        let known = self.0.iter().position(|known| known == name);
        known.unwrap_or_else(|| {
            self.0.push(name.to_string());
            self.0.len() - 1
        }) as u32
    }
}

fn each_line(file: &mut dyn BufRead, mut parse: impl FnMut(&str) -> Found, keep: &mut dyn FnMut(Said) -> bool) -> Result<(), Bad> {
    let mut line = Vec::new();
    for place in 1.. {
        line.clear();
        let bytes = file.take(LINE_BYTES_MAX).read_until(b'\n', &mut line).map_err(|why| (place, why.to_string()))?;
        if bytes == 0 {
            return Ok(());
        }
        if bytes as u64 == LINE_BYTES_MAX {
            return Err((place, format!("a line of more than {LINE_BYTES_MAX} bytes: is this another format?")));
        }
        let text = std::str::from_utf8(&line).map_err(|_| (place, "not text: is this another format?".to_string()))?;
        if !keep(parse(text.trim()).map_err(|what| (place, what))?) {
            return Ok(());
        }
    }
    Ok(())
}

/// How a file of records may end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ending {
    Whole,
    CutOff,
}

/// Answers with how many records are whole, if the file was cut off behind them and may be. What it was packed in may not be: it ends in an error.
fn each_record(
    file: &mut dyn BufRead,
    length: usize,
    ending: Ending,
    parse: impl Fn(&[u8]) -> Found,
    keep: &mut dyn FnMut(Said) -> bool,
) -> Result<Option<u64>, Bad> {
    let mut bytes = Vec::with_capacity(length);
    for place in 1.. {
        bytes.clear();
        let found = file.take(length as u64).read_to_end(&mut bytes).map_err(|why| (place, why.to_string()))?;
        match found {
            0 => return Ok(None),
            found if found == length => {}
            _ if ending == Ending::CutOff => return Ok(Some(place - 1)),
            _ => return Err((place, format!("cut off: a record has {length} bytes"))),
        }
        if !keep(parse(&bytes).map_err(|what| (place, what))?) {
            return Ok(None);
        }
    }
    Ok(None)
}

fn record(start: u64, atoms: u64, write: bool, volume: u32) -> Result<Record, String> {
    if atoms == 0 || atoms > REQUEST_ATOMS_MAX {
        return Err(format!("a request of {atoms} sectors"));
    }
    if start > ATOM_MAX - atoms {
        return Err(format!("sector {start} is beyond any disk"));
    }
    Ok(Record { at_ns: 0, start, atoms: atoms as u32, ask: if write { Ask::Write } else { Ask::Read }, volume })
}

fn flush(volume: u32) -> Record {
    Record { at_ns: 0, start: 0, atoms: 0, ask: Ask::Flush, volume }
}

fn page(page: u64, pages: u64, atoms: u64) -> Result<Record, String> {
    record(page.saturating_mul(atoms), pages.saturating_mul(atoms), false, 0)
}

/// The atoms that these bytes touch. `None`: there are none.
fn bytes(offset: u64, bytes: u64, write: bool, volume: u32) -> Result<Option<Record>, String> {
    let (start, end) = (offset / ATOM_BYTES, offset.saturating_add(bytes).div_ceil(ATOM_BYTES));
    (bytes > 0).then(|| record(start, end - start, write, volume)).transpose()
}

fn number(field: &str, what: &str) -> Result<u64, String> {
    field.parse().map_err(|_| format!("{:?} is not {what}", shorten(field)))
}

/// The fields of a line, exactly so many.
fn fields<const COUNT: usize>(line: &str, separator: Option<char>, what: &str) -> Result<[String; COUNT], String> {
    let parts: Vec<String> = match separator {
        None => line.split_whitespace().map(str::to_string).collect(),
        Some(separator) => line.split(separator).map(|field| field.trim().to_string()).collect(),
    };
    let found = parts.len();
    parts.try_into().map_err(|_| format!("{found} fields, not {COUNT} ({what})"))
}

fn arc(line: &str, page_atoms: u64) -> Found {
    if line.is_empty() {
        return Ok(Said::Nothing);
    }
    let [start, pages, _, _] = fields(line, None, "first page, pages, ignored, request")?;
    Ok(Said::Request(0, page(number(&start, "a page")?, number(&pages, "a number of pages")?, page_atoms)?))
}

fn key(line: &str, page_atoms: u64) -> Found {
    if line.is_empty() || line == "*" {
        return Ok(Said::Nothing);
    }
    Ok(Said::Request(0, page(number(line, "a key")?, 1, page_atoms)?))
}

/// DiskSim and MQSim: time, device, first sector, sectors, read.
fn numbered(line: &str, time: impl Fn(&str) -> Result<u64, String>) -> Found {
    if line.is_empty() {
        return Ok(Said::Nothing);
    }
    let [at, device, start, sectors, kind] = fields(line, None, "time, device, first sector, sectors, read")?;
    let device = number(&device, "a device").and_then(|device| u32::try_from(device).map_err(|_| format!("device {device}")))?;
    let write = match kind.as_str() {
        "0" => true,
        "1" => false,
        other => return Err(format!("{:?} is neither 0 (write) nor 1 (read)", shorten(other))),
    };
    let record = record(number(&start, "a sector")?, number(&sectors, "a number of sectors")?, write, device)?;
    Ok(Said::Request(time(&at)?, record))
}

/// Milliseconds with decimals, as nanoseconds; no floating point.
fn millis(field: &str) -> Result<u64, String> {
    decimal(field, 6).ok_or_else(|| format!("{:?} is not a time in ms", shorten(field)))
}

/// A number with at most so many decimals, which come out as a whole number of the last of them.
fn decimal(field: &str, places: usize) -> Option<u64> {
    let (whole, decimals) = field.split_once('.').unwrap_or((field, ""));
    let digits: String = decimals.chars().chain(std::iter::repeat('0')).take(places).collect();
    let (whole, rest): (u64, u64) = (whole.parse().ok()?, digits.parse().ok()?);
    whole.checked_mul(10u64.pow(places as u32))?.checked_add(rest)
}

fn msr(line: &str, hosts: &mut Names) -> Found {
    if line.is_empty() || line.starts_with("Timestamp") {
        return Ok(Said::Nothing);
    }
    let [at, host, disk, kind, offset, size, _] = fields(line, Some(','), "time, host, disk, Read or Write, offset, size, response")?;
    let write = match kind.as_str() {
        "Write" => true,
        "Read" => false,
        other => return Err(format!("{:?} is neither Read nor Write", shorten(other))),
    };
    let disk = number(&disk, "a disk").and_then(|disk| u16::try_from(disk).map_err(|_| format!("disk {disk}")))?;
    let host = u16::try_from(hosts.number(&host)).map_err(|_| "too many hosts".to_string())?;
    let volume = u32::from(host) << 16 | u32::from(disk);
    let at = number(&at, "a time in 100 ns")?.saturating_mul(100);
    let record = bytes(number(&offset, "an offset")?, number(&size, "a size")?, write, volume)?;
    Ok(record.map_or(Said::Skipped, |record| Said::Request(at, record)))
}

/// Length and version of the records: version 1 names itself at byte 15, version 2 at byte 3.
fn vscsi_version(file: &mut dyn BufRead) -> Result<(usize, u8), Bad> {
    let head = file.fill_buf().map_err(|why| (1, why.to_string()))?;
    match (head.get(3), head.get(15)) {
        (_, Some(1)) => Ok((32, 1)),
        (Some(2), Some(_)) => Ok((40, 2)),
        (_, None) => Err((1, "cut off: a record has 32 bytes".into())),
        _ => Err((1, "neither version 1 nor 2 of vscsi: is this another format?".into())),
    }
}

/// Version 1: serial, bytes, segments (32 bits each), command, version (16 each), sector, time in us (64 each).
/// Version 2: command, version (16 bits each), serial, bytes, segments (32 each), sector, time in us, response time (64 each).
fn vscsi(record_bytes: &[u8], version: u8) -> Found {
    let (command, length) = if version == 1 { (12, 4) } else { (0, 8) };
    let little32 = |at: usize| u32::from_le_bytes(record_bytes[at..at + 4].try_into().expect("four bytes"));
    let little64 = |at: usize| u64::from_le_bytes(record_bytes[at..at + 8].try_into().expect("eight bytes"));
    let write = match record_bytes[command] {
        0x08 | 0x28 | 0xa8 | 0x88 => false,
        0x0a | 0x2a | 0xaa | 0x8a => true,
        // Another command: no access to blocks.
        _ => return Ok(Said::Nothing),
    };
    match u64::from(little32(length)).div_ceil(ATOM_BYTES) {
        0 => Ok(Said::Skipped),
        atoms => Ok(Said::Request(little64(24).saturating_mul(1_000), record(little64(16), atoms, write, 0)?)),
    }
}

/// What was recorded; a FUA write counts as a write.
fn recorded(bytes: &[u8]) -> Found {
    let found = recorder::Record::decode(bytes.try_into().expect("a whole record")).ok_or("damaged, or of another version")?;
    let record = match found.kind {
        Kind::Read | Kind::Write => record(found.span.start, found.span.atoms, found.kind == Kind::Write, 0)?,
        Kind::Flush => flush(0),
        Kind::Trim | Kind::Zero => return Ok(Said::Nothing),
    };
    Ok(Said::Request(found.at_ns, record))
}

/// fio's log, as far as it was read.
#[derive(Default)]
struct Iolog {
    /// As its first line says.
    version: Option<u32>,
    /// Those that it has named so far, each a volume.
    files: Names,
    /// Of version 2: what its waits come to.
    waited_us: u64,
    is_timed: bool,
}

impl Iolog {
    /// Shorter waits fio leaves out as well.
    const WAIT_US_MIN: u64 = 100;

    fn line(&mut self, line: &str) -> Found {
        if let Some(version) = [2, 3].into_iter().find(|version| line.starts_with(&format!("fio version {version}"))) {
            self.version = Some(version);
            return Ok(Said::Nothing);
        }
        if line.is_empty() {
            return Ok(Said::Nothing);
        }
        let parts: Vec<&str> = line.split_whitespace().collect();
        // Version 3 has a time in front of the name.
        let (at_us, parts) = match parts[..] {
            [at, ..] if self.version != Some(2) && at.bytes().all(|digit| digit.is_ascii_digit()) => {
                self.is_timed = true;
                (number(at, "a time in us")?, &parts[1..])
            }
            _ => (self.waited_us, &parts[..]),
        };
        let [file, action, numbers @ ..] = parts else { return Err("no file and action (fio's log, version 2 or 3)".to_string()) };
        let volume = self.files.number(file);
        let record = match (*action, numbers) {
            ("read" | "write", [offset, size]) => {
                let record = bytes(number(offset, "an offset")?, number(size, "a size")?, *action == "write", volume)?;
                let Some(record) = record else { return Ok(Said::Skipped) };
                record
            }
            ("sync" | "datasync", _) => flush(volume),
            ("wait", [us, ..]) => {
                let us = number(us, "a time in us")?;
                if us >= Iolog::WAIT_US_MIN {
                    (self.waited_us, self.is_timed) = (self.waited_us.saturating_add(us), true);
                }
                return Ok(Said::Nothing);
            }
            ("add" | "open" | "close" | "trim", _) => return Ok(Said::Nothing),
            (other, _) => return Err(format!("{:?} is no action of fio's log", shorten(other))),
        };
        Ok(Said::Request(at_us.saturating_mul(1_000), record))
    }
}

/// A line of blkparse: device, processor, number, time in s, process, action, kind, and of a request `first sector + sectors`. Whatever is
/// queued counts; the summary at the end has no such line.
fn blkparse(line: &str) -> Found {
    let parts: Vec<&str> = line.split_whitespace().collect();
    let &[device, _, _, at, _, "Q", kind, ref place @ ..] = &parts[..] else { return Ok(Said::Nothing) };
    let Some((major, minor)) = device.split_once(',') else { return Ok(Said::Nothing) };
    let number32 = |field: &str| number(field, "a device's number").map(|number| number as u32);
    let volume = number32(major)? << 20 | number32(minor)? & 0xf_ffff;
    let is_access = kind.contains(['R', 'W']) && !kind.contains('D');
    let record = match *place {
        [start, "+", sectors, ..] if is_access && sectors != "0" => {
            record(number(start, "a sector")?, number(sectors, "a number of sectors")?, kind.contains('W'), volume)?
        }
        // A FLUSH alone has no place; behind it comes the process, or nothing.
        [] if kind.starts_with('F') => flush(volume),
        [next, ..] if kind.starts_with('F') && next.starts_with('[') => flush(volume),
        _ if is_access => return Ok(Said::Skipped),
        _ => return Ok(Said::Nothing),
    };
    Ok(Said::Request(seconds(at)?, record))
}

/// Seconds with decimals, as nanoseconds; no floating point.
fn seconds(field: &str) -> Result<u64, String> {
    decimal(field, 9).ok_or_else(|| format!("{:?} is not a time in s", shorten(field)))
}

fn big32(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

/// Every volume of a trace gets a place of its own behind the one before.
fn lay_out(mut records: Vec<Record>) -> Result<(Vec<Record>, u64), String> {
    let mut ends: BTreeMap<u32, u64> = BTreeMap::new();
    for record in &records {
        let end = ends.entry(record.volume).or_default();
        *end = (*end).max(record.start + u64::from(record.atoms));
    }
    let mut end = 0;
    let mut starts: BTreeMap<u32, u64> = BTreeMap::new();
    for (volume, length) in ends {
        starts.insert(volume, end);
        end = (end + length).next_multiple_of(VOLUME_GRAIN);
        if starts.len() > 1 && end > ATOM_MAX {
            return Err(format!("the first {} volumes reach beyond any disk, one behind the other", starts.len()));
        }
    }
    if starts.len() > 1 {
        records.iter_mut().for_each(|record| record.start += starts[&record.volume]);
    }
    let end = records.iter().map(|record| record.start + u64::from(record.atoms)).max().unwrap_or(0);
    Ok((records, end))
}

#[cfg(test)]
mod tests;
