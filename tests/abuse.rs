//! Clients that vanish, stall, flood and ask for too much: the daemon goes on, keeps nothing of them, and serves the others correctly.
//! How little the others notice is measured by `make bench-abuse`.

use std::io::{Read, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::common::chance::Chance;
use crate::common::daemon::Daemon;
use crate::common::hostile::{self, *};
use crate::common::volume;

/// What clients cost is counted here, not what memory the volume is given for pages.
const NO_PAGES: &str = "[memory]\nram = \"0B\"\n";
const MIB: u64 = 1 << 20;
/// How long the daemon may take to notice that clients have gone.
const PATIENCE: Duration = Duration::from_secs(60);
/// More than the daemon's memory differs by from one measurement to the next when nothing large happens.
const NOISE_BYTES: u64 = 6 << 20;
/// Clients that vanish do so in so many batches, at least.
const BATCHES: u64 = 5;
/// A batch that leaves no more than this behind leaves nothing: a few KiB for each of its clients would be more.
const BATCH_NOISE_BYTES: u64 = 512 << 10;
/// The last 16 MiB of a volume of 128 MiB belong to the good client, the rest to nobody.
const GOOD: u64 = 112 * MIB;

fn small() -> tempfile::TempDir {
    volume("128MiB", "128MiB", &format!("{NO_PAGES}[gate]\nwait = \"100ms\"\n"))
}

/// A client that writes, reads again what it wrote, and flushes now and then.
struct Good {
    wire: Wire,
    chance: Chance,
    /// What is in its part of the volume, block by block.
    seeds: Vec<u64>,
}

impl Good {
    fn new(door: &Door) -> Good {
        let mut good = Good { wire: door.enter().unwrap(), chance: Chance::new(1), seeds: Vec::new() };
        for block in 0..512 {
            good.write(block);
        }
        good
    }

    fn write(&mut self, block: usize) {
        let seed = self.chance.next();
        self.seeds.resize(self.seeds.len().max(block + 1), 0);
        self.seeds[block] = seed;
        self.wire.write_all(&hostile::write(seed, GOOD + block as u64 * 4096, &Chance::new(seed).bytes(4096))).unwrap();
        assert_eq!(self.wire.simple().unwrap(), (0, seed));
    }

    /// One write and one read, compared.
    fn work(&mut self) {
        let block = self.chance.below(self.seeds.len() as u64) as usize;
        self.write(block);
        let (block, cookie) = (self.chance.below(self.seeds.len() as u64), self.chance.next());
        self.wire.write_all(&request(READ, cookie, GOOD + block * 4096, 4096)).unwrap();
        assert_eq!(self.wire.simple().unwrap(), (0, cookie));
        let mut read = vec![0; 4096];
        self.wire.read_exact(&mut read).unwrap();
        assert!(read == Chance::new(self.seeds[block as usize]).bytes(4096), "block {block} is not what was written");
        if cookie.is_multiple_of(16) {
            self.wire.write_all(&request(FLUSH, 1, 0, 0)).unwrap();
            assert_eq!(self.wire.simple().unwrap(), (0, 1));
        }
    }

    /// Works until `done`; returns how often.
    fn work_until(&mut self, done: &AtomicBool) -> u64 {
        let mut count = 0;
        while !done.load(Ordering::Acquire) {
            self.work();
            count += 1;
        }
        count
    }
}

/// Waits until the daemon has no more descriptors than `before`; each look is a request of the good client behind whatever came first.
fn wait_until_all_are_gone(daemon: &Daemon, good: &mut Good, before: Cost) {
    let started = Instant::now();
    while cost(daemon).descriptors > before.descriptors {
        assert!(started.elapsed() < PATIENCE, "{:?}; before that {before:?}", cost(daemon));
        good.work();
    }
}

/// At least `count` clients vanish in the middle of 32 requests each while a good one works.
fn check_vanishing(folder: &tempfile::TempDir, kind: &str, count: u64) {
    let (daemon, door) = Door::open(folder.path(), kind);
    let mut good = Good::new(&door);
    let idle = cost(&daemon);
    let (mut vanished, mut stays_equal) = (0, false);
    while vanished < count || !stays_equal {
        let before = cost(&daemon);
        let done = AtomicBool::new(false);
        let batch = vanished..vanished + count / BATCHES;
        let worked = std::thread::scope(|threads| {
            let working = threads.spawn(|| good.work_until(&done));
            batch.clone().for_each(|number| vanish(&door, number));
            done.store(true, Ordering::Release);
            working.join().unwrap()
        });
        wait_until_all_are_gone(&daemon, &mut good, idle);
        let after = cost(&daemon);
        println!("{kind}: {before:?} before, {after:?} after clients {batch:?}; {worked} rounds of the good one");
        // What is kept for reuse is as much as was ever in use at once, and how much that is is up to the machine. A leak would grow with
        // every batch.
        stays_equal |= after.bytes <= before.bytes + BATCH_NOISE_BYTES;
        vanished = batch.end;
        assert!(vanished < 5 * count, "the daemon grew with every batch: {idle:?} at first, {after:?} now");
    }
    // A new client finds everything as it should be.
    let mut late = door.enter().unwrap();
    late.write_all(&request(FLUSH, 1, 0, 0)).unwrap();
    assert_eq!(late.simple().unwrap(), (0, 1));
    let memory = &daemon.status()["memory"];
    assert!(memory["pages"].as_u64() <= memory["pages_max"].as_u64(), "{memory}");
    drop((good, late));
    daemon.stop();
}

#[test]
fn five_hundred_clients_vanish_from_a_unix_socket() {
    check_vanishing(&small(), "unix", 500);
}

/// They leave pages behind that they have just written, and were reading; memory is full of those of others.
#[test]
fn a_thousand_clients_vanish_from_front_threads_that_share_16_mib() {
    let knobs = "[memory]\nram = \"16MiB\"\n[limits]\nfront_threads = 3\n[gate]\nwait = \"100ms\"\n";
    check_vanishing(&volume("128MiB", "512MiB", knobs), "unix", 1000);
}

#[test]
fn three_hundred_clients_vanish_from_tcp() {
    check_vanishing(&small(), "tcp", 300);
}

#[test]
fn two_hundred_clients_vanish_in_the_middle_of_tls() {
    check_vanishing(&small(), "tls", 200);
}

/// `make soak`: comes and goes by the hundred thousand.
#[test]
fn connections_come_and_go_and_nothing_stays() {
    let count: u64 = std::env::var("TIDEGATE_CONNECTIONS").map_or(3_000, |count| count.parse().expect("a number of connections"));
    let folder = small();
    let (daemon, door) = Door::open(folder.path(), "unix");
    let mut good = Good::new(&door);
    let come_and_go = |count: u64| {
        for number in 0..count {
            match number % 3 {
                0 => drop(door.knock()),
                1 => drop(door.enter().unwrap()),
                _ => {
                    let mut wire = door.enter().unwrap();
                    wire.write_all(&request(READ, number, 0, 4096)).unwrap();
                    assert_eq!(wire.simple().unwrap(), (0, number));
                }
            }
        }
    };
    let idle = cost(&daemon);
    come_and_go(1000);
    wait_until_all_are_gone(&daemon, &mut good, idle);
    let before = cost(&daemon);
    come_and_go(count);
    wait_until_all_are_gone(&daemon, &mut good, before);
    let after = cost(&daemon);
    println!("{before:?} before, {after:?} after {count} connections");
    assert!(after.bytes <= before.bytes + NOISE_BYTES, "{before:?} before, {after:?} after");
    daemon.stop();
}

#[test]
fn ten_thousand_half_open_connections_cost_little_and_keep_nobody_out() {
    const COUNT: usize = 10_000;
    raise_descriptors();
    let folder = small();
    // One IP address has no more than 256 places.
    let (daemon, door) = Door::open(folder.path(), "unix");
    let mut good = Good::new(&door);
    let before = cost(&daemon);
    forget_peak(&daemon);

    let mut half_open = Vec::with_capacity(COUNT);
    let beginnings: [&[u8]; 5] = [b"", b"\0\0", b"\0\0\0\x03IHAVE", &[&[0, 0, 0, 3][..], &option(STARTTLS, b"")].concat(), &[255; 3]];
    for number in 0..COUNT {
        let mut wire = door.knock();
        // It may have been given up for a newer one already.
        let _ = wire.write_all(beginnings[number % beginnings.len()]);
        half_open.push(wire);
        if number % 500 == 0 {
            good.work();
            // Newcomers get in all the same.
            let mut late = door.enter().unwrap();
            late.write_all(&request(FLUSH, 1, 0, 0)).unwrap();
            assert_eq!(late.simple().unwrap(), (0, 1));
        }
    }
    let most = peak(&daemon);
    println!("{before:?} before, {most} bytes at most with {COUNT} half-open connections");
    assert!(most <= before.bytes + 64 * MIB, "{before:?} before, {most} bytes with half-open connections");
    drop(half_open);
    wait_until_all_are_gone(&daemon, &mut good, before);
    drop(good);
    daemon.stop();
}

#[test]
fn s6_a_thousand_idle_and_a_hundred_hostile_clients_cost_less_than_64_mib() {
    raise_descriptors();
    let folder = small();
    let (daemon, door) = Door::open(folder.path(), "unix");
    // What is read is in the cache, and what a busy volume keeps for reuse is there.
    let mut good = Good::new(&door);
    for offset in (0..64 * MIB).step_by(1 << 20) {
        good.wire.write_all(&hostile::write(offset, offset, &vec![3; 1 << 20])).unwrap();
        assert_eq!(good.wire.simple().unwrap(), (0, offset));
    }
    let before = cost(&daemon);
    forget_peak(&daemon);
    let idle: Vec<Wire> = (0..1000).map(|_| door.enter().unwrap()).collect();
    let hostile = hold_what_they_can(&door);
    (0..200).for_each(|_| good.work());
    let most = peak(&daemon);
    println!("{before:?} before, {most} bytes at most: {} MiB more", (most - before.bytes) >> 20);
    assert!(most < before.bytes + 64 * MIB, "{before:?} before, {most} bytes at most");
    drop((idle, hostile));
    wait_until_all_are_gone(&daemon, &mut good, before);
    daemon.stop();
}

#[test]
fn a_byte_a_second_is_no_handshake_and_a_slow_reader_gets_every_byte() {
    let folder = small();
    let (daemon, door) = Door::open(folder.path(), "tcp");
    let mut good = Good::new(&door);
    let (mut shaking, mut asking, mut reading) = (door.knock(), door.enter().unwrap(), door.enter().unwrap());
    shaking.read_exact(&mut [0; 18]).unwrap();
    let data = Chance::new(5).bytes(8 << 20);
    reading.write_all(&write(1, 0, &data)).unwrap();
    assert_eq!(reading.simple().unwrap(), (0, 1));
    reading.write_all(&request(READ, 2, 0, 8 << 20)).unwrap();
    assert_eq!(reading.simple().unwrap(), (0, 2));
    let asked = request(FLUSH, 3, 0, 0);
    asking.write_all(&asked[..16]).unwrap();

    // The pace is what is tried here: a byte a second, while the good client works at its own.
    let (mut got, mut hello) = (Vec::new(), Vec::new());
    for second in 0..12 {
        let until = Instant::now() + Duration::from_secs(1);
        while Instant::now() < until {
            good.work();
        }
        hello.push(shaking.write_all(&[0]).is_ok());
        asking.write_all(&asked[16 + second..=16 + second]).unwrap();
        let mut some = vec![0; 1 << 19];
        reading.read_exact(&mut some).unwrap();
        got.extend_from_slice(&some);
    }
    assert!(hello[..8].iter().all(|sent| *sent) && shaking.is_ended(), "a handshake has ten seconds: {hello:?}");
    assert_eq!(asking.simple().unwrap(), (0, 3), "a request may take its time");
    let mut rest = vec![0; data.len() - got.len()];
    reading.read_exact(&mut rest).unwrap();
    got.extend_from_slice(&rest);
    assert!(got == data);
    daemon.stop();
}

#[test]
fn names_of_4096_bytes_are_answered_and_longer_ones_are_no_names() {
    let folder = small();
    let (daemon, door) = Door::open(folder.path(), "unix");
    let ask = |name: &[u8]| {
        let mut wire = door.enter_with(&[go(name)], 16).unwrap();
        let mut head = [0; 4];
        wire.read_exact(&mut head).unwrap();
        // The text that follows is for people; the connection goes on.
        wire.write_all(&option(EXPORT_NAME, b"")).unwrap();
        let mut text = vec![0; u32::from_be_bytes(head) as usize];
        wire.read_exact(&mut text).unwrap();
        wire.read_exact(&mut [0; 10]).unwrap();
        String::from_utf8(text).expect("text")
    };
    let longest = "n".repeat(4096);
    println!("{}", ask(longest.as_bytes()));
    println!("{}", ask(format!("{longest}n").as_bytes()));
    println!("{}", ask(&"ü".repeat(2048).into_bytes()));
    println!("{}", ask(b"a\0b"));
    let mut wire = door.knock();
    wire.write_all(&[&[0, 0, 0, 3][..], &option(EXPORT_NAME, longest.as_bytes())].concat()).unwrap();
    assert!(wire.is_ended(), "EXPORT_NAME has no other answer");
    daemon.stop();
}

#[test]
fn requests_of_32_mib_and_of_4_gib_are_served_or_refused_by_their_kind() {
    const LONGEST: u32 = u32::MAX;
    const PAYLOAD: u32 = 32 << 20;
    // Large enough for all of them to lie inside.
    let folder = volume("8GiB", "256MiB", NO_PAGES);
    let (daemon, door) = Door::open(folder.path(), "unix");
    let mut wire = door.enter().unwrap();
    let data = Chance::new(32).bytes(PAYLOAD as usize);
    let round = |wire: &mut Wire| {
        wire.write_all(&write(1, 4096, &data)).unwrap();
        assert_eq!(wire.simple().unwrap(), (0, 1));
        wire.write_all(&request(READ, 2, 4096, PAYLOAD)).unwrap();
        assert_eq!(wire.simple().unwrap(), (0, 2));
        let mut read = vec![0; PAYLOAD as usize];
        wire.read_exact(&mut read).unwrap();
        assert!(read == data);
        for (cookie, (command, length, error)) in (3..).zip([
            (TRIM, PAYLOAD, 0),
            (ZEROES, PAYLOAD, 0),
            (CACHE, PAYLOAD, 0),
            (READ, PAYLOAD + 1, 22),
            (READ, LONGEST, 22),
            (TRIM, LONGEST, 0),
            (ZEROES, LONGEST, 0),
            (BLOCK_STATUS, LONGEST, 22), // no context was selected
            (FLUSH, LONGEST, 0),
        ]) {
            wire.write_all(&request(command, cookie, 0, length)).unwrap();
            assert_eq!(wire.simple().unwrap(), (error, cookie), "{command} of {length} bytes");
        }
        // Beyond the end, and around it.
        for (command, error) in [(TRIM, 22), (ZEROES, 28), (CACHE, 22), (READ, 22)] {
            for offset in [8 << 30, u64::MAX, u64::MAX - u64::from(LONGEST) + 1] {
                wire.write_all(&request(command, 7, offset, LONGEST)).unwrap();
                assert_eq!(wire.simple().unwrap(), (error, 7), "{command} at {offset}");
            }
        }
    };
    round(&mut wire);
    let before = cost(&daemon);
    (0..5).for_each(|_| round(&mut wire));

    // A prefetch of 4 GiB − 1: whoever asked may go away.
    wire.write_all(&request(CACHE, 1, 0, LONGEST)).unwrap();
    // A payload of 32 MiB + 1 is dropped and refused; one of 4 GiB − 1 nobody waits for.
    let mut other = door.enter().unwrap();
    other.write_all(&write(4, 0, &vec![1; PAYLOAD as usize + 1])).unwrap();
    assert_eq!(other.simple().unwrap(), (22, 4));
    other.write_all(&request(WRITE, 5, 0, LONGEST)).unwrap();
    assert!(other.is_ended());
    drop(wire);

    // A status of 4 GiB − 1 says something about its beginning, at least.
    let (options, answer) = with_allocation();
    let mut wire = door.enter_with(&options, answer).unwrap();
    wire.write_all(&request(BLOCK_STATUS, 6, 0, LONGEST)).unwrap();
    let mut chunk = [0; 20];
    wire.read_exact(&mut chunk).unwrap();
    let length = u32::from_be_bytes(chunk[16..].try_into().unwrap());
    assert_eq!((&chunk[..8], &chunk[8..16]), (&[0x66, 0x8e, 0x33, 0xef, 0, 1, 0, 5][..], &6u64.to_be_bytes()[..]));
    assert!(length >= 12 && length.is_multiple_of(4), "extents: {length} bytes");
    drop(wire);
    let mut wire = door.enter().unwrap();
    round(&mut wire);
    let after = cost(&daemon);
    println!("{before:?} before, {after:?} after");
    assert!(after.bytes <= before.bytes + 64 * MIB, "{before:?} before, {after:?} after");
    drop(wire);
    daemon.stop();
}
