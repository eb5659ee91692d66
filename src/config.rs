//! `config.toml`: what a volume, or each of several, consists of and every knob, read whole or refused whole.
//!
//! A refusal is one line, `path:line:column: what; what to do`, and the exit code [`EX_CONFIG`]. Nothing is created before the file
//! was read and found good.

mod addresses;
mod clients;
mod spin;
mod volumes;

use std::fmt::Write as _;
use std::fs::OpenOptions;
use std::io::Read;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use tidegate_daemon::front::HANDS_MAX;
use tidegate_daemon::front::nbd::{self, Address, Allowed, Certificates};
use tidegate_daemon::volume::{self, Knobs};
use tidegate_engine::config;
use tidegate_engine::policy;
use tidegate_engine::queue::QueueKind;
use tidegate_engine::time::Duration;
use toml::Spanned;

use crate::units;
use crate::up::Named;
use spin::Spin;

/// Its name in the folder of a volume.
pub const FILE_NAME: &str = "config.toml";
/// Exit code of a configuration that is refused (sysexits.h).
pub const EX_CONFIG: u8 = 78;
/// The largest configuration file, in bytes.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// Ready to be served: every path absolute, every knob set or left to the engine's default (`None`).
#[derive(Clone, Debug)]
pub struct Config {
    /// At least one.
    pub volumes: Vec<volume::Options>,
    /// The place of the volume for clients that name none.
    pub default: Option<usize>,
    pub nbd: Vec<Address>,
    pub tls: Option<Certificates>,
    pub control: PathBuf,
}

/// What a configuration file may say; what it leaves out keeps its default.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct File {
    pub origin: Option<PathBuf>,
    pub cache: Option<PathBuf>,
    #[serde(deserialize_with = "addresses::read")]
    pub nbd: Vec<Address>,
    pub control: Option<PathBuf>,
    pub state: Option<PathBuf>,
    pub mode: Option<Mode>,
    export: Export,
    tls: Tls,
    gate: Gate,
    memory: Memory,
    log: Log,
    limits: Limits,
    fence: Fence,
    scrub: Scrub,
    wear: Wear,
    queue: Queue,
    spin: Spin,
    /// Several volumes, instead of the one that the rest describes.
    volume: Vec<Spanned<volumes::Table>>,
    /// Which of them clients get that name none.
    default: Option<Spanned<String>>,
}

/// What clients see.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Export {
    pub name: String,
    pub description: String,
    pub read_only: bool,
    /// Who may use it over TLS.
    #[serde(deserialize_with = "clients::read")]
    pub clients: Vec<Allowed>,
}

/// PEM files.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Tls {
    certificate: Option<PathBuf>,
    key: Option<PathBuf>,
    client_ca: Option<PathBuf>,
}

