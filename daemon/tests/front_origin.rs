//! An origin that does not answer: whoever reads what only it has waits, and so does what is behind that on the same connection; nobody else does who
//! writes or flushes.

use crate::front::{asked, reads};
use crate::world::{Raw, World, request, simple, write};
use tidegate_daemon::port::Port;

const MIB: u64 = 1 << 20;
const READ: u16 = 0;
const FLUSH: u16 = 3;
const TRIM: u16 = 4;

/// Writes, trims and flushes are answered, time after time.
fn check_that_it_goes_on(world: &mut World, good: &mut Raw, bytes: usize) {
    for round in 0..10 {
        let contents = vec![round as u8 + 1; bytes];
        let changes = [request(TRIM, round, bytes as u64, 4096), write(round, 0, &contents), request(FLUSH, round, 0, 0)].concat();
        assert_eq!(good.push(world, &changes), changes.len());
        assert_eq!(good.receive(world, 3 * 16), simple(0, round).repeat(3));
        assert_eq!(world.memory.bytes[bytes - 1], round as u8 + 1);
    }
}

/// Eight clients have as many reads under way as there may be at once, and none is answered.
fn check_that_many_reads_stop_nobody(mut world: World) {
    let mut readers: Vec<Raw> = (0..8).map(|_| Raw::ready(&mut world)).collect();
    // With two threads each has one of them.
    let [mut good, mut other] = [(); 2].map(|()| Raw::ready(&mut world));
    world.hold_reads = true;
    readers.iter_mut().for_each(|reader| reader.send(&mut world, &reads(128, 512)));
    world.until(|world| world.held.len() >= 896);
    world.settle();
    assert_eq!((world.held.len(), world.room.requests), (896, 128));
    check_that_it_goes_on(&mut world, &mut good, 4096);
    check_that_it_goes_on(&mut world, &mut other, 4096);
    // What is behind a read waits with it.
    let flushes = world.memory.flushes;
    good.send(&mut world, &[request(READ, 1, 0, 512), request(FLUSH, 2, 0, 0)].concat());
    world.settle();
    assert!(world.held.len() == 896 && (world.memory.flushes == flushes || world.front.has_threads()));
    world.hold_reads = false;
    good.receive(&mut world, 16 + 512 + 16);
    readers.iter_mut().for_each(|reader| assert_eq!(reader.receive(&mut world, 128 * (16 + 512)).len(), 128 * (16 + 512)));
    world.settle();
    assert!(world.room.requests == 1024 && world.room.read_requests == 896 && world.held.is_empty());
}

#[test]
fn many_reads_that_the_origin_does_not_answer_stop_nobody_who_writes_or_flushes() {
    check_that_many_reads_stop_nobody(World::new(MIB));
}

#[test]
fn many_reads_that_the_origin_does_not_answer_stop_nobody_of_the_same_front_thread_who_writes_or_flushes() {
    check_that_many_reads_stop_nobody(World::with_threads(MIB, 1));
}

#[test]
fn many_reads_that_the_origin_does_not_answer_stop_nobody_of_several_front_threads_who_writes_or_flushes() {
    check_that_many_reads_stop_nobody(World::with_threads(MIB, 2));
}

/// Reads have all the bytes that they may have, and others wait for more of these.
fn check_that_large_reads_stop_nobody(mut world: World) {
    let [mut first, mut second, mut third, mut good] = [(); 4].map(|()| Raw::ready(&mut world));
    world.hold_reads = true;
    (world.room.bytes, world.room.read_bytes) = (3 * MIB, 2 * MIB);
    first.send(&mut world, &reads(2, MIB as u32));
    world.until(|world| asked(world) == 2 * MIB);
    second.send(&mut world, &reads(1, MIB as u32));
    world.settle();
    third.send(&mut world, &reads(1, 4096));
    world.settle();
    assert_eq!(asked(&world), 2 * MIB);
    check_that_it_goes_on(&mut world, &mut good, MIB as usize);
    world.pass(5);
    check_that_it_goes_on(&mut world, &mut good, MIB as usize);
    // There would be bytes, but no place.
    let requests = std::mem::take(&mut world.room.requests);
    (world.room.bytes, world.room.read_bytes) = (2 * MIB, MIB);
    world.settle();
    assert_eq!(asked(&world), 2 * MIB);
    (world.room.bytes, world.room.read_bytes, world.room.requests) = (MIB, 0, requests);
    world.settle();
    world.hold_reads = false;
    first.receive(&mut world, 2 * (16 + MIB as usize));
    second.receive(&mut world, 16 + MIB as usize);
    third.receive(&mut world, 16 + 4096);
    world.pass(3);
    assert_eq!((world.room.bytes, world.room.read_bytes), (3 * MIB, 2 * MIB));
    assert!(world.front.deadline().is_none() || world.front.has_threads(), "nobody lacks anything");
}

