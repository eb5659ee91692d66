//! The NBD front under clients that are hasty, slow, rude or gone: back-pressure, deadlines, order of the end.

use std::io::Read;
use std::net::{SocketAddr, TcpStream};

use crate::world::{Raw, World, option, request, simple, write};
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, connect, socket_with};
use tidegate_daemon::front::nbd::{Address, BYTES_MAX, REQUESTS_MAX};
use tidegate_daemon::port::Port;
use tidegate_engine::request::Room;

const MIB: u64 = 1 << 20;
const READ: u16 = 0;
pub const DISC: u16 = 2;
const FLUSH: u16 = 3;
const CACHE: u16 = 5;

/// `count` reads of `length` bytes at offset 0; cookies from 0.
pub fn reads(count: u64, length: u32) -> Vec<u8> {
    (0..count).flat_map(|cookie| request(READ, cookie, 0, length)).collect()
}

#[test]
fn x14_a_batch_arrives_in_one_turn_and_its_replies_leave_together_in_any_order() {
    let mut world = World::new(MIB);
    let mut raw = Raw::ready(&mut world);
    world.memory.bytes[..4096].fill(7);
    raw.send(&mut world, &reads(100, 4096));
    world.turn(None, 0);
    assert_eq!(world.held.len(), 100);
    assert_eq!(raw.now(), b"");
    world.turn(None, 0);
    let replies = raw.now();
    assert_eq!(replies.len(), 100 * (16 + 4096), "after the next turn");
    let cookies: Vec<u64> =
        replies.chunks(16 + 4096).map(|reply| u64::from_be_bytes(reply[8..16].try_into().expect("eight bytes"))).collect();
    assert_eq!(cookies, (0..100).rev().collect::<Vec<_>>(), "X14: in whatever order they were done");
    assert!(replies.chunks(16 + 4096).all(|reply| reply[16..].iter().all(|byte| *byte == 7)));
}

#[test]
fn writes_small_and_large_arrive_whole_between_other_requests() {
    let mut world = World::new(64 * MIB);
    let mut raw = Raw::ready(&mut world);
    let (mut stream, mut expect, mut at) = (Vec::new(), vec![0u8; 64 << 20], 0);
    for (cookie, length) in [512usize, 4096, 65_024, 65_536, 1 << 20, 512, 3 << 20, 66_048, 32 << 20].into_iter().enumerate() {
        let payload: Vec<u8> = (0..length).map(|byte| (byte / 512 + cookie * 31) as u8).collect();
        expect[at..at + length].copy_from_slice(&payload);
        stream.extend(write(cookie as u64, at as u64, &payload));
        stream.extend(request(FLUSH, 100 + cookie as u64, 0, 0));
        at += length;
    }
    raw.send(&mut world, &stream);
    let replies = raw.receive(&mut world, 18 * 16);
    assert!(replies.chunks(16).all(|reply| reply[4..8] == [0; 4]));
    assert!(world.memory.bytes == expect, "every byte is where it belongs");
    assert_eq!(world.memory.flushes, 9);
}

#[test]
fn what_came_behind_the_handshake_goes_to_the_volume_with_its_client() {
    for pieces in [usize::MAX, 7, 1] {
        let mut world = World::new(MIB);
        let mut raw = Raw::connect(&mut world);
        let hello = [3u32.to_be_bytes().to_vec(), option(1, b"")].concat();
        let everything = [hello, write(1, 0, &[7; 4096]), request(FLUSH, 2, 0, 0), reads(3, 512), request(DISC, 3, 0, 0)].concat();
        everything.chunks(pieces.min(everything.len())).for_each(|piece| raw.send(&mut world, piece));
        raw.receive(&mut world, 18 + 10 + 2 * 16 + 3 * (16 + 512));
        world.settle();
        assert!(raw.is_closed(), "nothing is left: the client said goodbye");
        assert_eq!((world.memory.bytes[4095], world.memory.flushes, world.front.connections()), (7, 1, 0));
    }
}

#[test]
fn who_arrives_at_a_volume_that_stops_is_refused_in_order() {
    let mut world = World::new(MIB);
    let mut raw = Raw::connect(&mut world);
    raw.receive(&mut world, 18);
    world.front.shutdown_volume();
    raw.send(&mut world, &[3u32.to_be_bytes().to_vec(), option(1, b""), request(FLUSH, 2, 0, 0)].concat());
    assert_eq!(raw.receive(&mut world, 10 + 16)[10..], simple(108, 2));
    world.settle();
    assert!(raw.is_closed());
    assert_eq!(world.front.connections(), 0);
}