impl Tls {
    fn certificates(self) -> Option<Certificates> {
        let (certificate, key) = self.certificate.zip(self.key)?;
        Some(Certificates { certificate, key, client_ca: self.client_ca })
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Gate {
    free_floor: Option<Share>,
    reserve: Option<Share>,
    dirty_high: Option<Share>,
    wait: Option<Span>,
    max_dirty_age: Option<Span>,
    destage_depth: Option<Count>,
    destage_batch: Option<Size>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Memory {
    ram: Option<Size>,
    policy: Option<Policy>,
}

/// Which page goes for another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
struct Policy(policy::Kind);

impl TryFrom<String> for Policy {
    type Error = String;
    fn try_from(text: String) -> Result<Self, String> {
        text.parse().map(Policy)
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Log {
    window: Option<Size>,
    dirty_ram: Option<Size>,
    flush_age: Option<Span>,
    fill: Option<bool>,
    allocation: Option<Allocation>,
    convert: Option<Convert>,
    convert_max: Option<Count>,
    when_full: Option<WhenFull>,
    split: Option<bool>,
    commit_home: Option<bool>,
    read_around: Option<bool>,
    read_ahead: Option<Size>,
}

/// As the file says it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Allocation {
    ReadWrite,
    ReadOnly,
    SmallWrites,
}

/// As the file says it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Convert {
    Size,
    Randomness,
}

/// As the file says it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum WhenFull {
    Wait,
    Through,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Limits {
    requests: Option<Count>,
    bytes: Option<Size>,
    stall_timeout: Option<Span>,
    poll: Option<Span>,
    front_threads: Option<Threads>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Scrub {
    rate: Option<Size>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Wear {
    rated_tbw: Option<Size>,
    daily_write_budget: Option<Size>,
    discard: Option<bool>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Queue {
    cache: Option<Scheduler>,
    origin: Option<Scheduler>,
    lanes: Option<Lanes>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
struct Scheduler(QueueKind);

impl TryFrom<String> for Scheduler {
    type Error = String;
    fn try_from(text: String) -> Result<Self, String> {
        text.parse().map(Scheduler)
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Fence {
    samples: Option<Samples>,
}

/// What a FLUSH promises.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct Mode(pub tidegate_engine::Mode);

impl TryFrom<String> for Mode {
    type Error = String;
    fn try_from(text: String) -> Result<Self, String> {
        text.parse().map(Mode)
    }
}

/// The smallest and largest sizes that make sense; beyond them is a typing error, or a machine that would not start.
const WINDOW_BYTES: (u64, u64) = (1 << 20, 1 << 30);
const POLL_MOST: Duration = Duration::from_millis(1);
const DIRTY_RAM_BYTES: (u64, u64) = (0, 1 << 30);
const BATCH_BYTES: (u64, u64) = (64 << 10, 1 << 30);
/// At least the largest request that NBD clients send without asking (32 MiB), and the sectors at its edges.
const REQUEST_BYTES: (u64, u64) = (33 << 20, 64 << 30);
const COUNT_MAX: u64 = 65_536;
/// Lanes of an SSD at most: more than any has channels.
const LANES_MAX: u32 = 256;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
struct Share(u32);
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
struct Size(u64);
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
struct Span(Duration);
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "i64")]
struct Count(usize);

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "i64")]
struct Samples(u32);

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "i64")]
struct Threads(usize);

/// Lanes of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "i64")]
struct Lanes(u32);

impl TryFrom<i64> for Lanes {
    type Error = String;
    fn try_from(number: i64) -> Result<Self, String> {
        let lanes = u32::try_from(number).ok().filter(|lanes| (1..=LANES_MAX).contains(lanes));
        lanes.map(Lanes).ok_or_else(|| format!("{number} is not a number of lanes from 1 (nothing is known of them) to {LANES_MAX}"))
    }
}

impl TryFrom<i64> for Threads {
    type Error = String;
    fn try_from(number: i64) -> Result<Self, String> {
        let threads = usize::try_from(number).ok().filter(|&threads| threads <= HANDS_MAX);
        threads.map(Threads).ok_or_else(|| format!("{number} is not a number of threads from 0 (the volume's own) to {HANDS_MAX}"))
    }
}

impl TryFrom<i64> for Samples {
    type Error = String;
    fn try_from(number: i64) -> Result<Self, String> {
        let samples = u32::try_from(number).ok().filter(|&samples| u64::from(samples) <= COUNT_MAX);
        samples.map(Samples).ok_or_else(|| format!("{number} is not a number of blocks from 0 (none) to {COUNT_MAX}"))
    }
}

impl TryFrom<String> for Share {
    type Error = String;
    fn try_from(text: String) -> Result<Self, String> {
        units::parse_share(&text).map(Share)
    }
}

impl TryFrom<String> for Size {
    type Error = String;
    fn try_from(text: String) -> Result<Self, String> {
        units::parse_size(&text).map(Size)
    }
}

impl TryFrom<String> for Span {
    type Error = String;
    fn try_from(text: String) -> Result<Self, String> {
        units::parse_duration(&text).map(Span)
    }
}

impl TryFrom<i64> for Count {
    type Error = String;
    fn try_from(number: i64) -> Result<Self, String> {
        match u64::try_from(number) {
            Ok(count @ 1..=COUNT_MAX) => Ok(Count(count as usize)),
            _ => Err(format!("{number} is not a count from 1 to {COUNT_MAX}")),
        }
    }
}

/// Reads a configuration file. The error is one line that names the place in it.
pub fn read(path: &Path) -> Result<File, String> {
    let text = read_text(path).map_err(|what| format!("{}: {what}", path.display()))?;
    parse(path, &text)
}

/// The same of a file that was read already; `path` is for the error only.
pub fn parse(path: &Path, text: &str) -> Result<File, String> {
    let at = |offset: usize, what: &str| {
        let (line, column) = place(text, offset);
        format!("{}:{line}:{column}: {what}", path.display())
    };
    let file: File = toml::from_str(text).map_err(|error| {
        let what = error.message().lines().map(str::trim).filter(|line| !line.is_empty()).collect::<Vec<_>>().join("; ");
        at(error.span().map_or(0, |span| span.start), &what)
    })?;
    file.validate().map_err(|(key, what)| at(find_key(text, key), &what))?;
    volumes::validate(&file, text).map_err(|(offset, what)| at(offset, &what))?;
    Ok(file)
}

fn read_text(path: &Path) -> Result<String, String> {
    // Opened first and looked at afterwards: what was checked is what is read. Without waiting: a pipe must not hold the start up.
    let missing = |error: std::io::Error| match error.kind() {
        std::io::ErrorKind::NotFound => format!("{error}; `tidegate up` writes a first configuration"),
        _ => format!("{error}; see that it can be read"),
    };
    let file = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK | libc::O_CLOEXEC).open(path).map_err(missing)?;
    let metadata = file.metadata().map_err(|error| error.to_string())?;
    if !metadata.is_file() {
        return Err("not a regular file; name a configuration file".to_owned());
    }
    let mut bytes = Vec::new();
    file.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes).map_err(|error| error.to_string())?;
    if bytes.len() as u64 > FILE_BYTES_MAX {
        return Err("larger than 1 MiB; this is no configuration of tidegate".to_owned());
    }
    if bytes.starts_with(b"\xef\xbb\xbf") {
        return Err("begins with a byte order mark; save it as plain UTF-8".to_owned());
    }
    String::from_utf8(bytes).map_err(|error| format!("byte {} is not UTF-8; save it as plain UTF-8", error.utf8_error().valid_up_to()))
}

/// Line and column of a byte, both counted from 1; columns in characters.
fn place(text: &str, offset: usize) -> (usize, usize) {
    let before = text.get(..offset).unwrap_or(text);
    let line_start = before.rfind('\n').map_or(0, |end| end + 1);
    (before.matches('\n').count() + 1, before[line_start..].chars().count() + 1)
}

/// Where a key of the last part of `section.key` stands: the line that assigns it.
fn find_key(text: &str, key: &str) -> usize {
    let mut offset = 0;
    for line in text.split_inclusive('\n') {
        let indent = line.len() - line.trim_start().len();
        if line.trim_start().strip_prefix(key).is_some_and(|rest| rest.trim_start().starts_with('=')) {
            return offset + indent;
        }
        offset += line.len();
    }
    0
}

impl File {
    /// Relations between values, and paths. The error names the key whose line is to blame.
    fn validate(&self) -> Result<(), (&'static str, String)> {
        let unix = |address: &Address| match address {
            Address::Unix(path) => Some(path.clone()),
            Address::Tcp(_) => None,
        };
        let relative = self.nbd.iter().filter_map(unix).find(|path| !path.is_absolute());
        for (key, path) in [
            ("origin", self.origin.as_ref()),
            ("cache", self.cache.as_ref()),
            ("nbd", relative.as_ref()),
            ("control", self.control.as_ref()),
            ("state", self.state.as_ref()),
            ("certificate", self.tls.certificate.as_ref()),
            ("key", self.tls.key.as_ref()),
            ("client_ca", self.tls.client_ca.as_ref()),
        ] {
            if path.is_some_and(|path| !path.is_absolute()) {
                return Err((key, format!("`{key}` is a relative path; write it from / on")));
            }
        }
        if self.origin.is_some() && self.origin == self.cache {
            return Err(("cache", "`cache` and `origin` are the same; the cache must be a device or file of its own".to_owned()));
        }
        match (&self.tls.certificate, &self.tls.key, &self.tls.client_ca) {
            (Some(_), Some(_), _) | (None, None, None) => {}
            (None, Some(_), _) => return Err(("key", "`key` without `certificate`; name both".to_owned())),
            (Some(_), None, _) => return Err(("certificate", "`certificate` without `key`; name both".to_owned())),
            (None, None, Some(_)) => return Err(("client_ca", "`client_ca` without `certificate` and `key`; name all three".to_owned())),
        }
        if let Some(address) = self.nbd.iter().find(|address| self.tls.certificate.is_none() && address.needs_tls()) {
            return Err(("nbd", address.refusal()));
        }
        for (key, text) in [("name", &self.export.name), ("description", &self.export.description)] {
            if !nbd::is_string(text.as_bytes()) {
                return Err((key, format!("`{key}` must have at most 4096 bytes and no NUL")));
            }
        }
        if !self.export.clients.is_empty() && self.tls.client_ca.is_none() {
            let what = "`clients` without `client_ca` below [tls]: name the authority that signs their certificates";
            return Err(("clients", what.to_owned()));
        }
        let within = |key: &'static str, size: Option<Size>, (least, most): (u64, u64)| match size {
            Some(Size(bytes)) if bytes < least || bytes > most => {
                Err((key, format!("`{key}` must be from {} to {}", units::show_size(least), units::show_size(most))))
            }
            _ => Ok(()),
        };
        within("destage_batch", self.gate.destage_batch, BATCH_BYTES)?;
        within("window", self.log.window, WINDOW_BYTES)?;
        within("dirty_ram", self.log.dirty_ram, DIRTY_RAM_BYTES)?;
        within("bytes", self.limits.bytes, REQUEST_BYTES)?;
        if self.limits.poll.is_some_and(|span| span.0 > POLL_MOST) {
            return Err(("poll", "`poll` must be at most 1 ms: the processor does nothing else meanwhile".to_owned()));
        }
        if self.wear.rated_tbw == Some(Size(0)) {
            return Err((
                "rated_tbw",
                "`rated_tbw` is zero; write what the maker of the SSD states, such as \"150TB\", or leave it out".to_owned(),
            ));
        }
        self.spin.validate()?;
        let floor = self.gate.free_floor.map_or(10, |share| share.0);
        let reserve = self.gate.reserve.map_or(2, |share| share.0);
        if reserve > floor {
            return Err(("reserve", format!("`reserve` ({reserve}%) must not exceed `free_floor` ({floor}%)")));
        }
        if floor > 90 {
            return Err(("free_floor", "`free_floor` must be at most 90%, or nothing would stay in the cache".to_owned()));
        }
        Ok(())
    }

