//! `tidegate serve`, and what it has in common with `up`: a volume served until a signal, and the operator told how to reach it.

use std::path::Path;
use std::process::ExitCode;

use tidegate_daemon::Failure;
use tidegate_daemon::front::nbd;
use tidegate_daemon::volume::{Ended, Options, Ready};

use crate::args::{Running, Serve};
use crate::config::{self, Config};
use crate::manager::{self, PidFile};
use crate::{say, units, up};

pub fn run(args: &Serve) -> Result<ExitCode, Failure> {
    let path = up::absolute(&args.config)?;
    let folder = path.parent().unwrap_or(Path::new("/")).to_owned();
    // Read under the name that was typed: messages repeat it.
    let volume = up::read(&args.config)?.in_folder(&folder);
    check(&volume)?;
    serve(&volume, &args.running)
}

/// What can be found wrong before anything is touched: names and certificates.
pub fn check(volume: &Config) -> Result<(), Failure> {
    let refused = |message| Failure::new(config::EX_CONFIG, message);
    if !nbd::is_string(volume.export.name.as_bytes()) {
        return Err(refused("export: a name has at most 4096 bytes and no NUL".to_owned()));
    }
    volume.tls.as_ref().map_or(Ok(()), |tls| tls.load().map(drop)).map_err(refused)
}

/// Serves until a signal; with `--stdio`, until the client goes.
pub fn serve(volume: &Config, running: &Running) -> Result<ExitCode, Failure> {
    let options = Options {
        origin: volume.origin.clone(),
        cache: volume.cache.clone(),
        nbd: vec![volume.nbd.clone()],
        control: volume.control.clone(),
        state: volume.state.clone(),
        accept_loss: running.accept_loss,
        handed_over: manager::handed_over()?,
        stdio: running.stdio,
        tls: volume.tls.clone(),
        name: volume.export.name.clone(),
        description: volume.export.description.clone(),
        read_only: volume.export.read_only,
        confined: !running.unconfined,
        knobs: volume.knobs,
    };
    let mut pid_file = None;
    let ended = tidegate_daemon::volume::serve(&options, |ready| {
        pid_file = running.pid_file.as_deref().map(PidFile::write).transpose()?;
        // Standard output is the client's socket, or may be.
        if running.stdio {
            eprintln!("{}", greeting(ready))
        } else {
            say(&greeting(ready))
        }
        manager::notify_ready()
    })?;
    drop(pid_file);
    match ended {
        Ended::Stopped => eprintln!("tidegate: stopped; every acknowledged write is durable"),
        Ended::Interrupted(_) => eprintln!("tidegate: stopped at once; everything that was flushed is durable"),
    }
    Ok(ExitCode::from(ended.code()))
}

/// The `ready:` lines, for programs, and how to connect, for people.
fn greeting(ready: &Ready) -> String {
    let counters = &ready.snapshot.counters;
    let mut lines: Vec<String> = ready.notes.iter().map(|note| format!("note: {note}")).collect();
    lines.push(format!(
        "volume: {}; in the cache: {} clean and {} dirty blocks",
        units::show_size(ready.bytes),
        counters.recovered_clean_slots,
        counters.recovered_dirty_slots,
    ));
    let damage = &ready.snapshot.damage;
    lines.extend(damage.iter().map(|damage| format!("damage: {} (repaired from a copy)", damage.what)));
    let Some(uri) = ready.uris.first() else {
        lines.push("ready: the client on standard input".to_owned());
        return lines.join("\n");
    };
    lines.push("connect:".to_owned());
    lines.extend(ways_to_connect(uri));
    lines.extend(ready.uris.iter().map(|uri| format!("ready: {uri}")));
    lines.join("\n")
}

/// One line for each kind of client.
fn ways_to_connect(uri: &str) -> Vec<String> {
    let plain = uri.strip_prefix("nbd://").or(uri.strip_prefix("nbds://"));
    let tls = if uri.starts_with("nbds:") { " -x -F client-cert.pem -K client-key.pem -A ca-cert.pem" } else { "" };
    let kernel = match (plain.and_then(|rest| rest.split('/').next()?.rsplit_once(':')), uri.split_once("?socket=")) {
        (Some((address, port)), _) => format!("nbd-client {address} {port} /dev/nbd0 -b 4096{tls}"),
        (None, Some((_, socket))) => format!("nbd-client -unix {socket} /dev/nbd0 -b 4096"),
        (None, None) => "nbd-client".to_owned(),
    };
    let ways = [
        ("look", format!("nbdinfo '{uri}'")),
        ("as a file, export/nbd", format!("mkdir -p export && nbdfuse export '{uri}' &")),
        ("and that as a disk", "losetup --find --show --direct-io=on export/nbd".to_owned()),
        ("a virtual machine's disk", format!("qemu-system-x86_64 -drive format=raw,cache=none,discard=unmap,file='{uri}' …")),
        ("the kernel's own client", kernel),
    ];
    ways.into_iter().map(|(what, how)| format!("  {what:<26} {how}")).collect()
}