#[test]
fn at_most_128_requests_of_a_connection_are_under_way_and_the_rest_waits() {
    let mut world = World::new(MIB);
    let mut raw = Raw::ready(&mut world);
    world.hold = true;
    raw.send(&mut world, &reads(300, 512));
    world.settle();
    assert_eq!(world.held.len(), REQUESTS_MAX);
    world.hold = false;
    let replies = raw.receive(&mut world, 300 * (16 + 512));
    assert!(replies.chunks(16 + 512).all(|reply| reply[4..8] == [0; 4]), "back-pressure is never an error");
    assert_eq!(world.batch_max, REQUESTS_MAX);
}

#[test]
fn a_thousand_refusals_in_one_batch_are_all_sent() {
    let mut world = World::new(MIB);
    let mut raw = Raw::ready(&mut world);
    raw.send(&mut world, &[request(4711, 1, 0, 0).repeat(1000), request(FLUSH, 2, 0, 0)].concat());
    let replies = raw.receive(&mut world, 1001 * 16);
    assert_eq!(replies[..16_000], simple(22, 1).repeat(1000));
    assert_eq!(replies[16_000..], simple(0, 2));
}

#[test]
fn at_most_64_mib_of_a_connection_are_under_way() {
    let mut world = World::new(64 * MIB);
    let mut raw = Raw::ready(&mut world);
    // One that has moved much may hold much.
    raw.send(&mut world, &reads(6, 12 << 20));
    raw.receive(&mut world, 6 * (16 + (12 << 20)));
    world.hold = true;
    raw.send(&mut world, &reads(5, 24 << 20));
    world.settle();
    assert_eq!(world.held.len() as u64, BYTES_MAX / (24 << 20));
    world.hold = false;
    raw.receive(&mut world, 5 * (16 + (24 << 20)));
}

/// The bytes of all reads that the front has passed on.
pub fn asked(world: &World) -> u64 {
    world.held.iter().map(|request| request.span.bytes()).sum()
}

#[test]
fn silent_clients_hold_their_shares_and_one_purse_and_others_go_on() {
    let mut world = World::new(64 * MIB);
    let mut good = Raw::ready(&mut world);
    world.hold = true;
    let deaf: Vec<Raw> = (0..40)
        .map(|_| {
            let mut raw = Raw::ready(&mut world);
            raw.push(&mut world, &[reads(40, 64 << 10), reads(3, 2 << 20)].concat());
            raw
        })
        .collect();
    world.settle();
    let all = 40 * (128 << 10) + (33 << 20);
    assert!((all - (2 << 20)..=all).contains(&asked(&world)), "{} of {all} bytes", asked(&world));
    world.hold = false;
    world.settle();
    // Their replies are not read. A client that moves what it takes is not held up.
    for round in 0..50 {
        good.send(&mut world, &reads(32, 4096));
        good.receive(&mut world, 32 * (16 + 4096));
        good.send(&mut world, &write(round, 0, &[round as u8; 4096]));
        assert_eq!(good.receive(&mut world, 16), simple(0, round));
    }
    good.send(&mut world, &reads(1, 4 << 20));
    good.receive(&mut world, 16 + (4 << 20));

    // What they hold is called in when somebody who holds nothing waits for it: some of themselves do, and then nobody.
    (0..40).for_each(|_| world.pass(1));
    let left = world.front.connections();
    assert!((2..41).contains(&left), "{left} are left");
    (0..10).for_each(|_| world.pass(1));
    assert_eq!(world.front.connections(), left);
    good.push(&mut world, &reads(1, 4 << 20));
    world.settle();
    world.pass(4);
    assert_eq!(world.front.connections(), 1);
    good.receive(&mut world, 16 + (4 << 20));
    drop(deaf);
    good.send(&mut world, &reads(2, 32 << 20));
    good.receive(&mut world, 2 * (16 + (32 << 20)));
}

#[test]
fn a_large_payload_waits_for_the_purse_and_goes_on_when_it_is_filled_again() {
    let mut world = World::new(64 * MIB);
    let (mut silent, mut other) = (Raw::ready(&mut world), Raw::ready(&mut world));
    silent.send(&mut world, &request(1, 1, 0, 32 << 20));
    world.settle();
    world.pass(30);
    assert_eq!(world.front.connections(), 2, "nobody else wants what it holds");
    other.push(&mut world, &write(2, 0, &vec![7; 12 << 20]));
    world.settle();
    assert_eq!(world.memory.bytes[0], 0, "it waits");
    world.pass(4);
    assert!(silent.is_closed());
    other.push(&mut world, &[7; 12 << 20]);
    world.settle();
    assert_eq!(world.memory.bytes[(12 << 20) - 1], 7);
}