#[test]
fn large_reads_that_the_origin_does_not_answer_stop_nobody_who_writes_or_flushes() {
    check_that_large_reads_stop_nobody(World::new(4 * MIB));
}

#[test]
fn large_reads_that_the_origin_does_not_answer_stop_no_client_of_front_threads_who_writes_or_flushes() {
    check_that_large_reads_stop_nobody(World::with_threads(4 * MIB, 2));
}

#[test]
fn who_waits_for_the_room_of_reads_gets_it_before_those_who_want_less_later() {
    for threads in [0, 1, 2] {
        let mut world = if threads == 0 { World::new(MIB) } else { World::with_threads(MIB, threads) };
        let [mut busy, mut large, mut small] = [(); 3].map(|()| Raw::ready(&mut world));
        world.hold = true;
        (world.room.bytes, world.room.read_bytes) = (MIB, 8 * 4096);
        busy.send(&mut world, &reads(8, 4096));
        world.until(|world| world.held.len() == 8);
        large.send(&mut world, &reads(1, 8 * 4096));
        world.settle();
        small.send(&mut world, &reads(64, 4096));
        world.settle();
        for _ in 0..4 {
            crate::front_room::one_ends(&mut world, 4096);
            assert!(asked(&world) < 8 * 4096, "what has come free is kept");
        }
        for _ in 0..4 {
            crate::front_room::one_ends(&mut world, 4096);
        }
        world.settle();
        assert_eq!(world.held.iter().map(|request| request.span.bytes()).collect::<Vec<_>>(), [8 * 4096], "{threads} threads");
        world.hold = false;
        large.receive(&mut world, 16 + 8 * 4096);
        small.receive(&mut world, 64 * (16 + 4096));
        busy.receive(&mut world, 8 * (16 + 4096));
    }
}

/// A reader has the purse, or more than that: it had moved as much before, and stands still since.
#[test]
fn answers_that_the_origin_does_not_give_take_no_memory_from_payloads_that_arrive() {
    for moved in [0, 4] {
        let mut world = World::new(64 * MIB);
        let [mut reader, mut next, mut good] = [(); 3].map(|()| Raw::ready(&mut world));
        for _ in 0..moved {
            reader.send(&mut world, &reads(1, 16 << 20));
            reader.receive(&mut world, 16 + (16 << 20));
        }
        world.hold_reads = true;
        reader.push(&mut world, &reads(60, MIB as u32));
        world.settle();
        assert_eq!(world.held.len(), if moved > 0 { 60 } else { 33 });
        world.pass(3);
        // Somebody waits for an answer already, and has nothing.
        next.send(&mut world, &reads(1, MIB as u32));
        world.settle();
        check_that_it_goes_on(&mut world, &mut good, MIB as usize);
        check_that_it_goes_on(&mut world, &mut good, 8 << 20);
        world.hold_reads = false;
        reader.receive(&mut world, 60 * (16 + MIB as usize));
        next.receive(&mut world, 16 + MIB as usize);
        world.pass(3);
        assert!(world.front.deadline().is_none() && world.room == World::new(MIB).room);
    }
}

#[test]
fn one_client_whose_reads_the_origin_does_not_answer_leaves_room_to_others_of_its_front_thread() {
    let mut world = World::with_threads(64 * MIB, 1);
    let [mut reader, mut good] = [(); 2].map(|()| Raw::ready(&mut world));
    // It has moved much, so it may hold much.
    for _ in 0..3 {
        reader.send(&mut world, &reads(1, 16 << 20));
        reader.receive(&mut world, 16 + (16 << 20));
    }
    world.hold_reads = true;
    reader.send(&mut world, &reads(4, 16 << 20));
    world.until(|world| asked(world) == 64 << 20);
    world.settle();
    check_that_it_goes_on(&mut world, &mut good, MIB as usize);
    world.hold_reads = false;
    reader.receive(&mut world, 4 * (16 + (16 << 20)));
}

