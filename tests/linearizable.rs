//! A million reads and writes of 16 clients at once, and of every sector whether what they saw can have happened one after the other.
//!
//! Every write has contents of its own, so that a read names the write that it saw. All that belongs to one write, itself and the reads that
//! saw it, is a *cluster*. Its *zone* lies between its first reply and its last request. Is the first reply the earlier one, the sector held that
//! contents all of that time (a forward zone), otherwise at some moment between the two (a backward zone). There is an order if and only
//! if no two forward zones overlap, no backward zone lies inside a forward one, and nobody read what was not asked to be written yet (Gibbons
//! and Korach, "Testing shared memories", SIAM Journal on Computing 1997).

use std::io::{BufReader, Read, Write};
use std::time::Instant;

use crate::common::chance::Chance;
use crate::common::hostile::{self, Door, READ, request};
use crate::common::volume;

const CLIENTS: u64 = 16;
/// Of one client at once.
const DEPTH: usize = 8;
const ATOM: usize = 512;
/// Most requests are for these blocks of 4 KiB, the others for any of the volume's first.
const HOT: u64 = 24;
const BLOCKS: u64 = 4096;

/// What one request did to one sector. Times are in nanoseconds since the start.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Access {
    atom: u32,
    /// 0: what was there at first.
    value: u32,
    is_write: bool,
    asked: u64,
    answered: u64,
}

/// What is known of one write and of those who saw it.
#[derive(Clone, Copy)]
struct Cluster {
    first_answer: u64,
    last_asked: u64,
    written: Option<u64>,
    read_before: u64,
}

/// Why there is no order, of one sector's accesses.
fn check(accesses: &mut [Access]) -> Result<(), String> {
    accesses.sort_unstable_by_key(|access| access.value);
    let (mut forward, mut backward) = (Vec::new(), Vec::new());
    for same in accesses.chunk_by(|one, other| one.value == other.value) {
        // What was there at first was written before anybody asked for anything.
        let first = same[0].value == 0;
        let start =
            Cluster { first_answer: if first { 0 } else { u64::MAX }, last_asked: 0, written: first.then_some(0), read_before: u64::MAX };
        let cluster = same.iter().fold(start, |cluster, access| Cluster {
            first_answer: cluster.first_answer.min(access.answered),
            last_asked: cluster.last_asked.max(access.asked),
            written: cluster.written.or(access.is_write.then_some(access.asked)),
            read_before: if access.is_write { cluster.read_before } else { cluster.read_before.min(access.answered) },
        });
        let Some(written) = cluster.written else { return Err(format!("nobody has written what was read: {:?}", same[0])) };
        if cluster.read_before < written {
            return Err(format!("read before it was written: {:?}", same[0]));
        }
        if cluster.first_answer < cluster.last_asked {
            forward.push((cluster.first_answer, cluster.last_asked, same[0].value));
        } else {
            backward.push((cluster.last_asked, cluster.first_answer, same[0].value));
        }
    }
    forward.sort_unstable();
    for pair in forward.windows(2) {
        if pair[1].0 < pair[0].1 {
            return Err(format!("{:?} and {:?} were there at the same time", pair[0], pair[1]));
        }
    }
    for zone in backward {
        let before = forward.partition_point(|other| other.0 < zone.0);
        if before > 0 && zone.1 < forward[before - 1].1 {
            return Err(format!("{zone:?} was there while {:?} was", forward[before - 1]));
        }
    }
    Ok(())
}

/// One client: so many requests, some at once.
fn client(door: &Door, number: u64, requests: u64, start: Instant) -> Vec<Access> {
    let now = || start.elapsed().as_nanos() as u64 + 1;
    let mut wire = BufReader::with_capacity(256 << 10, door.enter().expect("the daemon listens"));
    let mut chance = Chance::new(number + 1);
    let mut accesses = Vec::new();
    let mut sent = 0;
    let mut contents = vec![0; 16 * ATOM];
    while sent < requests {
        let mut batch = Vec::new();
        let mut bytes = Vec::new();
        while batch.len() < DEPTH && sent < requests {
            sent += 1;
            let block = if chance.below(10) < 8 { chance.below(HOT) } else { chance.below(BLOCKS) };
            let (skip, atoms) = match chance.below(4) {
                0 => (0, 8),
                1 => (chance.below(8), 1 + chance.below(12)),
                _ => (chance.below(8), 1),
            };
            let (atom, is_write) = (block * 8 + skip, chance.below(5) < 2);
            let value = (sent << 4 | number) as u32;
            let cookie = batch.len() as u64;
            if is_write {
                let data = u64::from(value).to_le_bytes().repeat(atoms as usize * ATOM / 8);
                bytes.extend(hostile::write(cookie, atom * ATOM as u64, &data));
            } else {
                bytes.extend(request(READ, cookie, atom * ATOM as u64, atoms as u32 * ATOM as u32));
            }
            batch.push((atom, atoms, is_write, value));
        }
        let asked = now();
        wire.get_mut().write_all(&bytes).expect("the daemon reads");
        for _ in 0..batch.len() {
            let mut head = [0; 16];
            wire.read_exact(&mut head).expect("the daemon answers");
            let answered = now();
            assert_eq!(head[..8], [0x67, 0x44, 0x66, 0x98, 0, 0, 0, 0], "a simple reply without an error");
            let (atom, atoms, is_write, value) = batch[u64::from_be_bytes(head[8..].try_into().unwrap()) as usize];
            let contents = &mut contents[..if is_write { 0 } else { atoms as usize * ATOM }];
            wire.read_exact(contents).expect("the daemon answers");
            for place in 0..atoms {
                let value = if is_write { value } else { value_of(&contents[place as usize * ATOM..][..ATOM]) };
                accesses.push(Access { atom: (atom + place) as u32, value, is_write, asked, answered });
            }
        }
    }
    accesses
}

