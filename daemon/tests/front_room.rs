//! The engine's room for payloads, and who gets what comes free of it: large requests, and changes of parts of atoms, among many who want less.

use std::os::fd::AsRawFd;

use crate::front::{DISC, asked, reads};
use crate::world::{Raw, World, request, simple, write};
use tidegate_daemon::port::Port;
use tidegate_engine::request::{Command, Request};

const MIB: u64 = 1 << 20;
const READ: u16 = 0;
const FLUSH: u16 = 3;
/// So much is wanted at once, and there is hardly room for more.
const LARGE: u64 = 8 * 4096;

fn is_large(request: &Request<tidegate_daemon::back::run::Run>) -> bool {
    request.span.bytes() == LARGE
}

fn is_there(world: &World) -> bool {
    world.held.iter().any(is_large)
}

fn flushes(world: &World) -> usize {
    world.held.iter().filter(|request| matches!(request.command, Command::Flush)).count()
}

/// The oldest request of so many bytes is answered.
pub fn one_ends(world: &mut World, bytes: u64) {
    let place = world.held.iter().position(|request| request.span.bytes() == bytes).expect("it has been asked for");
    let one = world.held.remove(place);
    let others = std::mem::replace(&mut world.held, vec![one]);
    world.release();
    world.held.extend(others);
    world.settle();
}

/// Two of the small ones end in each second, and there are always more of them.
fn check_that_the_large_one_gets_its_room(world: &mut World) {
    for round in 0.. {
        for _ in 0..2 {
            if is_there(world) {
                return;
            }
            one_ends(world, 4096);
        }
        assert!(round < 9, "{} bytes of others", asked(world));
        world.pass(1);
    }
}

/// Something odd and large, whose edges are known, lacks room for its contents; and the client who has it all, with many more reads.
fn with_a_cramped_job(world: &mut World) -> (Raw, Raw) {
    let mut odd = Raw::ready(world);
    let mut busy = Raw::ready(world);
    world.hold = true;
    world.room.bytes = LARGE + 1024;
    odd.send(world, &write(1, 1, &vec![7; LARGE as usize - 512]));
    world.until(|world| world.held.len() == 1);
    busy.send(world, &reads(120, 4096));
    world.until(|world| asked(world) == LARGE + 512);
    one_ends(world, 512);
    world.until(|world| asked(world) == LARGE + 512);
    one_ends(world, 512);
    assert_eq!((asked(world), is_there(world)), (LARGE, false));
    (busy, odd)
}

fn check_that_a_job_is_not_passed_for_ever(mut world: World) {
    let (mut busy, mut odd) = with_a_cramped_job(&mut world);
    let mut late = Raw::ready(&mut world);
    (0..2).for_each(|_| one_ends(&mut world, 4096));
    assert_eq!(asked(&world), LARGE - 2 * 4096, "what has come free is kept for it");
    // Nobody waits for it who needs no room; the others do, but not as long as a disk may take.
    late.send(&mut world, &[request(FLUSH, 1, 0, 0), write(2, 100_000, &[9; 10])].concat());
    world.until(|world| flushes(world) == 1);
    world.settle();
    assert_eq!(asked(&world), LARGE - 2 * 4096);
    world.pass(1);
    assert_eq!(asked(&world), LARGE - 2 * 4096, "it has got nearer");
    world.pass(1);
    world.until(|world| asked(world) == LARGE + 512);
    assert!(!is_there(&world), "a second in which nothing came");
    one_ends(&mut world, 512);
    world.until(|world| asked(world) == LARGE + 512);
    one_ends(&mut world, 512);
    assert_eq!(world.memory.bytes[100_000..100_010], [9; 10], "and so does another job");
    world.pass(1);
    check_that_the_large_one_gets_its_room(&mut world);
    world.hold = false;
    assert_eq!(odd.receive(&mut world, 16), simple(0, 1));
    assert_eq!(busy.receive(&mut world, 120 * (16 + 4096)).len(), 120 * (16 + 4096));
    assert_eq!(late.receive(&mut world, 32).len(), 32);
    assert!(world.memory.bytes[1..LARGE as usize - 511].iter().all(|byte| *byte == 7) && world.memory.bytes[0] == 0);
}