    /// What the command line names counts more than the file.
    pub fn override_with(&mut self, named: Named) {
        self.origin = named.origin.or(self.origin.take());
        self.cache = named.cache.or(self.cache.take());
        self.nbd = named.nbd.map_or(std::mem::take(&mut self.nbd), |address| vec![address]);
        self.export.name = named.name.unwrap_or(std::mem::take(&mut self.export.name));
        self.export.read_only |= named.read_only;
        if let Some(Certificates { certificate, key, client_ca }) = named.tls {
            self.tls = Tls { certificate: Some(certificate), key: Some(key), client_ca };
        }
    }

    fn knobs(&self) -> Knobs {
        Knobs {
            free_floor: self.gate.free_floor.map(|share| share.0),
            reserve: self.gate.reserve.map(|share| share.0),
            dirty_high: self.gate.dirty_high.map(|share| share.0),
            wait: self.gate.wait.map(|span| span.0),
            max_dirty_age: self.gate.max_dirty_age.map(|span| span.0),
            destage_depth: self.gate.destage_depth.map(|count| count.0),
            destage_batch: self.gate.destage_batch.map(|size| size.0),
            ram: self.memory.ram.map(|size| size.0),
            memory_policy: self.memory.policy.map(|policy| policy.0),
            window: self.log.window.map(|size| size.0),
            dirty_ram: self.log.dirty_ram.map(|size| size.0),
            flush_age: self.log.flush_age.map(|span| span.0),
            fill: self.log.fill,
            allocation: self.log.allocation.map(|allocation| match allocation {
                Allocation::ReadWrite => config::Allocation::ReadWrite,
                Allocation::ReadOnly => config::Allocation::ReadOnly,
                Allocation::SmallWrites => config::Allocation::SmallWrites,
            }),
            convert: self.log.convert.map(|convert| match convert {
                Convert::Size => config::Convert::Size,
                Convert::Randomness => config::Convert::Randomness,
            }),
            convert_max: self.log.convert_max.map(|sectors| sectors.0 as u64),
            split: self.log.split,
            commit_home: self.log.commit_home,
            read_around: self.log.read_around,
            read_ahead: self.log.read_ahead.map(|size| size.0),
            when_full: self.log.when_full.map(|when_full| match when_full {
                WhenFull::Wait => config::WhenFull::Wait,
                WhenFull::Through => config::WhenFull::Through,
            }),
            requests: self.limits.requests.map(|count| count.0),
            bytes: self.limits.bytes.map(|size| size.0),
            fence_samples: self.fence.samples.map(|samples| samples.0),
            mode: self.mode.map(|mode| mode.0),
            stall_timeout: self.limits.stall_timeout.map(|span| span.0),
            poll: self.limits.poll.map(|span| span.0),
            front_threads: self.limits.front_threads.map(|threads| threads.0),
            scrub_rate: self.scrub.rate.map(|size| size.0),
            rated_tbw: self.wear.rated_tbw.map(|size| size.0),
            discard: self.wear.discard,
            queues: [self.queue.cache, self.queue.origin].map(|queue| queue.map(|scheduler| scheduler.0)),
            lanes: self.queue.lanes.map(|lanes| lanes.0),
            daily_write_budget: self.wear.daily_write_budget.map(|size| size.0),
        }
    }