/// The value that fills a sector.
fn value_of(sector: &[u8]) -> u32 {
    let (first, rest) = sector.split_at(8);
    assert!(rest.chunks(8).all(|word| word == first), "a sector is of one write");
    u64::from_le_bytes(first.try_into().unwrap()).try_into().expect("a value of ours")
}

/// A memory of sixteen pages, from which pages go all the time, and one that holds all that is asked for; and clients served by three threads
/// that read and write it.
#[test]
fn a_million_operations_of_sixteen_clients_can_have_happened_one_after_the_other() {
    let all: u64 = std::env::var("TIDEGATE_OPERATIONS").map_or(1_000_000, |count| count.parse().expect("a count"));
    for (ram, threads) in [("64KiB", 0), ("32MiB", 0), ("128KiB", 3), ("32MiB", 3)] {
        let folder = volume("64MiB", "512MiB", &format!("[memory]\nram = {ram:?}\n[limits]\nfront_threads = {threads}\n"));
        let (daemon, door) = Door::open(folder.path(), "unix");
        let start = Instant::now();
        let of_client = |number| client(&door, number, all / 4 / CLIENTS, start);
        let mut accesses: Vec<Access> = std::thread::scope(|scope| {
            let of_client = &of_client;
            let clients: Vec<_> = (0..CLIENTS).map(|number| scope.spawn(move || of_client(number))).collect();
            clients.into_iter().flat_map(|client| client.join().expect("a client ends")).collect()
        });
        let took = start.elapsed();
        let status = daemon.status();
        println!("{ram}, {threads} threads: {took:?}, {} accesses; memory {}", accesses.len(), status["memory"]);
        assert!(status["memory"]["hit_blocks"].as_u64().unwrap() > all / 100, "{status}");
        assert!(threads == 0 || status["memory"]["written_blocks"].as_u64().unwrap() > all / 1000, "{status}");
        assert!(!ram.ends_with("KiB") || status["memory"]["evicted"].as_u64().unwrap() > all / 100, "{status}");
        daemon.stop();
        accesses.sort_unstable_by_key(|access| access.atom);
        for of_atom in accesses.chunk_by_mut(|one, other| one.atom == other.atom) {
            check(of_atom).unwrap_or_else(|why| panic!("{ram}, {threads} threads, sector {}: {why}", of_atom[0].atom));
        }
    }
}

#[test]
fn what_cannot_have_happened_is_noticed() {
    let access = |value, is_write, asked, answered| Access { atom: 0, value, is_write, asked, answered };
    let write = |value, asked, answered| access(value, true, asked, answered);
    let read = |value, asked, answered| access(value, false, asked, answered);
    assert_eq!(check(&mut [read(0, 1, 2), write(1, 3, 9), read(0, 4, 5), read(1, 6, 7)]), Ok(()));
    for (what, mut accesses) in [
        ("old after new", vec![write(1, 3, 9), read(1, 4, 5), read(0, 6, 7)]),
        ("old after a reply", vec![write(1, 1, 2), read(0, 3, 4)]),
        ("from the future", vec![read(1, 1, 2), write(1, 3, 4)]),
        ("from nowhere", vec![read(7, 1, 2)]),
        ("back and forth", vec![write(1, 1, 20), write(2, 1, 20), read(1, 2, 3), read(2, 4, 5), read(1, 6, 7)]),
        ("a write that never was", vec![write(1, 1, 2), write(2, 3, 4), read(1, 5, 6)]),
    ] {
        assert!(check(&mut accesses).is_err(), "{what}");
    }
}
