//! What the operator must know now, in one line: `alarm` in `tidegate status`, and said by whoever waits for the volume.

use tidegate_engine::op::{DeviceError, DeviceId};
use tidegate_engine::probe::Snapshot;

use crate::back::disk::{Disk, name};
use crate::back::io::Io;

/// From what is known: no disk is asked, it may not answer for long.
pub fn alarm(io: &Io, snapshot: &Snapshot) -> Option<String> {
    let of_origin = || {
        let what = refusal(snapshot.origin_error?, snapshot.newer())?;
        Some(format!("{} {what}", called(io.disk(DeviceId::Origin))))
    };
    io.alarm().map(str::to_owned).or_else(of_origin)
}

/// An origin that has no name any more ends with the daemon. (Whoever asks waits for the file system.)
pub fn removed(origin: &Disk) -> Option<String> {
    let what_then = "its contents go when the daemon ends: copy the volume out while it is served, nothing else holds it";
    origin.is_removed().then(|| format!("{} was removed, and {what_then}", called(origin)))
}

fn called(disk: &Disk) -> String {
    format!("{} {}", name(disk.role()), disk.path().display())
}

/// The origin takes nothing, and so many blocks wait for it.
fn refusal(error: DeviceError, newer: u64) -> Option<String> {
    let what = match error {
        DeviceError::NoSpace => "is full",
        DeviceError::Medium => "fails writes or flushes",
        DeviceError::Gone => "does not answer",
    };
    (newer > 0).then(|| format!("{what}: {newer} blocks that are newer stay in the cache, and go home when it takes them"))
}
