//! `[[volume]]`: several volumes in one file, each with its own devices and knobs. What there is once (addresses, TLS, the control socket)
//! stands above them; the keys of a file with a single volume do not go with them.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use tidegate_daemon::advice::volumes_there_are;
use tidegate_daemon::back::attach::is_same;
use tidegate_daemon::dirty::Dirty;
use tidegate_daemon::front::nbd::Allowed;
use tidegate_daemon::volume::Said;
use toml::Spanned;

use super::{Config, Export, Fence, File, Gate, Limits, Log, Memory, Mode, Queue, Scrub, Spin, Wear, clients, find_key};

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
    mode: Option<Mode>,
    #[serde(default)]
    description: String,
    #[serde(default)]
    read_only: bool,
    #[serde(default, deserialize_with = "clients::read")]
    clients: Vec<Allowed>,
    #[serde(default)]
    gate: Gate,
    #[serde(default)]
    memory: Memory,
    #[serde(default)]
    log: Log,
    #[serde(default)]
    limits: Limits,
    #[serde(default)]
    fence: Fence,
    #[serde(default)]
    scrub: Scrub,
    #[serde(default)]
    wear: Wear,
    #[serde(default)]
    queue: Queue,
    #[serde(default)]
    spin: Spin,
    #[serde(skip)]
    pub said: Said,
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
            mode: self.mode,
            export: Export { name, description: self.description, read_only: self.read_only, clients: self.clients },
            gate: self.gate,
            memory: self.memory,
            log: self.log,
            limits: self.limits,
            fence: self.fence,
            scrub: self.scrub,
            wear: self.wear,
            queue: self.queue,
            spin: self.spin,
            said: self.said,
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

/// Everything about the volumes of a file in `folder` that has several.
pub fn validate(file: &File, text: &str, folder: &Path) -> Result<(), Blame> {
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
        File { tls: file.tls.clone(), ..own.into_file() }
            .validate()
            .map_err(|(key, what)| (start + find_key(&text[start..], key), what))?;
        name(volume, &file.volume[..place])?;
        devices(volume, &file.volume[..place])?;
        let at = volume.state.as_ref().map_or(volume.name.span().start, |_| start + find_key(&text[start..], "state"));
        states(volume, &file.volume[..place], folder, at)?;
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
    if alone.mode.is_some() {
        return Err((find_key(text, "mode"), "`mode` beside [[volume]]: each volume has its own; write it into its table".to_owned()));
    }
    if alone == File::default() {
        return Ok(());
    }
    let sections = ["[export]", "[gate]", "[memory]", "[log]", "[limits]", "[fence]", "[scrub]", "[wear]", "[queue]"];
    let found = sections.iter().find_map(|section| Some((*section, text.find(&format!("\n{section}")).map(|end| end + 1)?)));
    let (section, at) =
        found.or_else(|| sections.iter().find(|section| text.starts_with(**section)).map(|section| (*section, 0))).unwrap_or(("a key", 0));
    let of = section.trim_matches(['[', ']']);
    let inside = if of == "export" {
        "name, description, read_only and clients into its table".to_owned()
    } else {
        format!("[volume.{of}] below it")
    };
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
    Ok(())
}

/// What the host knows of a volume, and the list of what is dirty beside it: no two volumes write one file. `at`: of the key, if it is there.
fn states(volume: &Table, earlier: &[Spanned<Table>], folder: &Path, at: usize) -> Result<(), Blame> {
    let files = |table: &Table| {
        let state = folder.join(table.state.clone().unwrap_or_else(|| PathBuf::from(state_name(table.name.get_ref()))));
        [Dirty::path(&state), state]
    };
    let own = files(volume);
    for other in earlier.iter().map(Spanned::get_ref) {
        let others = files(other);
        if own[1] == others[1] {
            return Err((at, "`state` is another volume's too; each has its own".to_owned()));
        }
        if let Some(file) = own.iter().find(|file| others.contains(file)) {
            let (file, other) = (file.display(), other.name.get_ref());
            let what = format!("`state`: {file} would be written for volume {other:?} too; let the names differ before their last dot");
            return Err((at, what));
        }
    }
    Ok(())
}