#[test]
fn a_job_that_lacks_room_gets_it_before_those_who_want_less_later() {
    check_that_a_job_is_not_passed_for_ever(World::new(MIB));
}

#[test]
fn a_job_that_lacks_room_gets_it_before_what_other_front_threads_want_later() {
    check_that_a_job_is_not_passed_for_ever(World::with_threads(MIB, 2));
}

#[test]
fn a_job_that_lacks_room_and_loses_its_client_leaves_what_was_kept_to_others() {
    let mut world = World::new(MIB);
    let (mut busy, mut odd) = with_a_cramped_job(&mut world);
    // With a reply that it has not read, its end is no orderly one.
    odd.send(&mut world, &request(FLUSH, 2, 0, 0));
    world.until(|world| flushes(world) == 1);
    one_ends(&mut world, 0);
    (0..2).for_each(|_| one_ends(&mut world, 4096));
    assert_eq!(asked(&world), LARGE - 2 * 4096);
    drop(odd);
    world.settle();
    assert_eq!((asked(&world), is_there(&world)), (LARGE, false));
    world.hold = false;
    assert_eq!(busy.receive(&mut world, 120 * (16 + 4096)).len(), 120 * (16 + 4096));
}

/// There are always more large writes of parts of atoms, and somebody wants to read as much.
fn check_that_jobs_do_not_pass_for_ever(mut world: World) {
    const WRITES: u64 = 20;
    let mut odd: Vec<Raw> = (0..WRITES).map(|_| Raw::ready(&mut world)).collect();
    let mut large = Raw::ready(&mut world);
    world.hold = true;
    world.room.bytes = LARGE + 1024;
    for (number, odd) in (0..).zip(&mut odd) {
        odd.send(&mut world, &write(number, 1 + number * LARGE, &vec![7; LARGE as usize - 512]));
    }
    world.until(|world| asked(world) > 0);
    large.send(&mut world, &[request(FLUSH, 1, 0, 0), request(READ, 2, 0, LARGE as u32)].concat());
    world.until(|world| flushes(world) == 1);
    one_ends(&mut world, 0);
    let is_read = |request: &Request<_>| matches!(request.command, Command::Read) && request.span.bytes() == LARGE;
    let mut written = 0;
    for second in 0.. {
        if world.held.iter().any(is_read) {
            break;
        }
        assert!(second < 200, "{written} have passed");
        let one = world.held.first().map(|request| request.span.bytes());
        one.into_iter().for_each(|bytes| one_ends(&mut world, bytes));
        written += u64::from(one == Some(LARGE));
        assert!(written < WRITES / 2, "{written} have passed");
        world.pass(1);
    }
    world.hold = false;
    assert_eq!(large.receive(&mut world, 32 + LARGE as usize).len(), 32 + LARGE as usize);
    odd.iter_mut().for_each(|odd| assert_eq!(odd.receive(&mut world, 16).len(), 16));
}

#[test]
fn who_lacks_room_is_not_passed_for_ever_by_jobs() {
    check_that_jobs_do_not_pass_for_ever(World::new(MIB));
}

#[test]
fn who_lacks_room_is_not_passed_for_ever_by_jobs_of_other_front_threads() {
    check_that_jobs_do_not_pass_for_ever(World::with_threads(MIB, 2));
}

/// A large read of one front thread lacks the room that a client of another one has, with many more reads.
fn with_a_cramped_thread(world: &mut World) -> (Raw, Raw) {
    let mut large = Raw::ready(world);
    let mut busy = Raw::ready(world);
    world.hold = true;
    world.room.bytes = LARGE + 1024;
    busy.send(world, &reads(120, 4096));
    world.until(|world| asked(world) == LARGE);
    large.send(world, &[request(FLUSH, 1, 0, 0), request(READ, 2, 0, LARGE as u32)].concat());
    world.until(|world| flushes(world) == 1);
    world.settle();
    // It is not the first who lacks some, and the next one.
    one_ends(world, 4096);
    assert_eq!((asked(world), is_there(world)), (LARGE, false));
    (busy, large)
}