#[test]
fn who_waits_for_a_large_loan_comes_before_those_who_want_less_later() {
    let mut world = World::new(64 * MIB);
    let [mut busy, mut large, mut small, mut other] = [(); 4].map(|()| Raw::ready(&mut world));
    world.hold = true;
    busy.push(&mut world, &reads(2, 4 << 20));
    world.settle();
    large.push(&mut world, &reads(1, 32 << 20));
    world.settle();
    small.push(&mut world, &reads(1, 1 << 20));
    world.settle();
    other.push(&mut world, &reads(1, 4096));
    world.settle();
    let asked = |world: &World| world.held.iter().map(|request| request.span.bytes()).collect::<Vec<u64>>();
    assert_eq!(asked(&world), [4 << 20, 4 << 20, 4096], "25 MiB are left, which are for the first who waits; a share is everybody's");
    // The engine does not answer. Every other second whoever has enough with what is left passes.
    world.pass(3);
    world.settle();
    assert_eq!(asked(&world), [4 << 20, 4 << 20, 4096, 1 << 20]);
    world.hold = false;
    busy.receive(&mut world, 2 * (16 + (4 << 20)));
    large.receive(&mut world, 16 + (32 << 20));
    small.receive(&mut world, 16 + (1 << 20));
    other.receive(&mut world, 16 + 4096);
}

#[test]
fn what_a_client_has_moved_is_its_credit_for_two_seconds_and_no_longer_however_still_it_stands() {
    let mut world = World::new(64 * MIB);
    let mut raw = Raw::ready(&mut world);
    for _ in 0..64 {
        raw.send(&mut world, &reads(64, 16 << 10));
        raw.receive(&mut world, 64 * (16 + (16 << 10)));
    }
    world.pass(3);
    assert!(world.front.deadline().is_none(), "nothing is left to be counted: the loop may sleep");
    world.hold = true;
    raw.send(&mut world, &reads(16, 4 << 20));
    world.settle();
    assert_eq!(asked(&world), 32 << 20, "of a purse of 33 MiB and a share of 128 KiB");
}

#[test]
fn answers_to_block_status_are_lent_like_data() {
    let mut world = World::new(64 * MIB);
    let mut raw = Raw::connect(&mut world);
    raw.receive(&mut world, 18);
    let query = [&[0; 4][..], &1u32.to_be_bytes(), &15u32.to_be_bytes(), b"base:allocation"].concat();
    let hello = [&3u32.to_be_bytes()[..], &option(8, b""), &option(10, &query), &option(1, b"")].concat();
    raw.send(&mut world, &hello);
    raw.receive(&mut world, 20 + (20 + 4 + 15) + 20 + 10);
    world.hold = true;
    raw.push(&mut world, &request(7, 1, 0, 64 << 20).repeat(128));
    world.settle();
    assert_eq!(world.held.len(), ((33 << 20) + (128 << 10)) / (16384 * 32 + 32), "each could be 16,384 extents long");
    world.hold = false;
    world.settle();
}

#[test]
fn no_room_in_the_engine_stops_reading_until_there_is_some() {
    let mut world = World::new(MIB);
    let mut raw = Raw::ready(&mut world);
    let mut other = Raw::ready(&mut world);
    let mut late = Raw::ready(&mut world);
    world.hold = true;
    world.room = Room::whole(3, 6000);
    raw.send(&mut world, &[reads(1, 4096), write(1, 0, &[1; 4096]), reads(5, 512)].concat());
    other.send(&mut world, &reads(3, 512));
    world.settle();
    assert!(world.held.len() <= 3 && world.room.bytes < 4096);
    world.room.requests = 0;
    late.send(&mut world, &reads(1, 512));
    world.settle();
    for _ in 0..10 {
        world.turn(None, 0);
        assert_eq!(world.watched(), 1, "nobody wakes us for what we cannot take");
    }
    world.room.requests = 3 - world.held.len();
    world.hold = false;
    world.settle();
    let (first, second) = (raw.now(), other.now());
    assert_eq!(first.len(), 16 + 4096 + 16 + 5 * (16 + 512));
    assert_eq!(second.len(), 3 * (16 + 512));
    assert_eq!(late.now().len(), 16 + 512);
}

#[test]
fn who_got_something_lets_others_have_what_comes_free_next() {
    let mut world = World::new(MIB);
    let mut deep: Vec<Raw> = (0..8).map(|_| Raw::ready(&mut world)).collect();
    let mut ninth = Raw::ready(&mut world);
    world.room.requests = 1;
    for raw in &mut deep {
        raw.send(&mut world, &reads(100, 512));
    }
    world.turn(None, 0);
    ninth.send(&mut world, &reads(2, 512));
    let mut turns = 0;
    let mut replies = Vec::new();
    while replies.len() < 2 * (16 + 512) {
        world.turn(None, 0);
        turns += 1;
        assert!(turns < 40, "one request a turn, and nine clients: the ninth has {} bytes", replies.len());
        replies.extend(ninth.now());
    }
    assert!(deep.iter_mut().all(|raw| !raw.now().is_empty()), "and so has everybody");
}

