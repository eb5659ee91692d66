//! Block traces: what our own recorder writes, and the formats in which others have published what their systems asked of their disks, read as
//! one list of requests.
//! A file may be packed (gzip, xz, zstd). A bad line is one error that names it.

use super::{Ask, unpack};
use crate::experiment::units::shorten;
use std::collections::BTreeMap;
use std::io::{BufRead, ErrorKind, Read};
use std::path::Path;
use tidegate_engine::block::ATOM_BYTES;
use tidegate_engine::trace::{self as recorder, HEADER_BYTES, Header, Kind, RECORD_BYTES};

/// A longer line is no trace.
const LINE_BYTES_MAX: u64 = 4096;
/// More requests than this would not fit into memory (32 bytes each).
const RECORDS_MAX: u64 = 100_000_000;
/// Addresses and sizes beyond these are damage (1 EiB; 1 GiB).
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
}

impl Trace {
    /// Atoms of the largest request.
    pub fn largest(&self) -> u64 {
        self.records.iter().map(|record| u64::from(record.atoms)).max().unwrap_or(0)
    }
}

/// Reads a file, at most `limit` requests of it; a page, of a format that has pages, is so many atoms. The error is one line: file, line (or
/// record), what.
pub fn read(path: &Path, format: Format, page_atoms: u64, limit: Option<u64>) -> Result<Trace, String> {
    let (mut records, limit) = (Vec::new(), limit.unwrap_or(u64::MAX));
    let mut is_too_long = false;
    let whole = each(path, format, page_atoms, &mut |record| {
        let is_wanted = take(&mut records, record, limit, RECORDS_MAX);
        is_too_long = is_wanted.is_none();
        is_wanted.unwrap_or(false)
    })?;
    if is_too_long {
        let path = path.display();
        return Err(format!(
            "{path}: more than {RECORDS_MAX} requests do not fit into memory: cut the trace, or say how many (a plan's `count`)"
        ));
    }
    let (records, end) = lay_out(records);
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
pub fn each(path: &Path, format: Format, page_atoms: u64, keep: &mut dyn FnMut(Record) -> bool) -> Result<Whole, String> {
    let say = |what: String| format!("{}: {what}", path.display());
    let mut file = unpack::open(path).map_err(|why| say(why.to_string()))?;
    let (mut requests, mut accesses) = (0u64, 0u64);
    let whole = each_from(&mut file, format, page_atoms, &mut |record| {
        requests += 1;
        accesses += u64::from(record.atoms > 0);
        keep(record)
    });
    let whole = whole.map_err(|(place, what)| match format.is_lines() {
        true => format!("{}:{place}: {what}", path.display()),
        false => say(format!("record {place}: {what}")),
    })?;
    match (requests, accesses) {
        (0, _) => Err(say("no request in it".into())),
        (_, 0) => Err(say("no read or write in it, only FLUSHes".into())),
        _ => Ok(whole),
    }
}

/// One line for people, if anything of a file was skipped.
pub fn skipped(name: &str, whole: Whole) -> Option<String> {
    let count = whole.skipped;
    (count > 0).then(|| format!("{name}: {count} of its requests have no length, or no place that can be read, and are left out"))
}

type Bad = (u64, String);

fn each_from(file: &mut dyn BufRead, format: Format, page_atoms: u64, keep: &mut dyn FnMut(Record) -> bool) -> Result<Whole, Bad> {
    let mut whole = Whole { skipped: 0, is_timed: format.is_timed() };
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
            each_record(file, RECORD_BYTES, Ending::CutOff, recorded, &mut take)?;
        }
        Format::Iolog => {
            let mut log = Iolog::default();
            each_line(file, |line| log.line(line), &mut take)?;
            whole.is_timed = log.is_timed;
        }
        Format::Blkparse => each_line(file, blkparse, &mut take)?,
    }
    Ok(whole)
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

