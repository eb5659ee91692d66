//! `[[volume]]`: several volumes in one file, each with its own devices and knobs. What there is once (addresses, TLS, the control socket)
//! stands above them; the keys of a file with a single volume do not go with them.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use tidegate_daemon::back::attach::is_same;
use toml::Spanned;

use super::{Export, Fence, File, Gate, Limits, Log, find_key};

/// The longest name that its state file can be called after, in bytes.
const FILE_NAME_BYTES_MAX: usize = 200;

/// One volume, as the file says it.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Table {
    pub name: Spanned<String>,
    pub origin: Spanned<PathBuf>,
    pub cache: Spanned<PathBuf>,
    state: Option<PathBuf>,
    #[serde(default)]
    description: String,
    #[serde(default)]
    read_only: bool,
    #[serde(default)]
    gate: Gate,
    #[serde(default)]
    log: Log,
    #[serde(default)]
    limits: Limits,
    #[serde(default)]
    fence: Fence,
}

impl Table {
    /// The same as a file of its own.
    pub fn into_file(self) -> File {
        let name = self.name.into_inner();
        let state = self.state.or_else(|| Some(PathBuf::from(state_name(&name))));
        File {
            origin: Some(self.origin.into_inner()),
            cache: Some(self.cache.into_inner()),
            state,
            export: Export { name, description: self.description, read_only: self.read_only },
            gate: self.gate,
            log: self.log,
            limits: self.limits,
            fence: self.fence,
            ..File::default()
        }
    }
}

/// The file beside the configuration where the host keeps what it knows of a volume's cache: a name of plain characters, and one for each
/// name of a volume. `%` and what could mislead a path is written as its number.
fn state_name(volume: &str) -> String {
    let mut name = String::new();
    for byte in volume.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' => name.push(char::from(byte)),
            _ => write!(name, "%{byte:02X}").expect("a String takes everything"),
        }
    }
    name + ".state"
}

/// What is wrong with a file, and at which byte.
pub type Blame = (usize, String);

/// Everything about the volumes of a file that has several.
pub fn validate(file: &File, text: &str) -> Result<(), Blame> {
    if file.volume.is_empty() {
        return match &file.default {
            Some(_) => Err((find_key(text, "default"), "`default` is for files with several volumes ([[volume]])".to_owned())),
            None => Ok(()),
        };
    }
    nothing_else(file, text)?;
    for (place, table) in file.volume.iter().enumerate() {
        let volume = table.get_ref();
        let start = table.span().start;
        let own = Table { state: volume.state.clone().or(Some("/".into())), ..volume.clone() };
        own.into_file().validate().map_err(|(key, what)| (start + find_key(&text[start..], key), what))?;
        name(volume, &file.volume[..place])?;
        devices(volume, &file.volume[..place])?;
    }
    let Some(default) = &file.default else { return Ok(()) };
    let is_named = file.volume.iter().any(|table| table.get_ref().name.get_ref() == default.get_ref());
    if is_named { Ok(()) } else { Err((default.span().start, format!("`default` names no volume of this file: {:?}", default.get_ref()))) }
}

/// What describes a single volume does not go with several.
fn nothing_else(file: &File, text: &str) -> Result<(), Blame> {
    let alone = File { volume: Vec::new(), default: None, nbd: Vec::new(), control: None, tls: Default::default(), ..file.clone() };
    for (key, is_there) in [("origin", alone.origin.is_some()), ("cache", alone.cache.is_some()), ("state", alone.state.is_some())] {
        if is_there {
            let what = format!("`{key}` beside [[volume]]: write it into the table of the volume that it belongs to");
            return Err((find_key(text, key), what));
        }
    }
    if alone == File::default() {
        return Ok(());
    }
    let sections = ["[export]", "[gate]", "[log]", "[limits]", "[fence]"];
    let found = sections.iter().find_map(|section| Some((*section, text.find(&format!("\n{section}")).map(|end| end + 1)?)));
    let (section, at) =
        found.or_else(|| sections.iter().find(|section| text.starts_with(**section)).map(|section| (*section, 0))).unwrap_or(("a key", 0));
    let of = section.trim_matches(['[', ']']);
    let inside =
        if of == "export" { "name, description and read_only into its table".to_owned() } else { format!("[volume.{of}] below it") };
    Err((at, format!("{section} beside [[volume]]: each volume has its own; write {inside}")))
}

fn name(volume: &Table, earlier: &[Spanned<Table>]) -> Result<(), Blame> {
    let (name, at) = (volume.name.get_ref(), volume.name.span().start);
    if name.is_empty() {
        return Err((at, "`name` is empty; clients and commands call the volume by it".to_owned()));
    }
    if volume.state.is_none() && state_name(name).len() > FILE_NAME_BYTES_MAX {
        return Err((at, "`name` is too long for a file to be called after it; name one as `state`".to_owned()));
    }
    // Bytes: `home` and `Home` are two volumes.
    if earlier.iter().any(|other| other.get_ref().name.get_ref() == name) {
        return Err((at, format!("two volumes are named {name:?}; give each a name of its own")));
    }
    Ok(())
}

/// A file or device belongs to one volume, whatever it is called.
fn devices(volume: &Table, earlier: &[Spanned<Table>]) -> Result<(), Blame> {
    let of = |table: &Table| [("origin", table.origin.clone()), ("cache", table.cache.clone())];
    let mut known: Vec<(String, &'static str, PathBuf)> = Vec::new();
    for other in earlier.iter().map(Spanned::get_ref) {
        for (key, path) in of(other) {
            known.push((format!("of volume {:?}", other.name.get_ref()), key, path.into_inner()));
        }
    }
    for (key, path) in of(volume) {
        if let Some((whose, other, _)) = known.iter().find(|(_, _, known)| is_same(known, path.get_ref())) {
            return Err((path.span().start, format!("`{key}` is the {other} {whose} too; a device or file has one use")));
        }
        known.push(("of this volume".to_owned(), key, path.into_inner()));
    }
    let states = |table: &Table| table.state.clone().unwrap_or_else(|| Path::new(&state_name(table.name.get_ref())).to_owned());
    if earlier.iter().any(|other| states(other.get_ref()) == states(volume)) {
        return Err((volume.name.span().start, "`state` is another volume's too; each has its own".to_owned()));
    }
    Ok(())
}