impl Config {
    /// The places of the volumes that a command is about: all, or the one of this name.
    ///
    /// # Errors
    /// One line: there is none of this name.
    pub fn places(&self, volume: Option<&str>) -> Result<Vec<usize>, String> {
        let Some(wanted) = volume else { return Ok((0..self.volumes.len()).collect()) };
        let place = self.volumes.iter().position(|volume| volume.name == wanted);
        place.map(|place| vec![place]).ok_or_else(|| {
            let there_are = volumes_there_are(self.volumes.iter().map(|volume| &*volume.name));
            format!("--volume: no volume is named {wanted:?}; {there_are}")
        })
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::Config;
    use crate::config::read;

    /// Reads `text` as a file; the error without the folder in front.
    fn check(text: &str) -> Result<Config, String> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("config.toml");
        std::fs::write(&path, text).unwrap();
        let strip = format!("{}/", folder.path().display());
        read(&path).map(|file| file.in_folder(Path::new("/srv"))).map_err(|failure| failure.message.replace(&strip, ""))
    }

    const HOME: &str = "[[volume]]\nname = \"home\"\norigin = \"/o1\"\ncache = \"/c1\"\n";
    const MEDIA: &str = "[[volume]]\ncache = \"/c2\"\norigin = \"/o2\"\nname = \"me/dia\"\n[volume.gate]\nwait = \"5s\"\n";

    #[test]
    fn each_volume_has_its_own_devices_knobs_and_state_and_the_rest_is_common() {
        let text = format!("nbd = [\"/a.sock\", \"127.0.0.1:0\"]\ndefault = \"me/dia\"\ncontrol = \"/c.sock\"\n{HOME}{MEDIA}");
        let config = check(&text).unwrap();
        let [home, media] = &config.volumes[..] else { panic!("two volumes") };
        assert_eq!((&*home.name, &*home.origin, &*home.cache), ("home", Path::new("/o1"), Path::new("/c1")));
        assert_eq!((&*home.state, &*media.state), (Path::new("/srv/home.state"), Path::new("/srv/me%2Fdia.state")), "no name is a path");
        assert_eq!((home.knobs.wait, media.knobs.wait.map(|wait| wait.as_secs_f64())), (None, Some(5.0)));
        assert_eq!((config.default, config.nbd.len(), &*config.control), (Some(1), 2, Path::new("/c.sock")));
        assert_eq!(check(&format!("{HOME}{MEDIA}")).unwrap().default, None, "clients have to name one");
        let lonely = check(HOME).unwrap();
        assert_eq!((lonely.default, lonely.volumes.len()), (Some(0), 1), "there is only one that can be meant");
    }

    #[test]
    fn names_are_bytes_and_those_of_two_volumes_differ() {
        assert!(check(&format!("{HOME}{}", MEDIA.replace("me/dia", "Home"))).is_ok(), "another case is another name");
        let twice = check(&format!("{HOME}{}", MEDIA.replace("me/dia", "home"))).unwrap_err();
        assert!(twice.starts_with("config.toml:8:8: two volumes are named \"home\""), "{twice}");
    }

