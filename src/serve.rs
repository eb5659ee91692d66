//! `tidegate serve`, and what it has in common with `up`: volumes served until a signal, and the operator told how to reach them.

use std::path::Path;
use std::process::ExitCode;

use tidegate_daemon::Failure;
use tidegate_daemon::advice::{Reach, word};
use tidegate_daemon::control;
use tidegate_daemon::front::nbd::{self, Address, Place};
use tidegate_daemon::lobby::{self, Ended, Operator, Options, Ready, ReadyVolume};
use tidegate_daemon::tell;

use crate::args::{Running, Serve};
use crate::config::{self, Config};
use crate::first_run::FirstRun;
use crate::manager::{self, PidFile};
use crate::{grow, stop, units, up, write_out};

pub fn run(args: &Serve) -> Result<ExitCode, Failure> {
    if args.running.stdio {
        manager::keep_stream_clean()?;
    }
    let path = up::absolute(&args.config)?;
    let folder = path.parent().unwrap_or(Path::new("/")).to_owned();
    // Read under the name that was typed: messages repeat it.
    let file = config::read(&args.config).map_err(|failure| failure.reaching(&Reach { dir: Some(folder.clone()), ..Reach::default() }))?;
    let mut config = file.in_folder(&folder);
    if path.file_name() != Some(config::FILE_NAME.as_ref()) {
        // Commands do not find it in its folder, so they have to be told what they are about.
        for volume in &mut config.volumes {
            let (origin, cache) = (Some(volume.origin.clone()), Some(volume.cache.clone()));
            volume.reach = Reach { volume: None, origin, cache, ..volume.reach.clone() };
        }
    }
    check(&config, &args.running, &folder, &path)?;
    serve(config, &args.running, None, Vec::new())
}

/// What can be found wrong before anything is touched: names, certificates, and places of files and sockets. `folder` is the volume's, and `path` where
/// its configuration is; both may be still to be made.
pub fn check(config: &Config, running: &Running, folder: &Path, path: &Path) -> Result<(), Failure> {
    let refused = |message| Failure::new(config::EX_CONFIG, message);
    if !config.volumes.iter().all(|volume| nbd::is_string(volume.name.as_bytes())) {
        return Err(refused("export: a name has at most 4096 bytes and no NUL".to_owned()));
    }
    let flags = [("--record", &running.record), ("--pid-file", &running.pid_file)];
    let named = flags.into_iter().filter_map(|(flag, file)| Some((flag, file.as_deref()?)));
    let named: Result<Vec<_>, Failure> = named.map(|(flag, file)| Ok((flag, up::absolute(file)?))).collect();
    config.keep_states_apart(path, &named?)?;
    config.tls.as_ref().map_or(Ok(()), |tls| tls.load().map(drop)).map_err(refused)?;
    let unfit = |key, what| Failure::new(Failure::NOT_CREATED, format!("{what}; choose a shorter folder, or another place as `{key}`"));
    if !running.stdio && manager::handed_over()? == 0 {
        config.nbd.iter().try_for_each(Address::check).map_err(|what| unfit("nbd", what))?;
    }
    control::check(&config.control).map_err(|what| unfit("control", what))?;
    running.pid_file.as_deref().map_or(Ok(()), |file| PidFile::check(&up::absolute(file)?, folder))
}

/// Serves until a signal; with `--stdio`, until the client goes. `first`: of a folder that becomes a volume, if it serves. `notes`: worth knowing when
/// it does, one line each.
pub fn serve(mut config: Config, running: &Running, first: Option<FirstRun>, notes: Vec<String>) -> Result<ExitCode, Failure> {
    accept_loss(&mut config, running)?;
    record(&mut config, running)?;
    let options = Options {
        volumes: config.volumes,
        default: config.default,
        nbd: config.nbd,
        control: config.control,
        handed_over: manager::handed_over()?,
        stdio: running.stdio,
        tls: config.tls,
        confined: !running.unconfined,
        io: running.io,
    };
    if running.grow {
        grow::grown(&options.volumes)?.iter().for_each(|line| tell!("tidegate: {line}"));
    }
    let mut person = Person { running, host: host_name(), notes, pid_file: None, first };
    let ended = lobby::serve(&options, &mut person)?;
    drop(person);
    match ended {
        Ended::Stopped { lost_blocks } => tell!("tidegate: {}", stop::said(lost_blocks)),
        Ended::Interrupted(_) => tell!("tidegate: stopped at once; everything that was flushed is durable"),
    }
    Ok(ExitCode::from(ended.code()))
}

/// Another cache is taken for the volume that is meant, and for no other.
pub fn accept_loss(config: &mut Config, running: &Running) -> Result<(), Failure> {
    let Some(volume) = &running.accept_loss else { return Ok(()) };
    let usage = |message| Failure::new(crate::USAGE, message);
    let places = config.places(volume.as_deref()).map_err(|error| usage(error.replace("--volume", "--accept-loss")))?;
    match places[..] {
        [place] => config.volumes[place].accept_loss = true,
        _ => {
            return Err(usage("--accept-loss: there are several volumes; name the one whose cache is gone: --accept-loss=NAME".to_owned()));
        }
    }
    Ok(())
}

/// What clients ask is written down.
fn record(config: &mut Config, running: &Running) -> Result<(), Failure> {
    let Some(file) = &running.record else { return Ok(()) };
    let [volume] = &mut config.volumes[..] else {
        return Err(Failure::new(
            crate::USAGE,
            "--record: there are several volumes, and a recording is of one; serve that one alone".to_owned(),
        ));
    };
    if volume.knobs.front_threads.is_some_and(|threads| threads > 0) {
        tell!("tidegate: --record: the volume's own thread serves its clients meanwhile, and not `front_threads`");
    }
    volume.record = Some(up::absolute(file)?);
    Ok(())
}