#[test]
fn who_lacks_room_gets_it_before_what_other_front_threads_want_later() {
    let mut world = World::with_threads(MIB, 2);
    let (mut busy, mut large) = with_a_cramped_thread(&mut world);
    (0..2).for_each(|_| one_ends(&mut world, 4096));
    assert_eq!(asked(&world), LARGE - 2 * 4096, "what has come free is kept for it");
    world.pass(1);
    assert_eq!(asked(&world), LARGE - 2 * 4096, "it has got nearer");
    world.pass(1);
    assert_eq!((asked(&world), is_there(&world)), (LARGE, false), "a second in which nothing came");
    world.pass(1);
    check_that_the_large_one_gets_its_room(&mut world);
    world.hold = false;
    assert_eq!(large.receive(&mut world, 32 + LARGE as usize).len(), 32 + LARGE as usize);
    assert_eq!(busy.receive(&mut world, 120 * (16 + 4096)).len(), 120 * (16 + 4096));
    assert!(world.front.deadline().is_none(), "nobody lacks anything");
}

#[test]
fn who_lacks_room_keeps_no_other_client_of_its_front_thread_waiting() {
    let mut world = World::with_threads(MIB, 2);
    let (mut busy, large) = with_a_cramped_thread(&mut world);
    let mut others: Vec<Raw> = (0..2).map(|_| Raw::ready(&mut world)).collect();
    // One of them is a client of the same thread. The other one's thread has reads waiting: those, and reads behind them, go on with the next second.
    others.iter_mut().for_each(|other| other.send(&mut world, &request(FLUSH, 1, 0, 0)));
    world.until(|world| flushes(world) == 3);
    one_ends(&mut world, 4096);
    assert_eq!(asked(&world), LARGE - 4096, "none of it is for what waits there");
    others.iter_mut().for_each(|other| other.send(&mut world, &request(READ, 2, 0, 512)));
    world.pass(2);
    world.until(|world| asked(world) > LARGE);
    // What it asked for is done although it has gone, and keeps nobody waiting.
    drop(large);
    world.hold = false;
    for other in &mut others {
        assert_eq!(other.receive(&mut world, 16 + 16 + 512).len(), 16 + 16 + 512);
    }
    assert_eq!(busy.receive(&mut world, 120 * (16 + 4096)).len(), 120 * (16 + 4096));
}

/// The only front thread has a large write that lacks room, and its client has gone: in order, or with a reply that it has not read and one more
/// write.
fn with_a_write_of_who_has_gone(world: &mut World, in_order: bool) -> (Raw, Raw) {
    let mut gone = Raw::ready(world);
    let mut busy = Raw::ready(world);
    let back = Raw::ready(world);
    world.hold = true;
    world.room.bytes = LARGE + 1024;
    busy.send(world, &reads(8, 4096));
    world.until(|world| asked(world) == LARGE);
    let behind = if in_order { vec![] } else { write(3, 2 * LARGE, &[7; 512]) };
    gone.send(world, &[request(FLUSH, 1, 0, 0), write(2, 0, &vec![7; LARGE as usize]), behind].concat());
    world.until(|world| flushes(world) == 1);
    one_ends(world, 0);
    if in_order {
        gone.receive(world, 16);
    }
    while !in_order && !world.turn(Some(gone.stream.as_raw_fd()), 60_000) {}
    drop(gone);
    world.settle();
    assert!(!is_there(world));
    (busy, back)
}

