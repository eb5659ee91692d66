//! The file without a server: direct reads and writes by as many threads as the load has requests in flight.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};

use tidegate_daemon::back::run::RunMut;
use tidegate_engine::block::ATOM_BYTES;

use crate::common::chance::Chance;
use crate::load::{Load, MIB, Way};

pub struct Bare {
    file: File,
    /// One for each thread, aligned, in huge pages where there are any: memory that suits a device as well as any.
    buffers: Vec<RunMut>,
}

impl Bare {
    pub fn open(path: &Path) -> io::Result<Bare> {
        let file = OpenOptions::new().read(true).write(true).custom_flags(libc::O_DIRECT).open(path)?;
        Ok(Bare { file, buffers: Vec::new() })
    }

    /// A request at each of the places (in units of the load's length), ending in fdatasync if they write.
    pub fn run(&mut self, load: &Load, places: &[u64]) -> io::Result<()> {
        assert!(load.bytes <= MIB);
        self.buffers.resize_with(load.depth as usize, noise);
        let (file, next) = (&self.file, &AtomicUsize::new(0));
        std::thread::scope(|scope| {
            let threads: Vec<_> =
                (self.buffers.iter_mut()).map(|buffer| scope.spawn(move || one_after_another(file, load, places, next, buffer))).collect();
            threads.into_iter().try_for_each(|thread| thread.join().expect("a thread that measures does not panic"))
        })?;
        if load.way == Way::Write { self.file.sync_data() } else { Ok(()) }
    }
}

/// What clients write too: a device may be quicker with zeros.
fn noise() -> RunMut {
    let mut buffer = RunMut::new(MIB / ATOM_BYTES);
    buffer.as_mut_slice().copy_from_slice(&Chance::new(1).bytes(MIB as usize));
    buffer
}

/// Takes the next place that nobody has taken, until there is none.
fn one_after_another(file: &File, load: &Load, places: &[u64], next: &AtomicUsize, buffer: &mut RunMut) -> io::Result<()> {
    let buffer = &mut buffer.as_mut_slice()[..load.bytes as usize];
    while let Some(place) = places.get(next.fetch_add(1, Ordering::Relaxed)) {
        let offset = place * load.bytes;
        match load.way {
            Way::Read => file.read_exact_at(buffer, offset)?,
            Way::Write => file.write_all_at(buffer, offset)?,
        }
    }
    Ok(())
}