    /// Does it describe several volumes?
    pub fn is_plural(&self) -> bool {
        !self.volume.is_empty()
    }

    /// What the file says, and the folder's own files for what it leaves out.
    pub fn in_folder(mut self, folder: &Path) -> Config {
        let tables = std::mem::take(&mut self.volume);
        let default = match &self.default {
            Some(default) => tables.iter().position(|table| table.get_ref().name.get_ref() == default.get_ref()),
            // Of several, clients have to name one.
            None => (tables.len() < 2).then_some(0),
        };
        let (nbd, control, tls) = (std::mem::take(&mut self.nbd), self.control.take(), std::mem::take(&mut self.tls).certificates());
        let volumes = match tables.is_empty() {
            true => vec![self.volume_in(folder)],
            false => tables.into_iter().map(|table| table.into_inner().into_file().volume_in(folder)).collect(),
        };
        Config {
            volumes,
            default,
            nbd: if nbd.is_empty() { vec![Address::Unix(folder.join("nbd.sock"))] } else { nbd },
            control: control.unwrap_or_else(|| folder.join("control.sock")),
            tls,
        }
    }

    /// The one volume that this describes.
    fn volume_in(self, folder: &Path) -> volume::Options {
        let knobs = self.knobs();
        let Export { name, description, read_only, clients } = self.export;
        volume::Options {
            name,
            description,
            read_only,
            clients,
            origin: self.origin.unwrap_or_else(|| folder.join("origin.img")),
            cache: self.cache.unwrap_or_else(|| folder.join("cache.img")),
            state: folder.join(self.state.unwrap_or_else(|| tidegate_daemon::state::FILE_NAME.into())),
            accept_loss: false,
            knobs,
            spin: self.spin.options(),
            record: None,
        }
    }
}

