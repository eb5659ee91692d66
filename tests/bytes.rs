//! Bytes of one sector, written by several clients: the sector is read, changed and written for the one who writes part of it, and what others
//! were told is written meanwhile stays.

use std::io::{Read, Write};
use std::sync::atomic::{AtomicBool, Ordering};

use crate::common::hostile::{self, Door, EXPORT_NAME, READ, Wire, request};
use crate::common::volume;

const ATOM: usize = 512;
const BLOCK: usize = 4096;
/// Bytes of a sector that belong to the one who writes no others.
const PART: usize = 100;

/// Says so when it goes, however that comes about.
struct Ends<'a>(&'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn write(wire: &mut Wire, offset: usize, data: &[u8]) {
    wire.write_all(&hostile::write(1, offset as u64, data)).expect("the daemon reads");
    assert_eq!(wire.simple().expect("the daemon answers"), (0, 1));
}

fn read(wire: &mut Wire, offset: usize, length: usize) -> Vec<u8> {
    wire.write_all(&request(READ, 2, offset as u64, length as u32)).expect("the daemon reads");
    assert_eq!(wire.simple().expect("the daemon answers"), (0, 2));
    let mut contents = vec![0; length];
    wire.read_exact(&mut contents).expect("the daemon answers");
    contents
}

/// Two clients, which two threads serve where there are two: one writes the first bytes of a block, one the whole of it, again and again.
#[test]
fn who_writes_part_of_a_sector_undoes_nobody_elses_write_of_all_of_it() {
    for threads in [0, 1, 2] {
        let folder = volume("64MiB", "64MiB", &format!("[memory]\nram = \"16MiB\"\n[limits]\nfront_threads = {threads}\n"));
        let (daemon, door) = Door::open(folder.path(), "unix");
        let is_over = AtomicBool::new(false);
        let parts = std::thread::scope(|scope| {
            let parts = scope.spawn(|| {
                let mut wire = door.enter().expect("the daemon listens");
                let mut count = 0u64;
                while !is_over.load(Ordering::Relaxed) {
                    count += 1;
                    write(&mut wire, (count % 4) as usize * BLOCK, &[count as u8; PART]);
                }
                count
            });
            let end = Ends(&is_over);
            let mut wire = door.enter().expect("the daemon listens");
            for count in 0..20_000u32 {
                let place = (count % 4) as usize * BLOCK;
                let data = count.to_le_bytes().repeat(BLOCK / 4);
                write(&mut wire, place, &data);
                let now = read(&mut wire, place, ATOM);
                assert_eq!(now[PART..], data[PART..ATOM], "{threads} threads: the rest of the sector after write {count}");
            }
            drop(end);
            parts.join().expect("it ends")
        });
        assert!(parts > 100, "the other one wrote {parts} times");
        let status = daemon.status();
        assert!(threads == 0 || status["memory"]["written_blocks"].as_u64().unwrap() > 1000, "{status}");
        daemon.stop();
    }
}

/// Three clients that have a part of one sector each.
#[test]
fn who_writes_part_of_a_sector_undoes_nobody_elses_part() {
    for threads in [0, 1, 2] {
        let folder = volume("64MiB", "64MiB", &format!("[memory]\nram = \"16MiB\"\n[limits]\nfront_threads = {threads}\n"));
        let (daemon, door) = Door::open(folder.path(), "unix");
        let door = &door;
        std::thread::scope(|scope| {
            for client in 0..3 {
                scope.spawn(move || {
                    let mut wire = door.enter().expect("the daemon listens");
                    for count in 0..1500u32 {
                        let place = (count % 2) as usize * BLOCK + client * PART;
                        let data = [count as u8; PART];
                        write(&mut wire, place, &data);
                        assert_eq!(read(&mut wire, place, PART), data, "{threads} threads: client {client} after write {count}");
                    }
                });
            }
        });
        daemon.stop();
    }
}

/// What takes several requests is asked for although nothing else happens: it came with the end of the handshake.
#[test]
fn a_first_command_of_several_requests_is_answered() {
    for threads in [0, 1] {
        let folder = volume("64MiB", "64MiB", &format!("[limits]\nfront_threads = {threads}\n"));
        let (daemon, door) = Door::open(folder.path(), "unix");
        let mut wire = door.knock();
        wire.read_exact(&mut [0; 18]).expect("a greeting");
        let part = hostile::write(8, 10, &[1; PART]);
        wire.write_all(&[&3u32.to_be_bytes()[..], &hostile::option(EXPORT_NAME, b""), &part].concat()).expect("the daemon reads");
        wire.read_exact(&mut [0; 10]).expect("the export");
        assert_eq!(wire.simple().expect("an answer"), (0, 8), "{threads} threads");
        daemon.stop();
    }
}