fn each_record(
    file: &mut dyn BufRead,
    length: usize,
    ending: Ending,
    parse: impl Fn(&[u8]) -> Found,
    keep: &mut dyn FnMut(Said) -> bool,
) -> Result<(), Bad> {
    let mut bytes = vec![0; length];
    for place in 1.. {
        if file.fill_buf().map_err(|why| (place, why.to_string()))?.is_empty() {
            return Ok(());
        }
        match file.read_exact(&mut bytes).map_err(|why| (why.kind(), why.to_string())) {
            Ok(()) => {}
            Err((ErrorKind::UnexpectedEof, _)) if ending == Ending::CutOff => return Ok(()),
            Err((ErrorKind::UnexpectedEof, _)) => return Err((place, format!("cut off: a record has {length} bytes"))),
            Err((_, why)) => return Err((place, why)),
        }
        if !keep(parse(&bytes).map_err(|what| (place, what))?) {
            return Ok(());
        }
    }
    Ok(())
}

fn record(start: u64, atoms: u64, write: bool, volume: u32) -> Result<Record, String> {
    if atoms == 0 || atoms > REQUEST_ATOMS_MAX {
        return Err(format!("a request of {atoms} sectors"));
    }
    if start > ATOM_MAX {
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
fn lay_out(mut records: Vec<Record>) -> (Vec<Record>, u64) {
    let mut ends: BTreeMap<u32, u64> = BTreeMap::new();
    for record in &records {
        let end = ends.entry(record.volume).or_default();
        *end = (*end).max(record.start + u64::from(record.atoms));
    }
    let mut end = 0;
    let starts: BTreeMap<u32, u64> = ends
        .iter()
        .map(|(&volume, &length)| {
            let start = end;
            end = (start + length).next_multiple_of(VOLUME_GRAIN);
            (volume, start)
        })
        .collect();
    if starts.len() > 1 {
        records.iter_mut().for_each(|record| record.start += starts[&record.volume]);
    }
    let end = records.iter().map(|record| record.start + u64::from(record.atoms)).max().unwrap_or(0);
    (records, end)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_engine::block::Span;

    fn parse(format: Format, bytes: &[u8]) -> Result<Vec<Record>, Bad> {
        told(format, bytes).map(|(records, _)| records)
    }

    fn told(format: Format, bytes: &[u8]) -> Result<(Vec<Record>, Whole), Bad> {
        let mut records = Vec::new();
        let whole = each_from(&mut &bytes[..], format, 8, &mut |record| take(&mut records, record, u64::MAX, 1_000).unwrap())?;
        Ok((records, whole))
    }

    /// Time in us, first atom, atoms, write.
    fn check(format: Format, bytes: &[u8], expected: &[(u64, u64, u32, bool)]) {
        let (found, _) = lay_out(parse(format, bytes).unwrap());
        let found: Vec<_> =
            found.iter().map(|record| (record.at_ns / 1_000, record.start, record.atoms, record.ask == Ask::Write)).collect();
        assert_eq!(found, expected, "{format:?}");
    }

    fn bad(format: Format, bytes: &[u8], place: u64, says: &str) {
        let (found, what) = parse(format, bytes).unwrap_err();
        assert!(found == place && what.contains(says), "{format:?}, {found}: {what}");
    }

    #[test]
    fn every_format_is_read() {
        check(Format::Arc, b"5 2 0 0\n64 1 0 1\n", &[(0, 40, 16, false), (0, 512, 8, false)]);
        check(Format::Keys, b"7\r\n*\n\n3\n", &[(0, 56, 8, false), (0, 24, 8, false)]);
        check(Format::Keys32, &[0, 0, 1, 0, 0, 0, 0, 2], &[(0, 2048, 8, false), (0, 16, 8, false)]);
        check(Format::Disksim, b"13.191135\t0\t8\t5\t1\n14.2\t0\t16\t6\t0\n", &[(0, 8, 5, false), (1008, 16, 6, true)]);
        check(Format::Mqsim, b"5000 0 100 16 0\n4000 0 8 8 1\n9000 0 0 1 1\n", &[(0, 100, 16, true), (0, 8, 8, false), (4, 0, 1, false)]);
        let msr = b"128166372003061629,hm,1,Read,1024,4096,413\n128166372003061729,hm,1,Write,700,100,9\n";
        check(Format::Msr, msr, &[(0, 2, 8, false), (10, 1, 1, true)]);
        let mut one = vec![1, 0, 0, 0, 0, 2, 0, 0, 1, 0, 0, 0, 0x2a, 0, 0, 1];
        one.extend([9u64.to_le_bytes(), 5u64.to_le_bytes()].concat());
        check(Format::Vscsi, &one, &[(0, 9, 1, true)]);
        let mut two = vec![0x28, 0, 0, 2, 1, 0, 0, 0, 0, 16, 0, 0, 1, 0, 0, 0];
        two.extend([9u64.to_le_bytes(), 5u64.to_le_bytes(), [0; 8]].concat());
        check(Format::Vscsi, &two, &[(0, 9, 8, false)]);
    }

    #[test]
    fn what_we_recorded_ourselves_is_read_with_its_flushes() {
        let record = |at_ns, kind, span| recorder::Record { at_ns, kind, fua: false, span }.encode();
        let mut bytes = Header { volume_atoms: 1024 }.encode().to_vec();
        bytes.extend(record(5_000, Kind::Write, Span::new(8, 16)));
        bytes.extend(record(6_000, Kind::Trim, Span::new(0, 8)));
        bytes.extend(record(9_000, Kind::Flush, Span::default()));
        bytes.extend(record(12_000, Kind::Read, Span::new(8, 8)));
        check(Format::Tidegate, &bytes, &[(0, 8, 16, true), (4, 0, 0, false), (7, 8, 8, false)]);
        assert_eq!(parse(Format::Tidegate, &bytes).unwrap()[1].ask, Ask::Flush);
        bytes.truncate(bytes.len() - 1);
        check(Format::Tidegate, &bytes, &[(0, 8, 16, true), (4, 0, 0, false)]);
        bytes[7] = 9;
        bad(Format::Tidegate, &bytes, 0, "no recording of tidegate");
        bytes[7] = 1;
        bytes[52] = 9;
        bad(Format::Tidegate, &bytes, 1, "damaged");
    }

    #[test]
    fn fios_logs_and_blkparses_text_are_read() {
        let three =
            b"fio version 3 iolog\n42 /f add\n100 /f open\n200 /f read 4096 512\n250 /f sync 4096 0\n300 /f write 0 8192\n310 /f close\n";
        check(Format::Iolog, three, &[(0, 8, 1, false), (50, 0, 0, false), (100, 0, 16, true)]);
        check(
            Format::Iolog,
            b"fio version 2 iolog\n/f add\n/f open\n/f write 512 512\n/f datasync\n",
            &[(0, 1, 1, true), (0, 0, 0, false)],
        );
        bad(Format::Iolog, b"fio version 3 iolog\n1 /f leap 0 1\n", 2, "\"leap\" is no action");
        bad(Format::Iolog, b"fio version 3 iolog\n1 /f read x 1\n", 2, "\"x\" is not an offset");
        let text = b"  8,0    3   1   0.000000000   697  G   R 223490 + 8 [kjournald]\n  8,0    3   2   0.000001000   697  Q   R 223490 + 8 [kjournald]\n\
              8,0    1   3   0.000004500   697  Q  WS 16 + 24 [dd]\n  8,0    1   4   0.000005000   697  Q  FN [dd]\n  8,0    1   5   0.000006000   9  Q  D 0 + 8 [x]\n\
            CPU0 (sda):\n Reads Queued:           1,        4KiB\n";
        check(Format::Blkparse, text, &[(0, 223_490, 8, false), (3, 16, 24, true), (4, 0, 0, false)]);
        bad(Format::Blkparse, b"8,0 3 1 0.0 697 Q R x + 8 [a]\n", 1, "\"x\" is not a sector");
    }

    #[test]
    fn a_name_tells_the_format_where_it_can() {
        for (path, format) in [
            ("OLTP.lis", Some(Format::Arc)),
            ("x/OLTP.LIS.zst", Some(Format::Arc)),
            ("a.vscsi.zst", Some(Format::Vscsi)),
            ("web_0.csv.gz", Some(Format::Msr)),
            ("mine.keys", Some(Format::Keys)),
            ("traces/lirs/2_pools.trace.gz", Some(Format::Keys)),
            ("cache2k/web07.trace.xz", Some(Format::Keys32)),
            ("mqsim/wsrch-small.trace.zst", Some(Format::Mqsim)),
            ("disksim/ascii.trace", Some(Format::Disksim)),
            ("arc/keys", Some(Format::Arc)),
            ("web07.trace.xz", None),
            ("keys", None),
            ("", None),
            ("..", None),
        ] {
            assert_eq!(Format::of_name(Path::new(path)), format, "{path}");
        }
    }

    #[test]
    fn volumes_of_a_trace_lie_one_after_the_other() {
        check(Format::Mqsim, b"0 7 0 16 1\n0 2 100 16 1\n", &[(0, 2048, 16, false), (0, 100, 16, false)]);
    }

    #[test]
    fn a_bad_line_is_named() {
        bad(Format::Arc, b"1 1 0 0\n1 x 0 0\n", 2, "\"x\" is not a number of pages");
        bad(Format::Arc, b"1 1 0\n", 1, "3 fields, not 4");
        bad(Format::Arc, b"1 0 0 0\n", 1, "a request of 0 sectors");
        bad(Format::Arc, b"99999999999999999 1 0 0\n", 1, "beyond any disk");
        bad(Format::Keys, b"1\n2 3\n", 2, "\"2 3\" is not a key");
        bad(Format::Keys, b"1\n\xff\xfe\n", 2, "not text");
        bad(Format::Keys, &[b'1'; 5000], 1, "a line of more than 4096 bytes");
        bad(Format::Keys32, &[0; 7], 2, "cut off");
        bad(Format::Disksim, b"1.0 0 8 5 2\n", 1, "neither 0 (write) nor 1 (read)");
        bad(Format::Disksim, b"1.x 0 8 5 1\n", 1, "not a time in ms");
        bad(Format::Mqsim, b"-5 0 8 5 1\n", 1, "not a time in ns");
        bad(Format::Msr, b"1,h,0,Read,0,512,1\n1,h,0,Trim,0,512,1\n", 2, "neither Read nor Write");
        bad(Format::Vscsi, &[0; 32], 1, "neither version 1 nor 2");
        bad(Format::Vscsi, &[0; 10], 1, "cut off");
    }

    #[test]
    fn a_limit_ends_the_reading_and_what_memory_has_no_room_for_is_no_end() {
        let read = |limit, most| {
            let (mut records, mut is_too_long) = (Vec::new(), false);
            let whole = each_from(&mut &b"1\n2\n3\nbad\n"[..], Format::Keys, 8, &mut |record| {
                let is_wanted = take(&mut records, record, limit, most);
                is_too_long = is_wanted.is_none();
                is_wanted.unwrap_or(false)
            });
            (whole.is_ok(), records.len(), is_too_long)
        };
        assert_eq!(read(2, 10), (true, 2, false));
        assert_eq!(read(2, 2), (true, 2, false), "what was asked for fits");
        assert_eq!(read(u64::MAX, 2), (true, 2, true));
        assert_eq!(read(3, 2), (true, 2, true));
        assert_eq!(read(u64::MAX, 3), (false, 3, false), "a bad line is said first");
    }

    #[test]
    fn a_page_is_as_long_as_is_said() {
        let read = |format, bytes: &[u8], atoms| {
            let mut found = Vec::new();
            each_from(&mut &bytes[..], format, atoms, &mut |record| {
                found.push((record.start, record.atoms));
                true
            })
            .unwrap();
            found
        };
        assert_eq!(read(Format::Arc, b"5 2 0 0\n", 1), [(5, 2)]);
        assert_eq!(read(Format::Keys, b"5\n", 2), [(10, 2)]);
        assert_eq!(read(Format::Keys32, &[0, 0, 0, 5], 16), [(80, 16)]);
        assert_eq!(read(Format::Mqsim, b"0 0 5 2 1\n", 16), [(5, 2)], "sectors are sectors");
        assert_eq!((Format::Arc.page_bytes(), Format::Keys.page_bytes(), Format::Msr.has_pages()), (Some(512), None, false));
    }

    #[test]
    fn the_same_disk_of_two_hosts_is_two_volumes() {
        let msr = b"10,hm,1,Read,0,4096,1\n10,prn,1,Read,0,4096,1\n10,hm,0,Read,0,4096,1\n10,prn,1,Read,512,512,1\n";
        check(Format::Msr, msr, &[(0, 2048, 8, false), (0, 4096, 8, false), (0, 0, 8, false), (0, 4097, 1, false)]);
        bad(Format::Msr, b"1,h,65536,Read,0,512,1\n", 1, "disk 65536");
    }

    #[test]
    fn requests_without_length_or_place_are_skipped_and_counted() {
        let skips = |format, bytes: &[u8], requests: usize, skipped: u64| {
            let (records, whole) = told(format, bytes).unwrap();
            assert_eq!((records.len(), whole.skipped), (requests, skipped), "{format:?}");
        };
        skips(Format::Msr, b"1,h,0,Read,0,512,1\n2,h,0,Read,700,0,1\n3,h,0,Write,0,0,1\n", 1, 2);
        let mut vscsi = vec![1, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0x2a, 0, 0, 1];
        vscsi.extend([9u64.to_le_bytes(), 5u64.to_le_bytes()].concat());
        let empty = vscsi.clone();
        vscsi[5] = 2;
        skips(Format::Vscsi, &[empty.clone(), vscsi, empty].concat(), 1, 2);
        skips(Format::Iolog, b"fio version 3 iolog\n1 /f read 512 0\n2 /f read 0 512\n3 /f trim 0 512\n", 1, 1);
        let line = |rest: &str| format!("  8,0 3 2 0.000001000 697 Q {rest}\n");
        let text = ["R 200 + 8 [x]", "R 200 +8 [x]", "WS 300", "W 8 + 0 [x]", "FN [x]", "FN", "FWS 300 +8 [x]", "D 300 + 8 [x]", "N [x]"];
        skips(Format::Blkparse, text.map(line).concat().as_bytes(), 3, 4);
        let whole = Whole { skipped: 2, is_timed: true };
        assert!(skipped("x", whole).unwrap().starts_with("x: 2 of its requests have no length"));
        assert_eq!(skipped("x", Whole::default()), None);
    }

    #[test]
    fn whether_fios_log_says_when_is_seen_in_it() {
        let is_timed = |bytes: &[u8]| told(Format::Iolog, bytes).unwrap().1.is_timed;
        assert!(is_timed(b"fio version 3 iolog\n42 /f read 0 512\n") && is_timed(b"42 /f read 0 512\n"));
        assert!(!is_timed(b"fio version 2 iolog\n/f read 0 512\n") && !is_timed(b"fio version 2 iolog\n7 read 0 512\n7 wait 99 0\n"));
        let waits = b"fio version 2 iolog\n/f read 0 512\n/f wait 1000 0\n/f read 0 512\n/f wait 50 0\n/f wait 500 0\n/f write 0 512\n";
        check(Format::Iolog, waits, &[(0, 0, 1, false), (1_000, 0, 1, false), (1_500, 0, 1, true)]);
        assert!(is_timed(waits));
    }

    #[test]
    fn a_file_of_flushes_alone_is_refused() {
        let path = std::env::temp_dir().join(format!("tidegate-flushes-{}.iolog", std::process::id()));
        std::fs::write(&path, "fio version 3 iolog\n1 /f sync 0 0\n2 /f sync 0 0\n").unwrap();
        let found = read(&path, Format::Iolog, 8, None);
        std::fs::remove_file(&path).unwrap();
        assert!(found.unwrap_err().ends_with(".iolog: no read or write in it, only FLUSHes"));
    }
}
