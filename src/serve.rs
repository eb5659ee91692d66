//! `tidegate serve`, and what it has in common with `up`: a volume served until a signal, and the operator told how to reach it.

use std::path::Path;
use std::process::ExitCode;

use tidegate_daemon::Failure;
use tidegate_daemon::volume::{Ended, Options, Ready};

use crate::args::Serve;
use crate::config::Config;
use crate::{say, units, up};

pub fn run(args: &Serve) -> Result<ExitCode, Failure> {
    let path = up::absolute(&args.config)?;
    let folder = path.parent().unwrap_or(Path::new("/")).to_owned();
    // Read under the name that was typed: messages repeat it.
    let volume = up::read(&args.config)?.in_folder(&folder);
    serve(&volume, args.accept_loss)
}

/// Serves until a signal. `accept_loss`: with another cache than last time, too.
pub fn serve(volume: &Config, accept_loss: bool) -> Result<ExitCode, Failure> {
    let options = Options {
        origin: volume.origin.clone(),
        cache: volume.cache.clone(),
        nbd: vec![volume.nbd.clone()],
        control: volume.control.clone(),
        state: volume.state.clone(),
        accept_loss,
        name: String::new(),
        knobs: volume.knobs,
    };
    let ended = tidegate_daemon::volume::serve(&options, |ready| say(&greeting(ready)))?;
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
    let uri = ready.uris.first().map_or("", String::as_str);
    let host = uri.strip_prefix("nbd://").map(|rest| rest.trim_end_matches('/'));
    let kernel = match (host.and_then(|host| host.rsplit_once(':')), uri.split_once("?socket=")) {
        (Some((address, port)), _) => format!("nbd-client {address} {port} /dev/nbd0 -b 4096"),
        (None, Some((_, socket))) => format!("nbd-client -unix {socket} /dev/nbd0 -b 4096"),
        (None, None) => "nbd-client".to_owned(),
    };
    lines.push("connect:".to_owned());
    for (what, how) in [
        ("look", format!("nbdinfo '{uri}'")),
        ("as a file, export/nbd", format!("mkdir -p export && nbdfuse export '{uri}' &")),
        ("and that as a disk", "losetup --find --show --direct-io=on export/nbd".to_owned()),
        ("a virtual machine's disk", format!("qemu-system-x86_64 -drive format=raw,cache=none,discard=unmap,file='{uri}' …")),
        ("the kernel's own client", kernel),
    ] {
        lines.push(format!("  {what:<26} {how}"));
    }
    lines.extend(ready.uris.iter().map(|uri| format!("ready: {uri}")));
    lines.join("\n")
}