/// What comes back writes some of the same in a second in which it would fit, and only that is there in the end.
fn check_that_a_write_set_aside_comes_first(offset: u64, contents: &[u8]) {
    let mut world = World::with_threads(MIB, 1);
    let (mut busy, mut back) = with_a_write_of_who_has_gone(&mut world, true);
    world.pass(1);
    (0..4).for_each(|_| one_ends(&mut world, 4096));
    back.send(&mut world, &[request(FLUSH, 1, 0, 0), write(2, offset, contents)].concat());
    world.until(|world| flushes(world) == 1);
    one_ends(&mut world, 0);
    assert!(world.held.iter().all(|request| request.span.bytes() == 4096 && request.change().is_empty()), "it waits");
    (0..4).for_each(|_| one_ends(&mut world, 4096));
    world.until(is_there);
    one_ends(&mut world, LARGE);
    world.hold = false;
    assert_eq!(back.receive(&mut world, 32), [simple(0, 1), simple(0, 2)].concat());
    let (start, end) = (offset as usize, offset as usize + contents.len());
    assert_eq!(world.memory.bytes[start..end], *contents);
    assert!(world.memory.bytes[..LARGE as usize].iter().filter(|byte| **byte == 7).count() == LARGE as usize - contents.len());
    assert_eq!(busy.receive(&mut world, 8 * (16 + 4096)).len(), 8 * (16 + 4096));
}

#[test]
fn a_write_that_lacks_room_is_not_done_over_one_that_was_sent_after_its_client_had_gone() {
    check_that_a_write_set_aside_comes_first(4096, &[9; 4096]);
}

#[test]
fn a_write_that_lacks_room_is_not_done_over_part_of_an_atom_that_was_sent_after_its_client_had_gone() {
    check_that_a_write_set_aside_comes_first(4097, &[9; 10]);
}

#[test]
fn a_write_that_lacks_room_is_not_done_once_its_connection_is_broken() {
    let mut world = World::with_threads(MIB, 1);
    let (mut busy, mut back) = with_a_write_of_who_has_gone(&mut world, false);
    back.send(&mut world, &write(1, 4096, &[9; 512]));
    world.until(|world| asked(world) == LARGE + 512);
    world.hold = false;
    assert_eq!(back.receive(&mut world, 16), simple(0, 1));
    assert_eq!(busy.receive(&mut world, 8 * (16 + 4096)).len(), 8 * (16 + 4096));
    world.settle();
    assert!(world.memory.bytes[4096..4608].iter().all(|byte| *byte == 9) && !world.memory.bytes.contains(&7));
}

/// It does not wait for the replies, and one of them cannot be sent.
#[test]
fn a_write_that_lacks_room_is_done_though_its_client_has_gone_if_it_said_so() {
    let mut world = World::with_threads(MIB, 1);
    let mut gone = Raw::ready(&mut world);
    let mut busy = Raw::ready(&mut world);
    world.hold = true;
    world.room.bytes = LARGE + 1024;
    busy.send(&mut world, &reads(8, 4096));
    world.until(|world| asked(world) == LARGE);
    let everything = [request(FLUSH, 1, 0, 0), write(2, 0, &vec![7; LARGE as usize]), request(DISC, 3, 0, 0)].concat();
    gone.send(&mut world, &everything);
    world.until(|world| flushes(world) == 1);
    // All of it has been received before the first reply cannot be sent.
    world.settle();
    drop(gone);
    world.settle();
    one_ends(&mut world, 0);
    assert!(!is_there(&world));
    world.hold = false;
    assert_eq!(busy.receive(&mut world, 8 * (16 + 4096)).len(), 8 * (16 + 4096));
    world.settle();
    assert!(world.memory.bytes[..LARGE as usize].iter().all(|byte| *byte == 7));
}

#[test]
fn front_threads_get_what_comes_free_in_turns() {
    let mut world = World::with_threads(MIB, 2);
    let mut clients = [Raw::ready(&mut world), Raw::ready(&mut world)];
    world.hold = true;
    world.room.requests = 0;
    world.settle();
    for client in &mut clients {
        client.send(&mut world, &reads(100, 512));
        world.settle();
    }
    world.room.requests = 6;
    world.settle();
    (0..12).for_each(|_| one_ends(&mut world, 512));
    // The number of the thread is in the high bits.
    let of_first = world.held.iter().filter(|request| request.id.0 >> 56 == 0).count();
    assert_eq!((of_first, world.held.len()), (3, 6));
    world.hold = false;
    for client in &mut clients {
        assert_eq!(client.receive(&mut world, 100 * (16 + 512)).len(), 100 * (16 + 512));
    }
}