#[test]
fn who_lacks_room_for_a_large_payload_gets_it_before_those_who_want_less_later() {
    let mut world = World::new(MIB);
    let mut busy = Raw::ready(&mut world);
    let mut large = Raw::ready(&mut world);
    let mut late = Raw::ready(&mut world);
    world.hold = true;
    world.room.bytes = 8 * 4096;
    busy.send(&mut world, &reads(120, 4096));
    world.settle();
    large.send(&mut world, &request(READ, 1, 0, 8 * 4096));
    world.settle();
    let is_there = |world: &World| world.held.iter().any(|request| request.span.bytes() == 8 * 4096);
    // One after the other ends, and there are always more of the small ones.
    let one_ends = |world: &mut World| {
        let others = world.held.split_off(1);
        world.release();
        world.held.extend(others);
        world.settle();
    };
    for _ in 0..2 {
        one_ends(&mut world);
    }
    assert!(world.held.len() < 8, "what has come free is kept for the large one");
    // Nobody waits for it who needs no room; the others do, but not as long as a disk may take.
    late.send(&mut world, &[request(FLUSH, 1, 0, 0), request(READ, 2, 0, 4096)].concat());
    world.settle();
    assert_eq!((world.held.last().map(|request| request.span.bytes()), asked(&world) <= 7 * 4096), (Some(0), true));
    world.pass(1);
    assert!(asked(&world) <= 7 * 4096, "it has got nearer");
    world.pass(1);
    assert_eq!((asked(&world), is_there(&world)), (8 * 4096, false), "a second in which nothing came");
    world.pass(1);
    for end in 0..9 {
        one_ends(&mut world);
        world.pass(end % 2);
    }
    assert!(is_there(&world), "{} bytes of others", asked(&world));
    world.hold = false;
    let got = (busy.receive(&mut world, 120 * (16 + 4096)), large.receive(&mut world, 16 + 8 * 4096));
    assert_eq!((got.0[4..8].to_vec(), got.1[..16].to_vec()), (vec![0; 4], simple(0, 1)));
    assert_eq!(late.receive(&mut world, 16 + 16 + 4096).len(), 16 + 16 + 4096);
}

#[test]
fn a_client_that_reads_no_replies_stops_only_itself() {
    let mut world = World::new(4 * MIB);
    let mut deaf = Raw::ready(&mut world);
    let mut good = Raw::ready(&mut world);
    let sent = deaf.push(&mut world, &reads(100_000, 1 << 20));
    assert!(sent < 100_000 * 28, "its own socket is full");
    let free = world.room;
    for round in 0..50 {
        good.send(&mut world, &write(round, 0, &[round as u8; 4096]));
        assert_eq!(good.receive(&mut world, 16), simple(0, round));
    }
    assert_eq!(world.room, free);
    assert_eq!(world.front.connections(), 2);
}

#[test]
fn a_client_that_reads_no_replies_is_given_up_after_a_minute() {
    let mut world = World::new(4 * MIB);
    let mut deaf = Raw::ready(&mut world);
    let mut idle = Raw::ready(&mut world);
    deaf.push(&mut world, &reads(200, 1 << 20));
    world.settle();
    world.pass(59);
    assert_eq!(world.front.connections(), 2);
    world.pass(4);
    assert_eq!(world.front.connections(), 1);
    world.pass(10_000);
    idle.send(&mut world, &request(FLUSH, 1, 0, 0));
    assert_eq!(idle.receive(&mut world, 16), simple(0, 1), "an idle client may be silent for ever");
}

#[test]
fn a_write_without_its_payload_is_given_up_after_a_minute() {
    let mut world = World::new(64 * MIB);
    let mut small = Raw::ready(&mut world);
    let mut large = Raw::ready(&mut world);
    small.send(&mut world, &request(1, 1, 0, 4096));
    large.send(&mut world, &request(1, 1, 0, 32 << 20));
    world.settle();
    world.pass(59);
    assert_eq!(world.front.connections(), 2);
    world.pass(4);
    assert_eq!(world.front.connections(), 0);
    assert!(small.is_closed() && large.is_closed());
}

#[test]
fn a_payload_that_waits_for_the_engine_is_not_held_against_the_client() {
    let mut world = World::new(64 * MIB);
    let mut raw = Raw::ready(&mut world);
    world.room.bytes = 1000;
    raw.push(&mut world, &write(1, 0, &vec![9; 1 << 20]));
    world.settle();
    world.pass(1000);
    world.room.bytes = 2 << 20;
    assert_eq!(raw.receive(&mut world, 16), simple(0, 1));
    assert_eq!(world.memory.bytes[(1 << 20) - 1], 9);
}