    #[test]
    fn what_is_wrong_with_a_volume_is_refused_at_its_own_line() {
        let second = |from: &str, to: &str| format!("{HOME}{}", MEDIA.replace(from, to));
        for (text, expected) in [
            (second("me/dia", ""), "config.toml:8:8: `name` is empty"),
            (second("me/dia", &"x".repeat(201)), "config.toml:8:8: `name` is too long"),
            (second("me/dia", &"x".repeat(4097)), "config.toml:8:1: `name` must have at most 4096 bytes"),
            (second("/c2", "/c1"), "config.toml:6:9: `cache` is the cache of volume \"home\" too"),
            (second("/c2", "/o1"), "config.toml:6:9: `cache` is the origin of volume \"home\" too"),
            (second("/o2", "/o1"), "config.toml:7:10: `origin` is the origin of volume \"home\" too"),
            (second("/o2", "/c2"), "config.toml:6:1: `cache` and `origin` are the same"),
            (second("/o2", "o2"), "config.toml:7:1: `origin` is a relative path"),
            (second("\"5s\"", "5"), "config.toml:10:8: invalid type"),
            (second("wait = \"5s\"", "reserve = \"20%\""), "config.toml:10:1: `reserve` (20%) must not exceed"),
            (second("name = \"me/dia\"", "nmae = \"me/dia\""), "config.toml:8:1: unknown field `nmae`"),
            (second("cache = \"/c2\"\n", ""), "config.toml:5:1: missing field `cache`"),
            (format!("default = \"Home\"\n{HOME}"), "config.toml:1:11: `default` names no volume of this file: \"Home\""),
            ("default = \"home\"\n".to_owned(), "config.toml:1:1: `default` is for files with several volumes"),
            (format!("cache = \"/c\"\n{HOME}"), "config.toml:1:1: `cache` beside [[volume]]: write it into the table"),
            (format!("{HOME}[gate]\nwait = \"2s\"\n"), "config.toml:5:1: [gate] beside [[volume]]: each volume has its own"),
            (format!("[export]\nname = \"x\"\n{HOME}"), "config.toml:1:1: [export] beside [[volume]]"),
            (format!("nbd = []\n{HOME}"), "config.toml:1:7: an empty list"),
            (format!("nbd = [\"/a\", \"b\"]\n{HOME}"), "config.toml:1:7: NBD address: `b`"),
            (format!("nbd = [\"/a\", \"0.0.0.0:1\"]\n{HOME}"), "config.toml:1:1: NBD address: tcp:0.0.0.0:1 can be reached from outside"),
        ] {
            let error = check(&text).unwrap_err();
            assert!(error.starts_with(expected), "{text}: {error}");
            assert!(!error.contains('\n'), "{error:?}");
        }
        let state = HOME.replace("cache =", "state = \"/s\"\ncache =");
        let error = check(&format!("{state}{}", MEDIA.replace("cache =", "state = \"/s\"\ncache ="))).unwrap_err();
        assert!(error.contains("`state` is another volume's too"), "{error}");
    }

    #[test]
    fn no_two_volumes_write_one_file() {
        let with = |table: &str, state: &str| table.replace("cache =", &format!("state = \"{state}\"\ncache ="));
        for (first, second, expected) in [
            ("/s/s.one", "/s/s.two", "config.toml:7:1: `state`: /s/s.dirty would be written for volume \"home\" too"),
            ("/s/s.one", "/s/s", "config.toml:7:1: `state`: /s/s.dirty would be"),
            ("/s/x", "/s/x.dirty", "config.toml:7:1: `state` ends in .dirty"),
            ("/s/x.dirty", "/s/y", "config.toml:4:1: `state` ends in .dirty"),
        ] {
            let error = check(&(with(HOME, first) + &with(MEDIA, second))).unwrap_err();
            assert!(error.starts_with(expected) && !error.contains('\n'), "{error}");
        }
        assert!(check(&(with(HOME, "/s/one.state") + &with(MEDIA, "/s/two.state"))).is_ok());
        // One by its name, the other by its path.
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("config.toml");
        std::fs::write(&path, HOME.to_owned() + &with(MEDIA, &format!("{}/home.one", folder.path().display()))).unwrap();
        let error = read(&path).unwrap_err().message;
        assert!(error.contains("home.dirty would be written for volume"), "{error}");
        let alone = check("nbd = \"/n\"\nstate = \"/s/x.dirty\"\n").unwrap_err();
        assert!(alone.starts_with("config.toml:2:1: `state` ends in .dirty"), "{alone}");
    }
}