/// The file that a first run writes: every knob with its default and unit. What was given on the command line is set in it; the rest
/// is shown and commented out, so that a later version may have better defaults.
pub fn first_file(named: &Named) -> String {
    let mut text = String::from(
        "# A tidegate volume; several in one file are tables [[volume]] instead (docs/volumes.md). Lines that begin with # show the defaults; remove the # to change one.\n\
         # Read when the daemon starts. Sizes: B KiB MiB GiB TiB, or kB MB GB TB. Durations: us ms s min h d. Shares: per cent of the cache.\n\n",
    );
    let quoted = |text: &str| toml::Value::String(text.to_owned()).to_string();
    let mut path_line = |key: &str, value: Option<String>, default: &str, about: &str| {
        let _ = match value {
            Some(value) => writeln!(text, "# {about}\n{key} = {}\n", quoted(&value)),
            None => writeln!(text, "# {about}\n# Default: {default} beside this file.\n#{key} = \"/path/to/{default}\"\n"),
        };
    };
    let shown = |path: &Path| path.display().to_string();
    path_line(
        "origin",
        named.origin.as_deref().map(shown),
        "origin.img",
        "The slow device or file whose contents the volume shows. It carries no header and stays usable alone.",
    );
    path_line("cache", named.cache.as_deref().map(shown), "cache.img", "The fast device or file that tidegate owns.");
    path_line(
        "nbd",
        named.nbd.as_ref().map(Address::to_string),
        "nbd.sock",
        "Where NBD clients connect: the path of a Unix socket, or an address such as \"127.0.0.1:10809\" (beyond loopback with [tls] only), \
         or a list of them.",
    );
    path_line("control", None, "control.sock", "Where `tidegate status` and `tidegate drain` ask.");
    path_line(
        "state",
        None,
        "tidegate.state",
        "What this host knows of the cache: another one, or an older copy of it, is refused. On a disk that keeps it.",
    );
    text.push_str(MODE);
    let mut section = |header: &str, lines: &[(&str, Option<String>, &str, &str)]| {
        let _ = writeln!(text, "{header}");
        for (key, value, default, about) in lines {
            let _ = match value {
                Some(value) => writeln!(text, "# {about}\n{key} = {value}"),
                None => writeln!(text, "# {about}\n#{key} = {default}"),
            };
        }
        text.push('\n');
    };
    let name = named.name.as_deref().map(quoted);
    let read_only = named.read_only.then(|| "true".to_owned());
    section(
        "[export]",
        &[
            ("name", name, "\"\"", "The name that clients ask for; who asks for none gets this volume too."),
            ("description", None, "\"\"", "Text for people, in lists of exports."),
            ("read_only", read_only, "false", "Clients may not change anything. What is dirty goes home all the same."),
            (
                "clients",
                None,
                "[\"dns:vm7.example.org\"]",
                "Who may use it over TLS, by names in client certificates (dns:, ip:) or by fingerprint (sha256:); needs client_ca.",
            ),
        ],
    );
    let file = |path: fn(&Certificates) -> Option<&PathBuf>| named.tls.as_ref().and_then(path).map(|path| quoted(&shown(path)));
    section(
        "[tls]",
        &[
            (
                "certificate",
                file(|tls| Some(&tls.certificate)),
                "\"/path/to/server-cert.pem\"",
                "With these, TCP clients must use TLS. PEM files.",
            ),
            ("key", file(|tls| Some(&tls.key)), "\"/path/to/server-key.pem\"", "The private key of the certificate."),
            (
                "client_ca",
                file(|tls| tls.client_ca.as_ref()),
                "\"/path/to/ca-cert.pem\"",
                "Clients need a certificate of this authority. Without it, whoever reaches the port may connect.",
            ),
        ],
    );
    text.push_str(KNOBS);
    text
}

const KNOBS: &str = r#"[gate]
# When dirty blocks go home to the origin.
# Free sets (1 MiB each) below which room is made when the volume is idle.
#free_floor = "10%"
# Free sets that only client writes may take; what is read from the origin is not kept in them.
#reserve = "2%"
# What is dirty, in sets that it would fill, above which destaging does not wait for idleness.
#dirty_high = "70%"
# No request for so long: the volume is idle.
#wait = "2s"
# A dirty block older than this goes home without waiting for idleness.
#max_dirty_age = "10min"
# Writes to the origin in flight at once while destaging: the queue of a hard disk.
#destage_depth = 32
# Written to the origin between two flushes of it.
#destage_batch = "16MiB"