#[test]
fn a_handshake_has_ten_seconds_however_busy_it_looks() {
    let mut world = World::new(MIB);
    let mut slow = Raw::connect(&mut world);
    slow.receive(&mut world, 18);
    for byte in 3u32.to_be_bytes() {
        slow.send(&mut world, &[byte]);
        world.pass(2);
    }
    assert_eq!(world.front.connections(), 1);
    world.pass(4);
    assert_eq!(world.front.connections(), 0);
    assert!(slow.is_closed());
}

#[test]
fn a_flood_of_options_is_answered_at_64_a_second() {
    let mut world = World::new(MIB);
    let mut raw = Raw::connect(&mut world);
    raw.receive(&mut world, 18);
    raw.send(&mut world, &3u32.to_be_bytes());
    raw.push(&mut world, &option(4711, b"").repeat(1000));
    world.settle();
    let reply = 20 + "this option is not known here".len();
    assert_eq!(raw.now().len(), 64 * reply);
    world.pass(1);
    assert_eq!(raw.now().len(), 64 * reply);
    world.pass(30);
    assert_eq!(world.front.connections(), 0);
}

/// `bytes` at `offset`, one job; its reply is awaited.
fn write_bytes(world: &mut World, raw: &mut Raw, offset: u64, bytes: &[u8]) {
    raw.send(world, &write(offset, offset, bytes));
    assert_eq!(raw.receive(world, 16), simple(0, offset));
}

#[test]
fn x9_neighbours_in_one_atom_never_undo_each_other() {
    let mut world = World::new(MIB);
    let (mut one, mut other) = (Raw::ready(&mut world), Raw::ready(&mut world));
    // Both read the atom before either writes it, if nothing keeps them apart.
    for round in 0..100u8 {
        one.send(&mut world, &write(1, 100, &[round; 50]));
        other.send(&mut world, &[write(2, 150, &[round ^ 0xff; 50]), write(3, 0, &[round; 100])].concat());
        assert_eq!(one.receive(&mut world, 16), simple(0, 1));
        other.receive(&mut world, 32);
        let expect = [[round; 100].as_slice(), &[round; 50], &[round ^ 0xff; 50]].concat();
        assert_eq!(world.memory.bytes[..200], expect, "round {round}");
    }
}

#[test]
fn x9_a_part_of_an_atom_waits_for_the_whole_one_that_is_under_way_and_later_ones_wait_for_it() {
    let mut world = World::new(MIB);
    let (mut aligned, mut bytes) = (Raw::ready(&mut world), Raw::ready(&mut world));
    world.hold = true;
    aligned.send(&mut world, &write(1, 0, &[1; 4096]));
    world.settle();
    bytes.send(&mut world, &write(2, 10, &[2; 10]));
    world.settle();
    assert_eq!(world.held.len(), 1, "the older write is not done");
    aligned.send(&mut world, &[write(3, 8192, &[3; 512]), write(4, 0, &[4; 512])].concat());
    world.settle();
    assert_eq!(world.held.len(), 2, "another place is free, the same one is not");
    world.hold = false;
    bytes.receive(&mut world, 16);
    aligned.receive(&mut world, 48);
    assert_eq!(world.memory.bytes[..4096], [vec![4; 512], vec![1; 3584]].concat());
}

#[test]
fn x9_large_and_odd_writes_zeroes_and_reads_are_exact() {
    let mut world = World::new(8 * MIB);
    let mut raw = Raw::ready(&mut world);
    let mut naive = vec![0u8; 8 << 20];
    for (number, (offset, length)) in
        [(1u64, 3 << 20), (700_001, 65_536), (513, 65_535), (4095, 2), (511, 1), (8_388_000, 608)].into_iter().enumerate()
    {
        let data: Vec<u8> = (0..length).map(|at: usize| (at * 7 + number) as u8).collect();
        write_bytes(&mut world, &mut raw, offset, &data);
        naive[offset as usize..][..length].copy_from_slice(&data);
    }
    for (offset, length) in [(1000u64, 5000u32), (300, 100), (511, 2)] {
        raw.send(&mut world, &request(6, 9, offset, length));
        assert_eq!(raw.receive(&mut world, 16), simple(0, 9));
        naive[offset as usize..][..length as usize].fill(0);
    }
    assert!(world.memory.bytes == naive);
    for (offset, length) in [(0u64, 1u32), (700_000, 70_001), (8_388_607, 1), (3, 4 << 20)] {
        raw.send(&mut world, &request(READ, 9, offset, length));
        assert!(raw.receive(&mut world, 16 + length as usize)[16..] == naive[offset as usize..][..length as usize]);
    }
    assert!(world.front.is_idle());
}

