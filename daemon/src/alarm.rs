//! What the operator must know now, in one line: `alarm` in `tidegate status`, and said by whoever waits for the volume.

use tidegate_engine::op::{DeviceError, DeviceId};
use tidegate_engine::probe::Snapshot;

use crate::back::disk::{Disk, name};
use crate::back::io::Io;

/// Of several, that of which least can be done later.
pub fn alarm(io: &Io, snapshot: &Snapshot) -> Option<String> {
    let origin = io.disk(DeviceId::Origin);
    removed(origin)
        .or_else(|| io.alarm().map(str::to_owned))
        .or_else(|| removed(io.disk(DeviceId::Cache)))
        .or_else(|| refusal(snapshot.origin_error?, snapshot.newer()).map(|what| format!("{} {what}", called(origin))))
}

/// A file that has no name any more: it ends with the daemon.
pub fn removed(disk: &Disk) -> Option<String> {
    let what_then = match disk.role() {
        DeviceId::Origin => "copy the volume out while it is served, nothing else holds it",
        DeviceId::Cache => "`tidegate drain` brings home what only it has",
    };
    disk.is_removed().then(|| format!("{} was removed, and its contents go when the daemon ends: {what_then}", called(disk)))
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