/// Whoever reads what we print.
struct Person<'a> {
    running: &'a Running,
    /// This machine's name.
    host: String,
    notes: Vec<String>,
    pid_file: Option<PidFile>,
    /// Goes after the pid file, which may lie in a folder that goes with it.
    first: Option<FirstRun>,
}

impl Operator for Person<'_> {
    fn ready(&mut self, ready: &Ready) -> Result<(), Failure> {
        self.pid_file = self.running.pid_file.as_deref().map(PidFile::write).transpose()?;
        manager::notify_ready()?;
        self.first.as_mut().map_or(Ok(()), FirstRun::keep)?;
        // Standard output is the client's socket, or may be.
        if self.running.stdio {
            tell!("{}", greeting(ready, &self.notes, &self.host))
        } else {
            // Nobody may read it: the volume is served all the same.
            let _ = write_out(&greeting(ready, &self.notes, &self.host));
        }
        Ok(())
    }

    fn lost(&mut self, _volume: &str, failure: &Failure) {
        tell!("tidegate: {failure}; the other volumes are served on");
    }
}

/// What other machines call this one, if that can stand in an address.
fn host_name() -> String {
    let name = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let is_one = name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-.".contains(&byte)) && !name.is_empty();
    if is_one { name } else { "localhost".to_owned() }
}

/// The `ready:` lines, for programs, and how to connect, for people.
fn greeting(ready: &Ready, notes: &[String], host: &str) -> String {
    let is_alone = ready.volumes.len() == 1;
    let mut lines: Vec<String> = notes.iter().chain(&ready.notes).map(|note| format!("note: {note}")).collect();
    lines.extend(ready.volumes.iter().flat_map(|volume| about(volume, is_alone)));
    let Some(first) = ready.places.first() else {
        lines.push("ready: the client on standard input".to_owned());
        return lines.join("\n");
    };
    for place in &ready.places {
        if let Address::Tcp(address) = &place.address
            && address.ip().is_unspecified()
            && place.export == first.export
        {
            lines.push(format!("note: {address} is every address of this machine; clients name one of them, or {host}"));
        }
    }
    lines.push("connect:".to_owned());
    lines.extend(ways_to_connect(first, host));
    lines.extend(ready.places.iter().map(|place| format!("ready: {}", place.uri_at(host))));
    lines.join("\n")
}

/// What was found of a volume.
fn about(volume: &ReadyVolume, is_alone: bool) -> Vec<String> {
    let counters = &volume.snapshot.counters;
    let of = if is_alone { String::new() } else { format!(" {:?}", volume.name) };
    let mut lines: Vec<String> = volume.notes.iter().map(|note| format!("note{of}: {note}")).collect();
    lines.push(format!(
        "volume{of}: {}; in the cache: {} clean and {} dirty blocks",
        units::show_size(volume.bytes),
        counters.recovered_clean_slots,
        counters.recovered_dirty_slots,
    ));
    let damage = &volume.snapshot.damage;
    lines.extend(damage.iter().map(|damage| format!("damage{of}: {} (repaired from a copy)", damage.what)));
    lines
}

/// One line for each kind of client.
fn ways_to_connect(place: &Place, host: &str) -> Vec<String> {
    let uri = place.uri_at(host);
    let ways = [
        ("look", format!("nbdinfo '{uri}'")),
        ("as a file, export/nbd", format!("mkdir -p export && nbdfuse export '{uri}' &")),
        ("and that as a disk", "losetup --find --show --direct-io=on export/nbd".to_owned()),
        ("a virtual machine's disk", format!("qemu-system-x86_64 -drive format=raw,cache=none,discard=unmap,file='{uri}' …")),
        ("the kernel's own client", nbd_client(place, host)),
    ];
    ways.into_iter().map(|(what, how)| format!("  {what:<26} {how}")).collect()
}

/// It takes no URI, but what one consists of.
fn nbd_client(place: &Place, host: &str) -> String {
    let name = if place.export.is_empty() { String::new() } else { format!(" -N {}", word(&place.export)) };
    let tls = if place.tls { " -x -F client-cert.pem -K client-key.pem -A ca-cert.pem" } else { "" };
    let server = match &place.address {
        Address::Unix(path) => format!("-unix {}", word(&path.display().to_string())),
        Address::Tcp(address) if address.ip().is_unspecified() => format!("{host} {}", address.port()),
        Address::Tcp(address) => format!("{} {}", address.ip(), address.port()),
    };
    format!("nbd-client {server} /dev/nbd0 -b 4096{name}{tls}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_client_is_told_paths_addresses_and_names_as_they_are() {
        for (address, export, tls, expected) in [
            ("/srv/a/nbd.sock", "", false, "nbd-client -unix /srv/a/nbd.sock /dev/nbd0 -b 4096"),
            ("/srv/my vm/nbd.sock", "home", false, "nbd-client -unix '/srv/my vm/nbd.sock' /dev/nbd0 -b 4096 -N home"),
            ("[::1]:10809", "it's", false, r"nbd-client ::1 10809 /dev/nbd0 -b 4096 -N 'it'\''s'"),
            ("0.0.0.0:7", "", false, "nbd-client nas.lan 7 /dev/nbd0 -b 4096"),
            (
                "127.0.0.1:7",
                "home",
                true,
                "nbd-client 127.0.0.1 7 /dev/nbd0 -b 4096 -N home -x -F client-cert.pem -K client-key.pem -A ca-cert.pem",
            ),
        ] {
            let place = Place { address: address.parse().unwrap(), export: export.to_owned(), tls };
            assert_eq!(nbd_client(&place, "nas.lan"), expected);
        }
    }
}