#[test]
fn a_client_that_vanishes_in_the_middle_of_a_job_holds_nobody_up() {
    let mut world = World::new(MIB);
    let mut gone = Raw::ready(&mut world);
    let mut stays = Raw::ready(&mut world);
    gone.send(&mut world, &request(FLUSH, 0, 0, 0));
    world.settle();
    world.hold = true;
    gone.send(&mut world, &write(1, 10, &[1; 10]));
    world.settle();
    assert_eq!(world.held.len(), 1, "the read of its atom");
    drop(gone);
    world.settle();
    assert_eq!(world.front.connections(), 1);
    stays.send(&mut world, &write(2, 20, &[2; 10]));
    world.settle();
    assert_eq!(world.held.len(), 1, "what is still in the engine is waited for");
    world.hold = false;
    assert_eq!(stays.receive(&mut world, 16), simple(0, 2));
    assert_eq!(world.memory.bytes[..40], [vec![0; 20], vec![2; 10], vec![0; 10]].concat(), "the write of who has gone was not begun");
}

#[test]
fn a_flood_of_jobs_waits_its_turn_and_keeps_nobody_from_plain_requests() {
    let mut world = World::new(MIB);
    let mut floods: Vec<Raw> = (0..4).map(|_| Raw::ready(&mut world)).collect();
    let mut good = Raw::ready(&mut world);
    world.hold = true;
    for (number, flood) in (0..).zip(&mut floods) {
        let offset = |cookie| 4096 + (128 * number + cookie) * 1000;
        flood.send(&mut world, &(0..128).flat_map(|cookie| write(cookie, offset(cookie), &[2; 10])).collect::<Vec<u8>>());
    }
    world.settle();
    assert_eq!(world.held.len(), 240, "so many at once");
    world.hold = false;
    good.send(&mut world, &write(1, 0, &[1; 512]));
    assert_eq!(good.receive(&mut world, 16), simple(0, 1));
    for flood in &mut floods {
        assert!(flood.receive(&mut world, 128 * 16).chunks(16).all(|reply| reply[4..8] == [0; 4]));
    }
}

/// Many clients ask for all of a large volume to be cached, and the origin does not answer; another one is served meanwhile.
fn check_that_caching_keeps_nobody_waiting(mut world: World) {
    let mut good = Raw::ready(&mut world);
    world.hold_caching = true;
    let floods: Vec<Raw> = (0..18)
        .map(|_| {
            let mut flood = Raw::ready(&mut world);
            flood.send(&mut world, &(0..16).flat_map(|cookie| request(CACHE, cookie, 0, 256 << 20)).collect::<Vec<u8>>());
            flood
        })
        .collect();
    world.until(|world| world.held.len() == 4);
    // With its second request at the latest all of theirs have been seen.
    for round in 0..4 {
        good.send(&mut world, &request(FLUSH, round, 0, 0));
        assert_eq!(good.receive(&mut world, 16), simple(0, round));
        good.send(&mut world, &request(READ, round, 64 << 20, 4096));
        assert_eq!(good.receive(&mut world, 16 + 4096)[..16], simple(0, round));
        write_bytes(&mut world, &mut good, 4096 * round + 100, &[round as u8 + 1; 10]);
        assert_eq!(world.memory.bytes[4096 * round as usize + 100..][..10], [round as u8 + 1; 10]);
    }
    assert!(world.memory.cached.is_empty() && world.held.len() == 4, "none of them has got on");
    drop(floods);
}

#[test]
fn who_has_much_cached_keeps_no_other_client_waiting() {
    check_that_caching_keeps_nobody_waiting(World::new(256 * MIB));
}

#[test]
fn who_has_much_cached_keeps_no_other_client_of_its_front_thread_waiting() {
    check_that_caching_keeps_nobody_waiting(World::with_threads(256 * MIB, 1));
}

#[test]
fn what_is_cached_at_once_leaves_room_for_others() {
    let mut world = World::new(MIB);
    let mut flood = Raw::ready(&mut world);
    world.hold = true;
    flood.send(&mut world, &(0..40).flat_map(|cookie| request(5, cookie, 0, MIB as u32)).collect::<Vec<u8>>());
    world.settle();
    assert_eq!(world.held.len(), 16, "of a mebibyte each");
    world.hold = false;
    assert!(flood.receive(&mut world, 40 * 16).chunks(16).all(|reply| reply[4..8] == [0; 4]));
}