[memory]
# Pages of what clients read and wrote last, in front of the cache; nothing is there alone. "0B": none.
# Default: a thirty-second of the memory that this process may use, at most 256 MiB.
#ram = "256MiB"
# Which of them goes for another one: "s3-fifo", "lru", "arc", "lirs", "w-tinylfu", "2q", "clock", "sieve" or "fifo"; or "chooser": of S3-FIFO,
# LIRS, LRU and W-TinyLFU that one which would have missed least, which costs some
# memory beside the pages: up to 500 bytes for each while it follows LIRS, where S3-FIFO alone has 100.
#policy = "s3-fifo"

[log]
# Written to the cache and not yet flushed there; held in memory meanwhile.
# Default: a sixteenth of the cache, from 4 MiB to 128 MiB.
#window = "128MiB"
# Of that, acknowledged before it is in the cache at all, like what is in the volatile cache of a disk: small writes are joined to large ones.
# "0B": a write is acknowledged when the cache has it. Default: a quarter of the window.
#dirty_ram = "32MiB"
# tidegate flushes the cache by itself when the oldest unflushed write is this old.
#flush_age = "1s"
# Keep in the cache what was read from the origin.
#fill = true
# "read-write"; "read-only": writes go to the origin, and only what was read is kept; or "small-writes": only small writes are taken, and
# become sequential; others go to the origin, and what was read is not kept.
#allocation = "read-write"
# Which writes are small: by "size", or by "randomness": all but those that are part of a sequence.
#convert = "size"
# The largest small write, in sectors of 512 bytes. Default: 8 by size, 512 by randomness.
#convert_max = 8
# What a write does when no set is free: "wait" until destaging has freed one, or go "through" to the origin.
#when_full = "wait"
# Let part of a long sequential write (more than a thirty-second of the cache) go to the origin at once, where that makes the write quicker or the
# cache is filling up, and all of it while the cache is full.
#split = true
# Let a small write that a FLUSH follows at once go to the origin, and flush that, where this is measured to be durable sooner than on the SSD: a
# network volume can be quicker there than the flush of a SATA drive.
#commit_home = true
# Read and keep what lies around a missed block as well, behind the reply, where that pays: what it would have spared, and what it costs, are
# measured while the volume works.
#read_around = true
# Memory for what is read from the cache ahead of sequential reads: the SSD has something to do while one reply leaves. "0B": nothing is.
#read_ahead = "16MiB"

[limits]
# Requests of all clients worked on at once; more wait in their sockets.
#requests = 1024
# Bytes of these requests held in memory.
#bytes = "256MiB"
# A write that waits for room fails when the origin has shown no sign of life for so long; what is dirty stays dirty.
#stall_timeout = "60s"
# Look for so long whether a client asks again before sleeping, at most 1 ms, as long as clients do ask again so soon: quicker answers for some
# time of a processor. "50us" is a good try. Default "0s": never. (Not with `--io threads`.)
#poll = "0s"
# Threads that serve clients, beside the one that every volume has; more than processors are of no use. They answer themselves what is in memory
# (see [memory]), so many clients that read it are served side by side; everything else takes a step more. Default 0: the volume's own thread
# serves its clients too, the quickest way for a few of them.
#front_threads = 0

[fence]
# Cached blocks whose places on the origin are read again at every start, to find out whether somebody changed it behind the cache's back.
# A start takes up to 2 s longer for it. 0: none, and a changed origin is not found.
#samples = 1024

[scrub]
# Bytes per second that are read from the cache in the background and verified; a quarter of it while clients wait. "0B": none.
# Default: all of the cache in six hours.
#rate = "5MiB"

[wear]
# Bytes that the maker lets the SSD be written in its life (TBW): `tidegate status` then says how much of it is used and how long it lasts.
# Default: not told.
#rated_tbw = "150TB"
# Bytes a day that are written to the SSD before what was read from the origin is not kept any more. What clients write is never held up.
# Default: no limit.
#daily_write_budget = "50GB"
# Tell the SSD of every set that becomes free that it need not keep it (TRIM). Of a cache in a file, the space goes back to the file system.
#discard = false

[queue]
# Which operation of a device goes next. "urgency": first come, first served, and what nobody waits for (fills, destaging, cleaning) yields.
# "lanes": reads first, and few writes in the device while somebody reads. The others are there for comparison: "noop"; Linux's "deadline", and
# "cfq" simplified; "ac" of paper 003. All but "urgency" merge neighbours.
#cache = "urgency"
#origin = "urgency"
# Parts of the cache's SSD that work side by side and have an equal stretch of its addresses each ("stretches" of `tidegate probe`; most SSDs have
# none): what is written goes to each of them in turn, and the queue "lanes" sends as many reads to each. For a cache that is the whole SSD.
#lanes = 1