/// One reply after the other goes into their sockets, each small, and nobody takes one.
#[test]
fn what_sockets_have_is_no_credit_however_it_came_there() {
    const CLIENTS: u64 = 12;
    let mut world = World::new(64 * MIB);
    let mut deaf: Vec<Raw> = (0..CLIENTS).map(|_| Raw::ready(&mut world)).collect();
    for _ in 0..200 {
        for client in &mut deaf {
            client.push(&mut world, &reads(1, 28 << 10));
        }
        world.settle();
    }
    world.hold = true;
    for client in &mut deaf {
        client.push(&mut world, &reads(4, 1 << 20));
    }
    world.settle();
    let most = (33 << 20) + CLIENTS * (128 << 10);
    assert!(asked(&world) <= most, "{} of {most} bytes", asked(&world));
}

/// Bytes of memory of this process.
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("Linux");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("a line of proc(5)");
    line.trim().trim_end_matches(" kB").parse::<u64>().expect("a number") << 10
}

/// Its socket is full, and then each of its small replies is a piece of 8 MiB that nobody else has any more.
#[test]
fn replies_that_nobody_takes_keep_no_more_memory_than_they_count_as() {
    const REPLIES: u64 = 40;
    let mut world = World::new(8 * MIB);
    let mut deaf = Raw::ready(&mut world);
    deaf.push(&mut world, &reads(1, 8 << 20));
    world.settle();
    world.memory.slab_bytes = Some(8 << 20);
    world.memory.bytes[..512].fill(5);
    let before = resident();
    for _ in 0..REPLIES {
        deaf.push(&mut world, &reads(1, 512));
        world.settle();
    }
    let grown = resident().saturating_sub(before);
    assert!(grown < 64 << 20, "{grown} bytes");
    let replies = deaf.receive(&mut world, 16 + (8 << 20) + REPLIES as usize * (16 + 512));
    assert!(replies[16 + (8 << 20)..].chunks(16 + 512).all(|reply| reply[16..] == [5; 512]));
}

/// Others miss what is overwritten or evicted meanwhile, and all others' hits are copied.
#[test]
fn pages_of_memory_are_on_their_way_for_one_turn_at_most() {
    let mut world = World::new(8 * MIB);
    world.memory.bytes.chunks_mut(4096).enumerate().for_each(|(block, bytes)| bytes.fill(block as u8));
    world.with_pages();
    let many = |from: u64, count: u64| (from..from + count).flat_map(|block| request(READ, block, block * 4096, 4096)).collect::<Vec<u8>>();
    let check = |replies: &[u8]| replies.chunks(16 + 4096).all(|reply| reply[16..].iter().all(|byte| *byte == reply[15]));
    // More than is sent at once.
    let mut client = Raw::ready(&mut world);
    client.push(&mut world, &many(0, 128));
    world.settle();
    assert!(check(&client.receive(&mut world, 128 * (16 + 4096))));
    // Behind what is too much for one turn, or for its socket.
    client.push(&mut world, &request(READ, 1, 0, 8 << 20));
    world.settle();
    client.push(&mut world, &many(0, 8));
    world.settle();
    assert_eq!((world.late_turns, world.batch_max, world.leased), (0, 128, 128 + 8));
    client.receive(&mut world, 16 + (8 << 20));
    assert!(check(&client.receive(&mut world, 8 * (16 + 4096))));
}

/// The kernel has a limit for each user's watches. Unheard, a client would wait for ever.
#[test]
fn a_client_whose_socket_cannot_be_watched_is_hung_up_and_nobody_else() {
    let mut world = World::new(MIB);
    let mut other = Raw::ready(&mut world);
    world.lacks_watches = true;
    let mut client = Raw::connect(&mut world);
    (0..4).for_each(|_| world.pass(1));
    client.now();
    assert!(client.is_closed() && world.front.connections() == 1);
    world.lacks_watches = false;
    other.send(&mut world, &reads(1, 512));
    assert_eq!(other.receive(&mut world, 16), simple(0, 0));
    other.receive(&mut world, 512);
    drop(Raw::ready(&mut world));
}
