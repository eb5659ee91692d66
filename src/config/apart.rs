//! What the host writes down of a volume replaces whatever is there: so it is no disk of any volume, and nothing else that is named, under whatever
//! names, links and flags.

use std::fs;
use std::path::{Path, PathBuf};

use tidegate_daemon::Failure;
use tidegate_daemon::back::attach::is_same;
use tidegate_daemon::dirty::Dirty;
use tidegate_daemon::front::nbd::Address;
use tidegate_daemon::volume::Options;

use super::{Config, EX_CONFIG};

impl Config {
    /// Refuses a state, or the list of what is dirty beside it, that something else is called; or a control socket that NBD has. `path` is that of the
    /// configuration; `flags`: what else is written, and which flag names it.
    ///
    /// # Errors
    /// One line that names both.
    pub fn keep_states_apart(&self, path: &Path, flags: &[(&str, PathBuf)]) -> Result<(), Failure> {
        let mut others: Vec<(String, PathBuf)> =
            vec![("the configuration".to_owned(), path.to_owned()), ("the control socket".to_owned(), self.control.clone())];
        others.extend(flags.iter().map(|(flag, path)| (format!("the file of {flag}"), path.clone())));
        let sockets = || self.nbd.iter().filter_map(Address::path);
        if let Some(socket) = sockets().find(|socket| is_one(socket, &self.control)) {
            let what = format!("`control`: {} is an NBD socket as well; name another one", socket.display());
            return Err(Failure::new(EX_CONFIG, what));
        }
        others.extend(sockets().map(|path| ("an NBD socket".to_owned(), path.to_owned())));
        if let Some(tls) = &self.tls {
            let files = [Some(&tls.certificate), Some(&tls.key), tls.client_ca.as_ref()];
            others.extend(files.into_iter().flatten().map(|path| ("a file of TLS".to_owned(), path.clone())));
        }
        for volume in &self.volumes {
            let of =
                |what: &str| if self.volumes.len() > 1 { format!("the {what} of volume {:?}", volume.name) } else { format!("its {what}") };
            others.extend([(of("cache"), volume.cache.clone()), (of("origin"), volume.origin.clone())]);
        }
        for volume in &self.volumes {
            let own = files(volume);
            for file in &own {
                if let Some((what, _)) = others.iter().find(|(_, other)| is_one(file, other)) {
                    return Err(refused(volume, file, what));
                }
            }
            others.extend(own.map(|file| (format!("the state, or what lies beside it, of volume {:?}", volume.name), file)));
        }
        Ok(())
    }
}

/// What is written for a volume beside its disks.
fn files(volume: &Options) -> [PathBuf; 2] {
    [volume.state.clone(), Dirty::path(&volume.state)]
}

fn refused(volume: &Options, file: &Path, what: &str) -> Failure {
    let (state, place) = (volume.state.display(), file.display());
    let beside = if file == volume.state { String::new() } else { format!(", the list of what is dirty beside `state` {state},") };
    let what = format!("`state`: {place}{beside} would be written, and is {what}; name another file as `state`");
    Failure::new(EX_CONFIG, what)
}

/// Do both names lead to one file, or to one place where none is?
fn is_one(one: &Path, other: &Path) -> bool {
    is_same(one, other) || resolved(one) == resolved(other)
}