[spin]
# Let the origin's disk stand still while nobody needs it: "auto" (the disk that the origin lies on), or the disk itself, such as "/dev/sdb".
# Default: it is told nothing.
#motor = "auto"
# When it is stopped: "history" (what would have been best for the pauses of late), "share" (25 timeouts that vote), "break-even" (as soon as
# standing still pays for a start), or "fixed" (after ten seconds).
#predictor = "history"
# Starts in any hour, at most.
#starts_per_hour = 12
# Age at which what is dirty wakes the disk, instead of [gate] max_dirty_age.
#max_dirty_age = "24h"
# Hours in which it is stopped as soon as it may be, and not woken for what can wait.
#quiet = ["23:00-07:00"]
# What the disk's data sheet says: idling, standing still, its spin-up, and the starts that it bears. Default: a 3.5" disk of 7200 rpm.
#idle = "6.1W"
#standby = "0.7W"
#spin_up = "7s"
#spin_up_power = "19.8W"
#rated_starts = 50000
# Starts that it has had before, where it does not say so itself.
#starts_before = 0
# Price of a kilowatt-hour: `tidegate status` then says what standing still has saved.
#kwh_price = "0.30 EUR"
"#;

const MODE: &str = r#"# What a FLUSH promises: "write-back" (it is on the cache, which holds the only copy of what is dirty), "write-through" (it is on the
# origin), or "read-only" (the same, and only what was read is kept). Default: what `tidegate mode` chose last, write-back at first.
#mode = "write-back"

"#;

#[cfg(test)]
mod tests {
    use super::*;