#[test]
fn a_job_that_fails_is_one_error_and_frees_its_place() {
    let mut world = World::new(MIB);
    let mut raw = Raw::ready(&mut world);
    world.memory.broken = Some(tidegate_engine::block::Span::new(0, 1));
    raw.send(&mut world, &write(1, 10, &[1; 10]));
    assert_eq!(raw.receive(&mut world, 16), simple(5, 1));
    world.memory.broken = None;
    write_bytes(&mut world, &mut raw, 10, &[1; 10]);
}

#[test]
fn jobs_and_a_client_that_says_goodbye_end_in_order() {
    let mut world = World::new(MIB);
    let mut raw = Raw::ready(&mut world);
    raw.send(&mut world, &[write(1, 10, &[1; 10]), request(5, 2, 0, 1 << 20), request(DISC, 3, 0, 0)].concat());
    let replies = raw.receive(&mut world, 32);
    world.settle();
    assert!(raw.is_closed() && replies.chunks(16).all(|reply| reply[4..8] == [0; 4]));
}

#[test]
fn x13_disc_answers_what_is_outstanding_then_closes() {
    let mut world = World::new(MIB);
    let mut raw = Raw::ready(&mut world);
    world.hold = true;
    raw.send(&mut world, &[request(FLUSH, 1, 0, 0), reads(1, 512), request(DISC, 2, 0, 0), request(FLUSH, 3, 0, 0)].concat());
    world.settle();
    assert_eq!((world.held.len(), world.front.connections()), (2, 1));
    world.hold = false;
    world.settle();
    let replies = raw.now();
    assert_eq!(replies.len(), 16 + 512 + 16, "and none to DISC");
    assert!(raw.is_closed());
    assert_eq!(world.front.connections(), 0);
}

#[test]
fn a_client_that_vanishes_cancels_nothing_and_its_replies_reach_nobody() {
    let mut world = World::new(MIB);
    let mut gone = Raw::ready(&mut world);
    // A reply left unread makes the socket fail at once when the client goes; one that only ends is answered before it is closed.
    gone.send(&mut world, &request(FLUSH, 0, 0, 0));
    world.settle();
    world.hold = true;
    gone.send(&mut world, &[write(1, 0, &[5; 512]), write(2, 512, &[6; 700])[..600].to_vec()].concat());
    world.settle();
    drop(gone);
    world.settle();
    assert_eq!((world.front.connections(), world.held.len()), (0, 1));
    let mut next = Raw::connect(&mut world);
    next.receive(&mut world, 18);
    next.send(&mut world, &[3u32.to_be_bytes().to_vec(), option(1, b"")].concat());
    next.receive(&mut world, 10);
    world.hold = false;
    world.settle();
    assert_eq!(next.now(), b"", "the reply was for somebody else");
    assert_eq!(world.memory.bytes[..512], [5; 512], "what was admitted was done");
    assert_eq!(world.memory.bytes[512..1024], [0; 512], "what was not whole was not");
    assert_eq!(world.front.connections(), 1);
    assert!(world.front.is_idle());
}

#[test]
fn x17_a_wrong_magic_closes_that_connection_alone() {
    let mut world = World::new(MIB);
    let mut rude = Raw::ready(&mut world);
    let mut good = Raw::ready(&mut world);
    rude.send(&mut world, &[0xff; 28]);
    world.settle();
    assert!(rude.is_closed());
    good.send(&mut world, &request(FLUSH, 1, 0, 0));
    assert_eq!(good.receive(&mut world, 16), simple(0, 1));
}

#[test]
fn x15_a_stop_answers_what_was_admitted_refuses_the_rest_and_closes() {
    let mut world = World::new(MIB);
    let mut busy = Raw::ready(&mut world);
    let mut idle = Raw::ready(&mut world);
    let mut haggling = Raw::connect(&mut world);
    haggling.receive(&mut world, 18);
    world.hold = true;
    world.room.requests = 1;
    busy.send(&mut world, &[write(1, 0, &[5; 512]), request(FLUSH, 2, 0, 0)].concat());
    world.settle();
    assert_eq!(world.held.len(), 1);
    world.front.shutdown();
    world.wake();
    world.settle();
    assert!(idle.is_closed());
    assert_eq!(busy.now(), simple(108, 2));
    assert!(!world.front.is_idle());
    world.hold = false;
    world.settle();
    assert_eq!(busy.now(), simple(0, 1));
    assert!(busy.is_closed() && world.front.is_idle());
    // H12: who still haggles is told when it asks.
    haggling.send(&mut world, &[3u32.to_be_bytes().to_vec(), option(3, b"")].concat());
    let reply = haggling.receive(&mut world, 20 + "the server is stopping".len());
    assert_eq!(reply[12..16], (1u32 << 31 | 7).to_be_bytes());
}