/// Nine clients have as many writes under way as there may be at once, and none is answered.
fn check_that_many_writes_stop_no_flush(mut world: World) {
    let mut writers: Vec<Raw> = (0..9).map(|_| Raw::ready(&mut world)).collect();
    // With two threads each has one of them.
    let mut flushers = [(); 2].map(|()| Raw::ready(&mut world));
    world.hold_changes = true;
    for (place, writer) in writers.iter_mut().enumerate() {
        let offset = |number: u64| (place as u64 * 128 + number) * 512;
        writer.send(&mut world, &(0..128).flat_map(|number| write(number, offset(number), &[1; 512])).collect::<Vec<u8>>());
    }
    world.until(|world| world.held.len() >= 1008);
    world.settle();
    assert_eq!((world.held.len(), world.room.requests, world.room.other_requests), (1008, 16, 0));
    for round in 0..20 {
        for flusher in &mut flushers {
            let flushes = [request(FLUSH, round, 0, 0), request(FLUSH, round, 0, 0)].concat();
            assert_eq!(flusher.push(&mut world, &flushes), flushes.len());
            assert_eq!(flusher.receive(&mut world, 2 * 16), simple(0, round).repeat(2));
        }
    }
    // What is no FLUSH waits, and so does what is behind it.
    let flushes = world.memory.flushes;
    flushers[0].send(&mut world, &[request(TRIM, 1, 0, 512), request(FLUSH, 2, 0, 0)].concat());
    world.settle();
    assert!(world.held.len() == 1008 && (world.memory.flushes == flushes || world.front.has_threads()));
    world.hold_changes = false;
    flushers[0].receive(&mut world, 2 * 16);
    writers.iter_mut().for_each(|writer| assert_eq!(writer.receive(&mut world, 128 * 16).len(), 128 * 16));
    world.settle();
    assert!(world.room == World::new(MIB).room && world.held.is_empty());
}

#[test]
fn many_writes_that_the_origin_does_not_take_stop_no_flush() {
    check_that_many_writes_stop_no_flush(World::new(MIB));
}

#[test]
fn many_writes_that_the_origin_does_not_take_stop_no_flush_of_the_same_front_thread() {
    check_that_many_writes_stop_no_flush(World::with_threads(MIB, 1));
}

#[test]
fn many_writes_that_the_origin_does_not_take_stop_no_flush_of_several_front_threads() {
    check_that_many_writes_stop_no_flush(World::with_threads(MIB, 2));
}

/// Part of an atom is written, and the origin does not give the rest of it.
#[test]
fn a_write_that_waits_for_its_atom_stops_those_alone_who_write_the_same() {
    for threads in [0, 1, 2] {
        let mut world = if threads == 0 { World::new(MIB) } else { World::with_threads(MIB, threads) };
        let [mut odd, mut same, mut after, mut good, mut other] = [(); 5].map(|()| Raw::ready(&mut world));
        let changes = |world: &World| world.held.iter().filter(|request| !request.reads()).count();
        world.hold_reads = true;
        odd.send(&mut world, &write(1, 100, &[1; 10]));
        world.until(|world| world.held.len() == 1);
        // One by one: each waits for the one before it.
        for (client, byte) in [(&mut same, 2), (&mut after, 3)] {
            client.send(&mut world, &write(1, 0, &[byte; 512]));
            world.settle();
        }
        for round in 0..20 {
            for client in [&mut good, &mut other] {
                let changes = [request(TRIM, round, 8192, 4096), write(round, 512, &[4; 512]), request(FLUSH, round, 0, 0)].concat();
                client.send(&mut world, &changes);
                assert_eq!(client.receive(&mut world, 3 * 16), simple(0, round).repeat(3), "{threads} threads");
            }
        }
        assert!(changes(&world) == 0 && world.held.len() == 1, "{threads} threads: the same place is his alone");
        world.hold_reads = false;
        for client in [&mut odd, &mut same, &mut after] {
            assert_eq!(client.receive(&mut world, 16), simple(0, 1), "{threads} threads");
        }
        world.settle();
        assert!(world.held.is_empty() && world.room == World::new(MIB).room);
    }
}