    /// Reads `text` as a file; the error without the folder in front.
    fn check(text: &[u8]) -> Result<File, String> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("config.toml");
        std::fs::write(&path, text).unwrap();
        let strip = format!("{}/", folder.path().display());
        read(&path).map_err(|error| error.replace(&strip, ""))
    }

    #[test]
    fn the_first_file_says_only_defaults() {
        let file = check(first_file(&Named::default()).as_bytes()).unwrap();
        assert_eq!(file, File::default());
    }

    #[test]
    fn what_becomes_of_writes_is_named_in_words() {
        let file = check(b"[log]\nallocation = \"read-only\"\nwhen_full = \"through\"\n").unwrap();
        let knobs = file.knobs();
        assert_eq!((knobs.allocation, knobs.when_full), (Some(config::Allocation::ReadOnly), Some(config::WhenFull::Through)));
        let file = check(b"[log]\nallocation = \"small-writes\"\nconvert = \"randomness\"\nconvert_max = 64\n").unwrap();
        let knobs = file.knobs();
        let wanted = (Some(config::Allocation::SmallWrites), Some(config::Convert::Randomness), Some(64));
        assert_eq!((knobs.allocation, knobs.convert, knobs.convert_max), wanted);
        let error = check(b"[log]\n\nwhen_full = \"panic\"\n").unwrap_err();
        assert!(error.contains("config.toml:3") && error.contains("through"), "{error}");
    }

    #[test]
    fn each_device_has_a_queue_of_its_own() {
        let file = check(b"[queue]\ncache = \"ac\"\n").unwrap();
        assert_eq!(file.knobs().queues, [Some(QueueKind::Ac), None]);
    }

    #[test]
    fn every_knob_of_the_first_file_can_be_turned_on_as_it_stands() {
        let text = first_file(&Named::default());
        let keys = KNOBS.lines().filter(|line| line.starts_with('#') && !line.starts_with("# ")).count();
        let enabled: String = text
            .lines()
            .map(|line| if line.starts_with('#') && !line.starts_with("# ") { &line[1..] } else { line })
            .flat_map(|line| [line, "\n"])
            .collect();
        let file = check(enabled.as_bytes()).unwrap();
        let knobs = format!("{:?} {:?}", file.knobs(), file.spin);
        assert!(!knobs.contains("None"), "a knob is not in the file: {knobs}");
        // And the mode, which stands at the top.
        assert_eq!(knobs.matches("Some").count(), keys + 1, "a line of the file is no knob");
    }

    #[test]
    fn what_was_given_is_written_down() {
        let address: Address = "0.0.0.0:10809".parse().unwrap();
        let tls = Certificates { certificate: "/c".into(), key: "/k\"".into(), client_ca: Some("/a".into()) };
        let named = Named {
            origin: Some("/dev/sd\"b".into()),
            nbd: Some(address.clone()),
            name: Some("disk \"7\"".to_owned()),
            read_only: true,
            tls: Some(tls.clone()),
            ..Named::default()
        };
        let text = first_file(&named);
        let config = check(text.as_bytes()).unwrap().in_folder(Path::new("/srv/tide"));
        let [volume] = &config.volumes[..] else { panic!("one volume") };
        assert_eq!(volume.origin, Path::new("/dev/sd\"b"));
        assert_eq!((&*volume.cache, &*volume.state), (Path::new("/srv/tide/cache.img"), Path::new("/srv/tide/tidegate.state")));
        assert_eq!((config.nbd, config.tls, config.default), (vec![address], Some(tls), Some(0)));
        assert_eq!((&*volume.name, &*volume.description, volume.read_only), ("disk \"7\"", "", true));
    }

    #[test]
    fn a_bad_file_is_refused_with_its_place() {
        for (text, expected) in [
            ("orgin = \"/a\"\n", "config.toml:1:1: unknown field `orgin`"),
            ("[gate]\nwait = 2\n", "config.toml:2:8: invalid type: integer `2`, expected a string"),
            ("[gate]\n  wait = \"2\"\n", "config.toml:2:10: \"2\" has no unit"),
            ("[gate]\nwait = \"2s\"\nwait = \"3s\"\n", "config.toml:3:1: duplicate key"),
            ("[gate\n", "config.toml:1:6: "),
            ("[gate]\ndestage_depth = 0\n", "config.toml:2:17: 0 is not a count from 1 to 65536"),
            ("[gate]\ndestage_depth = 99999999999999999999\n", "config.toml:2:17: "),
            ("mode = \"write-around\"\n", "config.toml:1:8: \"write-around\" is no mode: write-back, write-through or read-only"),
            ("[log]\nfill = \"yes\"\n", "config.toml:2:8: invalid type: string \"yes\", expected a boolean"),
            ("[wear]\nrated_tbw = \"0B\"\n", "config.toml:2:1: `rated_tbw` is zero"),
            ("[log]\nconvert = \"luck\"\n", "config.toml:2:11: unknown variant `luck`, expected `size` or `randomness`"),
            ("[log]\nallocation = \"small-writes\"\nconvert_max = 0\n", "config.toml:3:15: 0 is not a count from 1 to 65536"),
            ("[log]\nwindow = \"1B\"\n", "config.toml:2:1: `window` must be from 1.0 MiB to 1.0 GiB"),
            ("[log]\ndirty_ram = \"2GiB\"\n", "config.toml:2:1: `dirty_ram` must be from 0 B to 1.0 GiB"),
            ("[limits]\nfront_threads = 65\n", "config.toml:2:17: 65 is not a number of threads"),
            ("[limits]\npoll = \"2ms\"\n", "config.toml:2:1: `poll` must be at most 1 ms"),
            ("origin = \"disk.img\"\n", "config.toml:1:1: `origin` is a relative path"),
            ("origin = \"/a\"\ncache = \"/a\"\n", "config.toml:2:1: `cache` and `origin` are the same"),
            ("nbd = \"10809\"\n", "config.toml:1:7: NBD address: `10809` is neither unix:PATH nor IP:PORT"),
            ("\nnbd = \"0.0.0.0:1\"\n", "config.toml:2:1: NBD address: tcp:0.0.0.0:1 can be reached from outside, which needs TLS"),
            ("[tls]\nkey = \"/k\"\n", "config.toml:2:1: `key` without `certificate`"),
            ("[tls]\nclient_ca = \"/k\"\n", "config.toml:2:1: `client_ca` without"),
            ("[tls]\ncertificate = \"c.pem\"\nkey = \"/k\"\n", "config.toml:2:1: `certificate` is a relative path"),
            ("[export]\nname = \"a\\u0000b\"\n", "config.toml:2:1: `name` must have at most 4096 bytes and no NUL"),
            ("[export]\nclients = [\"vm7\"]\n", "config.toml:2:"),
            ("[export]\nclients = [\"dns:vm7\"]\n", "config.toml:2:1: `clients` without `client_ca`"),
            ("[export]\nread_only = \"yes\"\n", "config.toml:2:13: invalid type: string \"yes\", expected a boolean"),
            (
                "[memory]\npolicy = \"mru\"\n",
                "config.toml:2:10: \"mru\" is no policy: there are fifo, lru, clock, sieve, s3-fifo, arc, lirs, 2q, w-tinylfu, chooser",
            ),
            ("[queue]\n\ncache = \"bfq\"\n", "config.toml:3:9: \"bfq\" is no queue: there are urgency, noop, deadline, cfq, ac, lanes"),
            ("[queue]\nlanes = 0\n", "config.toml:2:9: 0 is not a number of lanes from 1 (nothing is known of them) to 256"),
            ("[queue]\ndisk = \"noop\"\n", "config.toml:2:1: unknown field `disk`"),
            ("[gate]\nreserve = \"20%\"\n", "config.toml:2:1: `reserve` (20%) must not exceed `free_floor` (10%)"),
            ("\u{feff}", "config.toml: begins with a byte order mark"),
        ] {
            let error = check(text.as_bytes()).unwrap_err();
            assert!(error.starts_with(expected), "{text:?}: {error}");
            assert!(!error.contains('\n'), "{error:?}");
        }
        assert!(check(b"origin = \"\xff\"\n").unwrap_err().starts_with("config.toml: byte 10 is not UTF-8"));
        assert!(check(&vec![b'#'; (1 << 20) + 1]).unwrap_err().starts_with("config.toml: larger than 1 MiB"));
    }
}
