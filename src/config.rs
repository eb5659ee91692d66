//! `config.toml`: what a volume, or each of several, consists of and every knob, read whole or refused whole.
//!
//! A refusal is one line, `path:line:column: what; what to do`, and the exit code [`EX_CONFIG`]. Nothing is created before the file
//! was read and found good.

mod addresses;
mod apart;
mod clients;
mod first;
mod knobs;
mod spin;
mod validate;
mod values;
mod volumes;

use std::fs::OpenOptions;
use std::io::Read;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use tidegate_daemon::Failure;
use tidegate_daemon::advice::Reach;
use tidegate_daemon::front::nbd::{Address, Allowed, Certificates};
use tidegate_daemon::volume::{self, Said};
use toml::Spanned;

use crate::up::Named;
pub use first::first_file;
use spin::Spin;
pub use values::Mode;
use values::{Count, Lanes, Policy, Samples, Scheduler, Share, Size, Span, Threads};

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
    #[serde(skip)]
    said: Said,
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

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Log {
    window: Option<Size>,
    dirty_ram: Option<Size>,
    dirty_ram_least: Option<Size>,
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

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Fence {
    samples: Option<Samples>,
}

/// Reads a configuration file.
///
/// # Errors
/// One line that names the place in it.
pub fn read(path: &Path) -> Result<File, Failure> {
    let text = read_text(path).map_err(|(code, what)| Failure::new(code, format!("{}: {what}", path.display())))?;
    parse(path, &text).map_err(|what| Failure::new(EX_CONFIG, what))
}

/// The same of a file that was read already; `path` is for the error only.
pub fn parse(path: &Path, text: &str) -> Result<File, String> {
    let at = |offset: usize, what: &str| {
        let (line, column) = place(text, offset);
        format!("{}:{line}:{column}: {what}", path.display())
    };
    let mut file: File = toml::from_str(text).map_err(|error| {
        let what = error.message().lines().map(str::trim).filter(|line| !line.is_empty()).collect::<Vec<_>>().join("; ");
        at(error.span().map_or(0, |span| span.start), &what)
    })?;
    file.validate().map_err(|(key, what)| at(find_key(text, key), &what))?;
    volumes::validate(&file, text, path.parent().unwrap_or(Path::new(""))).map_err(|(offset, what)| at(offset, &what))?;
    let said = |from: usize| {
        let of = |key| key_of(&text[from..], key).map_or(String::new(), |offset| at(from + offset, ""));
        Said { ram: of("ram"), motor: of("motor") }
    };
    file.said = said(0);
    for table in &mut file.volume {
        let from = table.span().start;
        table.get_mut().said = said(from);
    }
    Ok(file)
}

/// The error is an exit code, and what is wrong.
fn read_text(path: &Path) -> Result<String, (u8, String)> {
    let refused = |what: String| (EX_CONFIG, what);
    // Opened first and looked at afterwards: what was checked is what is read. Without waiting: a pipe must not hold the start up.
    let missing = |error: std::io::Error| match error.kind() {
        std::io::ErrorKind::NotFound => refused(format!("{error}; `tidegate up` writes a first configuration")),
        std::io::ErrorKind::PermissionDenied => (Failure::PERMISSION, format!("{error}; run as a user who may read it")),
        _ => refused(format!("{error}; see that it can be read")),
    };
    let file = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK | libc::O_CLOEXEC).open(path).map_err(missing)?;
    let metadata = file.metadata().map_err(|error| refused(error.to_string()))?;
    if !metadata.is_file() {
        return Err(refused("not a regular file; name a configuration file".to_owned()));
    }
    let mut bytes = Vec::new();
    file.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes).map_err(|error| refused(error.to_string()))?;
    if bytes.len() as u64 > FILE_BYTES_MAX {
        return Err(refused("larger than 1 MiB; this is no configuration of tidegate".to_owned()));
    }
    if bytes.starts_with(b"\xef\xbb\xbf") {
        return Err(refused("begins with a byte order mark; save it as plain UTF-8".to_owned()));
    }
    String::from_utf8(bytes)
        .map_err(|error| refused(format!("byte {} is not UTF-8; save it as plain UTF-8", error.utf8_error().valid_up_to())))
}

/// Line and column of a byte, both counted from 1; columns in characters.
fn place(text: &str, offset: usize) -> (usize, usize) {
    let before = text.get(..offset).unwrap_or(text);
    let line_start = before.rfind('\n').map_or(0, |end| end + 1);
    (before.matches('\n').count() + 1, before[line_start..].chars().count() + 1)
}

/// Where a key of the last part of `section.key` stands: the line that assigns it, or the first one.
fn find_key(text: &str, key: &str) -> usize {
    key_of(text, key).unwrap_or(0)
}

fn key_of(text: &str, key: &str) -> Option<usize> {
    let mut offset = 0;
    for line in text.split_inclusive('\n') {
        let indent = line.len() - line.trim_start().len();
        if line.trim_start().strip_prefix(key).is_some_and(|rest| rest.trim_start().starts_with('=')) {
            return Some(offset + indent);
        }
        offset += line.len();
    }
    None
}

impl File {
    /// What the command line names counts more than the file.
    pub fn override_with(&mut self, named: Named) {
        self.origin = named.origin.or(self.origin.take());
        self.cache = named.cache.or(self.cache.take());
        self.nbd = named.nbd.map_or(std::mem::take(&mut self.nbd), |address| vec![address]);
        self.export.name = named.name.unwrap_or(std::mem::take(&mut self.export.name));
        self.export.read_only |= named.read_only;
        if let Some(Certificates { certificate, key, client_ca }) = named.tls {
            // Who names a certificate alone does not let everybody in.
            let client_ca = client_ca.or(self.tls.client_ca.take());
            self.tls = Tls { certificate: Some(certificate), key: Some(key), client_ca };
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
        let are_several = tables.len() > 1;
        let (nbd, control, tls) = (std::mem::take(&mut self.nbd), self.control.take(), std::mem::take(&mut self.tls).certificates());
        let mut volumes: Vec<_> = match tables.is_empty() {
            true => vec![self.volume_in(folder)],
            false => tables.into_iter().map(|table| table.into_inner().into_file().volume_in(folder)).collect(),
        };
        for volume in &mut volumes {
            let name = are_several.then(|| volume.name.clone());
            volume.reach = Reach { dir: Some(folder.to_owned()), volume: name, ..Reach::default() };
        }
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
            reach: Reach::default(),
            said: self.said,
            origin: self.origin.unwrap_or_else(|| folder.join("origin.img")),
            cache: self.cache.unwrap_or_else(|| folder.join("cache.img")),
            state: folder.join(self.state.unwrap_or_else(|| tidegate_daemon::state::FILE_NAME.into())),
            accept_loss: false,
            knobs,
            spin: self.spin.options(),
            record: None,
            held: Default::default(),
        }
    }
}

#[cfg(test)]
mod tests;