#[test]
fn the_socket_is_gone_after_a_stop_of_listening_and_clients_stay() {
    let mut world = World::new(MIB);
    let mut raw = Raw::ready(&mut world);
    world.front.stop_listening();
    world.wake();
    world.settle();
    assert!(!world.path("nbd.sock").exists());
    raw.send(&mut world, &request(FLUSH, 1, 0, 0));
    assert_eq!(raw.receive(&mut world, 16), simple(0, 1));
}

#[test]
fn connections_beyond_the_cap_are_closed_and_a_free_place_is_used_again() {
    let mut world = World::with(MIB, |options| options.connections_max = 2);
    let first = Raw::ready(&mut world);
    let _second = Raw::ready(&mut world);
    let mut third = Raw::connect(&mut world);
    world.settle();
    assert!(third.is_closed());
    drop(first);
    world.settle();
    Raw::ready(&mut world);
    assert_eq!(world.front.connections(), 2);
}

#[test]
fn one_machine_alone_does_not_take_all_places() {
    let mut world = World::with(MIB, |options| {
        options.addresses.push("127.0.0.1:0".parse().expect("an address"));
        (options.connections_max, options.connections_per_peer) = (8, 3);
    });
    let Some(Address::Tcp(address)) = world.front.addresses().pop() else { panic!("TCP comes last") };
    let mut from = |from: [u8; 4]| {
        let stream = tcp_from(from, address);
        world.settle();
        stream
    };
    let ours = [(); 5].map(|()| from([127, 0, 0, 1]));
    let other = from([127, 0, 0, 2]);
    let is_greeted = |stream: &TcpStream| (&*stream).read(&mut [0; 18]).is_ok_and(|count| count == 18);
    assert_eq!(ours.each_ref().map(is_greeted), [true, true, true, false, false]);
    assert!(is_greeted(&other), "another machine has its own places");
    // Who comes by the Unix socket is nobody's neighbour.
    let unix = [(); 4].map(|()| Raw::ready(&mut world));
    assert_eq!(world.front.connections(), 8);
    drop(unix);
    // A place that became free is the next one's.
    drop(ours);
    world.settle();
    let again = tcp_from([127, 0, 0, 1], address);
    world.settle();
    assert!(is_greeted(&again));
}

/// A connection to the front from one of the many addresses of loopback.
fn tcp_from(from: [u8; 4], to: SocketAddr) -> TcpStream {
    let socket = socket_with(AddressFamily::INET, SocketType::STREAM, SocketFlags::CLOEXEC, None).expect("a socket");
    bind(&socket, &SocketAddr::from((from, 0))).expect("loopback has many addresses");
    connect(&socket, &to).expect("the front listens");
    let stream = TcpStream::from(socket);
    stream.set_read_timeout(Some(std::time::Duration::from_secs(10))).expect("a socket");
    stream
}

#[test]
fn who_still_shakes_hands_gives_way_to_who_comes() {
    let mut world = World::with(MIB, |options| options.connections_max = 2);
    let mut good = Raw::ready(&mut world);
    let mut half_open: Vec<Raw> = (0..100).map(|_| Raw::connect(&mut world)).collect();
    world.settle();
    assert_eq!(world.front.connections(), 2);
    let mut newest = half_open.pop().expect("a hundred");
    assert_eq!(newest.now().len(), 18, "its greeting");
    assert!(!newest.is_closed() && half_open.iter_mut().all(|raw| raw.now().len() <= 18 && raw.is_closed()));
    let mut last = Raw::ready(&mut world);
    for client in [&mut good, &mut last] {
        client.send(&mut world, &request(FLUSH, 1, 0, 0));
        assert_eq!(client.receive(&mut world, 16), simple(0, 1));
    }
    assert!(newest.is_closed());
}

#[test]
fn a_refused_write_leaves_its_payload_behind_and_the_connection_goes_on() {
    let mut world = World::with(MIB, |options| options.exports.get_mut(0).read_only = true);
    let mut raw = Raw::ready(&mut world);
    raw.send(&mut world, &[write(1, 0, &vec![5; 3 << 20]), request(FLUSH, 2, 0, 0)].concat());
    assert_eq!(raw.receive(&mut world, 32), [simple(1, 1), simple(0, 2)].concat());
}

#[test]
fn a_thousand_connections_come_and_go_and_leave_no_descriptor_behind() {
    let mut world = World::new(MIB);
    let descriptors = || std::fs::read_dir("/proc/self/fd").expect("proc").count();
    drop(Raw::ready(&mut world));
    world.settle();
    let before = descriptors();
    for _ in 0..1000 {
        drop(Raw::ready(&mut world));
    }
    world.settle();
    assert_eq!(world.front.connections(), 0);
    assert!(descriptors() <= before + 64, "{} descriptors, {before} before", descriptors());
}