/// Without links and detours as far as it exists, but for its last name.
fn resolved(path: &Path) -> PathBuf {
    match (path.parent(), path.file_name()) {
        (Some(folder), Some(name)) => fs::canonicalize(folder).unwrap_or_else(|_| resolved(folder)).join(name),
        _ => path.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;
    use crate::config::read;

    /// `config.toml` in a folder with `ssd.img`, `hdd.img`, two links to that folder, `s.dirty` (a hard link to `ssd.img`) and `text`, in which
    /// DIR is the folder.
    fn check(text: &str) -> Result<(), String> {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        ["ssd.img", "hdd.img"].iter().for_each(|name| fs::write(at(name), "").unwrap());
        ["one", "two"].iter().for_each(|name| symlink(folder.path(), at(name)).unwrap());
        fs::hard_link(at("ssd.img"), at("s.dirty")).unwrap();
        let dir = folder.path().display().to_string();
        fs::write(at("config.toml"), text.replace("DIR", &dir)).unwrap();
        let config = read(&at("config.toml")).unwrap().in_folder(folder.path());
        config.keep_states_apart(&at("config.toml"), &[]).map_err(|failure| {
            assert_eq!((failure.code, failure.message.lines().count()), (EX_CONFIG, 1));
            failure.message.replace(&format!("{dir}/"), "")
        })
    }

    #[test]
    fn a_state_is_nothing_else_under_whatever_name() {
        let disks = "cache = \"DIR/ssd.img\"\norigin = \"DIR/hdd.img\"\n";
        assert_eq!(check(disks), Ok(()));
        for (text, expected) in [
            (format!("{disks}state = \"DIR/ssd.img\"\n"), "`state`: ssd.img would be written, and is its cache"),
            (format!("{disks}state = \"DIR/hdd.img\"\n"), "`state`: hdd.img would be written, and is its origin"),
            (format!("{disks}state = \"DIR/one/ssd.img\"\n"), "`state`: one/ssd.img would be written, and is its cache"),
            (
                format!("{disks}state = \"DIR/s.state\"\n"),
                "`state`: s.dirty, the list of what is dirty beside `state` s.state, would be written, and is its cache",
            ),
            (format!("{disks}state = \"DIR/config.toml\"\n"), "`state`: config.toml would be written, and is the configuration"),
            (format!("{disks}state = \"DIR/control.sock\"\n"), "`state`: control.sock would be written, and is the control socket"),
            (format!("{disks}nbd = \"DIR/x.dirty\"\nstate = \"DIR/two/x.state\"\n"), "`state`: two/x.dirty, the list of"),
            ("cache = \"DIR/tidegate.state\"\n".to_owned(), "`state`: tidegate.state would be written, and is its cache"),
            ("origin = \"DIR/one/tidegate.dirty\"\n".to_owned(), "`state`: tidegate.dirty, the list of"),
            // Nothing of it is there yet.
            ("cache = \"DIR/new/v.dirty\"\nstate = \"DIR/one/new/v.state\"\n".to_owned(), "`state`: one/new/v.dirty, the list of"),
        ] {
            let error = check(&text).unwrap_err();
            assert!(error.starts_with(expected), "{text}: {error}");
        }
    }

    #[test]
    fn the_control_socket_is_no_nbd_socket() {
        let told = "`control`: one/c.sock is an NBD socket as well; name another one";
        for control in ["c.sock", "two/c.sock"] {
            assert_eq!(check(&format!("control = \"DIR/{control}\"\nnbd = [\"DIR/n.sock\", \"DIR/one/c.sock\"]\n")).unwrap_err(), told);
        }
        assert_eq!(
            check("nbd = \"DIR/one/control.sock\"\n").unwrap_err(),
            told.replace("c.sock", "control.sock"),
            "where it is by default"
        );
    }

    #[test]
    fn of_several_volumes_no_two_write_one_file_through_a_link() {
        let table = |name: &str, disks: [&str; 2], state: &str| {
            let [origin, cache] = disks;
            format!("[[volume]]\nname = \"{name}\"\norigin = \"DIR/{origin}\"\ncache = \"DIR/{cache}\"\nstate = \"DIR/{state}\"\n")
        };
        let home = table("home", ["o1", "c1"], "one/home.state");
        assert_eq!(check(&(home.clone() + &table("media", ["o2", "c2"], "two/media.state"))), Ok(()));
        for (state, expected) in [
            ("two/home.state", "`state`: two/home.state would be written, and is the state, or what lies beside it, of volume \"home\""),
            ("home.other", "`state`: home.dirty, the list of what is dirty beside `state` home.other, would be written, and is the state"),
            ("c1", "`state`: c1 would be written, and is the cache of volume \"home\""),
        ] {
            let error = check(&(home.clone() + &table("media", ["o2", "c2"], state))).unwrap_err();
            assert!(error.starts_with(expected), "{state}: {error}");
        }
        // What comes first is no better.
        let error = check(&(table("home", ["o1", "c1"], "one/c2") + &table("media", ["o2", "c2"], "media.state"))).unwrap_err();
        assert!(error.starts_with("`state`: one/c2 would be written, and is the cache of volume \"media\""), "{error}");
    }
}
