//! What waits for the engine's room is done before what others ask for later at the same place: they may be its client, come back.

use std::net::Shutdown;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::front::{DISC, asked, reads};
use crate::front_room::one_ends;
use crate::world::{Raw, World, request, simple, write};
use tidegate_daemon::port::Port;
use tidegate_engine::request::Command;
use tidegate_pages::{Config, Pages};

const MIB: u64 = 1 << 20;
const READ: u16 = 0;
const FLUSH: u16 = 3;
const TRIM: u16 = 4;
const CACHE: u16 = 5;
/// Received into memory of its own.
const LARGE: u64 = 64 << 10;

/// One client has the engine's room for payloads, and what the other one sends waits for it.
fn with_who_waits(sent: &[u8]) -> (World, Raw, Raw) {
    let (mut world, busy) = with_who_has_it_all();
    let mut old = Raw::ready(&mut world);
    old.send(&mut world, sent);
    world.settle();
    assert_eq!(changes(&world), 0);
    (world, busy, old)
}

fn with_who_has_it_all() -> (World, Raw) {
    let mut world = World::new(MIB);
    let mut busy = Raw::ready(&mut world);
    world.hold = true;
    world.room.bytes = LARGE + 1024;
    busy.send(&mut world, &reads(16, 4096));
    world.until(|world| asked(world) == LARGE);
    (world, busy)
}

fn changes(world: &World) -> usize {
    world
        .held
        .iter()
        .filter(|request| matches!(request.command, Command::Write { .. } | Command::Trim { .. } | Command::Zero { .. }))
        .count()
}

/// Somebody asks for `later`, which changes bytes 4,096 to 4,608 to what is in the end there, and for a read behind it.
fn check_that_it_comes_behind(sent: &[u8], replies: usize, later: &[u8], byte: u8) {
    let (mut world, mut busy, mut old) = with_who_waits(sent);
    let mut new = Raw::ready(&mut world);
    new.send(&mut world, later);
    for _ in 0..4 {
        // In some of these seconds others take what there is.
        world.pass(1);
        assert_eq!(changes(&world), 0, "there would be room for it");
    }
    // In the order of asking, as an engine does it.
    while let Some(oldest) = world.held.first() {
        let bytes = oldest.span.bytes();
        one_ends(&mut world, bytes);
    }
    assert_eq!(new.receive(&mut world, 16), simple(0, 9));
    assert_eq!(old.receive(&mut world, replies).len(), replies);
    assert_eq!(busy.receive(&mut world, 16 * (16 + 4096)).len(), 16 * (16 + 4096));
    assert_eq!(world.memory.bytes[4096..4608], [byte; 512]);
    assert_eq!(world.memory.bytes[4608..4700], [7; 92], "that was done before");
}

#[test]
fn what_is_written_later_comes_behind_what_waits_in_memory_of_its_own() {
    let sent = write(1, 512, &vec![7; LARGE as usize]);
    check_that_it_comes_behind(&sent, 16, &write(9, 4096, &[8; 512]), 8);
    check_that_it_comes_behind(&sent, 16, &request(TRIM, 9, 4096, 512), 0);
}

#[test]
fn what_is_written_later_comes_behind_what_waits_behind_a_read() {
    let sent = [request(READ, 1, 0, LARGE as u32), write(2, 3584, &[7; 1536])].concat();
    check_that_it_comes_behind(&sent, 32 + LARGE as usize, &write(9, 4096, &[8; 512]), 8);
    check_that_it_comes_behind(&sent, 32 + LARGE as usize, &write(9, 4090, &[8; 518]), 8);
}

#[test]
fn who_comes_behind_one_who_goes_gets_on() {
    let (mut world, mut busy) = with_who_has_it_all();
    let [mut first, mut old, mut new] = [(); 3].map(|()| Raw::ready(&mut world));
    // What comes free is kept for somebody else.
    first.send(&mut world, &request(READ, 1, 0, LARGE as u32));
    world.settle();
    world.room.bytes = 0;
    old.send(&mut world, &[request(FLUSH, 1, 0, 0), request(READ, 2, 0, 512), write(3, 4096, &[7; 512])].concat());
    world.settle();
    new.send(&mut world, &request(TRIM, 9, 4096, 512));
    world.settle();
    assert_eq!(changes(&world), 0);
    // Who got something is the last to be asked next time: after the one behind it.
    world.room.bytes = 512;
    (0..4).for_each(|_| world.pass(1));
    assert_eq!((asked(&world), changes(&world)), (LARGE + 512, 0));
    // It is known to have gone when its reply cannot be sent.
    drop(old);
    one_ends(&mut world, 0);
    world.until(|world| changes(world) == 1);
    world.hold = false;
    assert_eq!(new.receive(&mut world, 16), simple(0, 9));
    assert_eq!(busy.receive(&mut world, 16 * (16 + 4096)).len(), 16 * (16 + 4096));
    assert_eq!(first.receive(&mut world, 16 + LARGE as usize).len(), 16 + LARGE as usize);
    assert!(!world.memory.bytes.contains(&7));
}

#[test]
fn nobody_comes_behind_what_waits_for_its_client() {
    let mut world = World::new(MIB);
    let (mut flood, mut good) = (Raw::ready(&mut world), Raw::ready(&mut world));
    world.hold = true;
    // As many as one has under way, and everything is to be zero behind them.
    flood.send(&mut world, &[reads(128, 512), request(TRIM, 200, 0, MIB as u32)].concat());
    world.until(|world| world.held.len() == 128);
    world.settle();
    good.send(&mut world, &write(1, 4096, &[8; 512]));
    world.until(|world| changes(world) == 1);
    world.hold = false;
    assert_eq!(good.receive(&mut world, 16), simple(0, 1));
    assert_eq!(flood.receive(&mut world, 128 * (16 + 512) + 16).len(), 128 * (16 + 512) + 16);
}

/// Its only two front threads: one has a client with all the room, and one who lacks some to read what lies at `lacking`; the other one has the last client, who is there first.
fn with_two_threads(lacking: u64) -> (World, [Raw; 3], Raw) {
    let mut world = World::with_threads(MIB, 2);
    let [mut busy, new, mut first, spare] = [(); 4].map(|()| Raw::ready(&mut world));
    world.hold = true;
    world.room.bytes = LARGE + 1024;
    busy.send(&mut world, &reads(16, 4096));
    world.until(|world| asked(world) == LARGE);
    first.send(&mut world, &request(READ, 1, lacking, LARGE as u32));
    world.settle();
    (world, [busy, first, spare], new)
}

fn check_that_it_comes_behind_another_thread(world: &mut World, new: &mut Raw, later: &[u8], byte: u8) {
    new.send(world, later);
    for _ in 0..4 {
        world.settle();
        assert_eq!(changes(world), 0, "it has not been asked for first");
    }
    while let Some(oldest) = world.held.first() {
        let bytes = oldest.span.bytes();
        one_ends(world, bytes);
    }
    assert_eq!(new.receive(world, 16), simple(0, 9));
    assert_eq!(world.memory.bytes[4096..4608], [byte; 512]);
    assert_eq!(world.memory.bytes[4608..4700], [7; 92], "that was done before");
}

#[test]
fn what_is_written_later_comes_behind_what_waits_for_another_front_thread() {
    for (later, byte) in [(request(TRIM, 9, 4096, 512), 0), (write(9, 4090, &[8; 518]), 8)] {
        let (mut world, others, mut new) = with_two_threads(0);
        let mut old = Raw::ready(&mut world);
        old.send(&mut world, &write(1, 3584, &[7; 1536]));
        world.settle();
        check_that_it_comes_behind_another_thread(&mut world, &mut new, &later, byte);
        assert_eq!(old.receive(&mut world, 16), simple(0, 1));
        drop(others);
    }
}

#[test]
fn no_front_thread_writes_pages_where_something_waits_to_be_written() {
    let (mut world, others, mut new) = with_two_threads(0);
    let (pages, _keeper) = Pages::new(Config::of_memory(4 << 20, 2)).expect("memory");
    world.front.remember(&pages);
    let mut old = Raw::ready(&mut world);
    new.send(&mut world, &write(1, 3584, &[5; 1024]));
    assert_eq!(new.receive(&mut world, 16), simple(0, 1));
    assert_eq!(changes(&world), 0, "into memory");
    // Too long for that.
    old.send(&mut world, &write(1, 0, &vec![7; LARGE as usize + 512]));
    world.settle();
    check_that_it_comes_behind_another_thread(&mut world, &mut new, &write(9, 4096, &[8; 512]), 8);
    assert_eq!(old.receive(&mut world, 16), simple(0, 1));
    new.send(&mut world, &write(1, 3584, &[5; 1024]));
    assert_eq!(new.receive(&mut world, 16), simple(0, 1));
    assert_eq!((changes(&world), world.memory.bytes[3584]), (0, 7), "into memory again");
    drop(others);
}

/// Of a client who has said that he goes, and to whom the first reply cannot be sent.
#[test]
fn part_of_an_atom_is_changed_for_who_goes_in_order() {
    for (last, byte) in [(DISC, 7), (READ, 0)] {
        let mut world = World::new(MIB);
        let mut gone = Raw::ready(&mut world);
        world.hold = true;
        gone.send(&mut world, &[request(FLUSH, 1, 0, 0), write(2, 4097, &[7; 10]), request(last, 3, 0, 0)].concat());
        world.settle();
        drop(gone);
        world.settle();
        one_ends(&mut world, 0);
        assert_eq!((world.front.connections(), asked(&world)), (0, 512), "the atom is being read");
        world.hold = false;
        world.settle();
        assert_eq!(world.memory.bytes[4096..4110], [&[0][..], &[byte; 10], &[0; 3]].concat());
    }
}

#[test]
fn a_change_comes_behind_no_read_of_another_front_thread() {
    let (mut world, others, mut new) = with_two_threads(4096);
    new.send(&mut world, &request(TRIM, 9, 0, 8192));
    world.until(|world| changes(world) == 1);
    drop(others);
}

/// It would be read when there is room, whatever is there by then.
#[test]
fn what_nobody_had_read_of_a_client_that_is_gone_is_not_done() {
    let large = vec![7; LARGE as usize];
    // Most of the second one lies in the socket.
    let (mut world, mut busy, old) = with_who_waits(&[write(1, 0, &large), write(2, 2 * LARGE, &large)].concat());
    let mut new = Raw::ready(&mut world);
    drop(old);
    new.send(&mut world, &write(1, 2 * LARGE, &[8; 512]));
    (0..4).for_each(|_| world.pass(1));
    assert_eq!(changes(&world), 1, "nobody knows of the other one");
    world.room.bytes = 4 * LARGE;
    world.settle();
    assert_eq!(changes(&world), 2, "the first one, but not the second");
    world.hold = false;
    assert_eq!(new.receive(&mut world, 16), simple(0, 1));
    assert_eq!(busy.receive(&mut world, 16 * (16 + 4096)).len(), 16 * (16 + 4096));
    world.settle();
    let (first, second) = (&world.memory.bytes[..LARGE as usize], &world.memory.bytes[2 * LARGE as usize..3 * LARGE as usize]);
    assert!(first.iter().all(|byte| *byte == 7), "that one had come as a whole");
    assert!(second[..512].iter().all(|byte| *byte == 8) && !second.contains(&7));
    assert_eq!(world.front.connections(), 2);
}

/// Runs it beside four programs that never sleep.
fn beside_others<T>(run: impl FnOnce() -> T) -> T {
    /// Whatever becomes of the test, the other programs end.
    struct Over<'a>(&'a AtomicBool);
    impl Drop for Over<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _over = Over(&is_over);
        (0..4).for_each(|_| {
            drop(scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    std::hint::spin_loop()
                }
            }))
        });
        run()
    })
}

/// How often, of 200 times, what a client sent before it closed a connection is done behind what it sent afterwards on another one, and that was
/// answered. `connects_first`: the other one is there before.
fn overtaken(mut world: World, connects_first: bool) -> usize {
    let once = |_| {
        let early = connects_first.then(|| Raw::ready(&mut world));
        let mut old = Raw::ready(&mut world);
        old.send(&mut world, &write(1, 4096, &[7; 512]));
        drop(old);
        let mut new = early.unwrap_or_else(|| Raw::ready(&mut world));
        new.send(&mut world, &write(9, 4096, &[8; 512]));
        assert_eq!(new.receive(&mut world, 16), simple(0, 9));
        world.settle();
        usize::from(world.memory.bytes[4096] != 8)
    };
    beside_others(|| (0..200).map(once).sum())
}

#[test]
fn who_comes_back_is_not_overtaken_by_what_lies_in_the_socket_that_it_has_closed() {
    assert_eq!(overtaken(World::with_threads(MIB, 2), false), 0);
}

#[test]
fn who_goes_on_with_another_connection_is_not_overtaken_by_what_lies_in_the_one_that_it_has_closed() {
    assert_eq!(overtaken(World::with_threads(MIB, 2), true), 0);
}

#[test]
fn of_two_connections_to_one_thread_the_one_that_was_closed_is_read_first() {
    for kept in [false, true] {
        let mut world = World::new(MIB);
        let mut new = Raw::ready(&mut world);
        let mut old = Raw::ready(&mut world);
        world.hold = true;
        // More than is read of a socket at once.
        let places = (0..40u64).map(|place| place * 8192);
        let olds: Vec<u8> = places.clone().flat_map(|at| write(1, at, &[7; 4096])).collect();
        old.send(&mut world, &olds);
        if !kept {
            drop(old);
        }
        new.send(&mut world, &write(9, 39 * 8192, &[8; 512]));
        world.settle();
        let last = world.held.iter().rposition(|request| request.span.bytes() == 4096);
        let newer = world.held.iter().position(|request| request.span.bytes() == 512);
        assert_eq!((world.held.len(), last < newer), (41, !kept), "{newer:?} {last:?}");
    }
}

/// There is no room for more of its thread's requests, and the other thread writes pages by itself.
#[test]
fn what_waits_on_a_closed_connection_keeps_nobody_waiting_and_is_not_done_later() {
    let mut world = World::with_threads(MIB, 2);
    let (pages, _keeper) = Pages::new(Config::of_memory(4 << 20, 2)).expect("memory");
    world.front.remember(&pages);
    world.hold = true;
    let mut new = Raw::ready(&mut world);
    let mut others: Vec<Raw> = (0..17).map(|_| Raw::ready(&mut world)).collect();
    let trims = |count: u64| (0..count).flat_map(|trim| request(TRIM, trim, (128 + trim) * 512, 512)).collect::<Vec<u8>>();
    // Every second one is of the other thread.
    others.iter_mut().step_by(2).take(7).for_each(|reader| reader.send(&mut world, &reads(128, 512)));
    others[14].send(&mut world, &trims(110));
    world.settle();
    assert_eq!((world.held.len(), changes(&world)), (7 * 128 + 110, 110));
    let mut old = others.remove(16);
    world.memory.bytes[4096..4608].fill(5);
    old.send(&mut world, &[trims(10), request(TRIM, 99, 4096, 512)].concat());
    world.settle();
    let had_place = changes(&world);
    assert!((111..120).contains(&had_place), "{had_place}");
    drop(old);
    for byte in [8, 9] {
        new.send(&mut world, &write(9, 4096, &[byte; 512]));
        assert_eq!(new.receive(&mut world, 16), simple(0, 9));
    }
    assert_eq!(changes(&world), had_place, "into memory");
    // There is room again, and no answer yet for one who has gone.
    (world.hold, world.hold_changes) = (false, true);
    world.settle();
    world.hold_changes = false;
    world.settle();
    assert_eq!(world.memory.bytes[4096..4608], [5; 512], "what that page holds is newer");
}

/// It says nothing more, and takes its answer.
#[test]
fn what_comes_on_a_connection_that_is_closed_one_way_waits_for_those_that_were_closed() {
    let mut world = World::new(MIB);
    let mut new = Raw::ready(&mut world);
    let mut old = Raw::ready(&mut world);
    old.send(&mut world, &write(1, 4096, &[7; 512]));
    drop(old);
    new.send(&mut world, &write(9, 4096, &[8; 512]));
    new.stream.shutdown(Shutdown::Write).expect("it is open");
    assert_eq!(new.receive(&mut world, 16), simple(0, 9));
    world.settle();
    assert_eq!(world.memory.bytes[4096], 8);
}

#[test]
fn what_waits_for_its_own_sake_when_its_connection_is_closed_is_not_done_later() {
    let mut world = World::new(MIB);
    let [mut cacher, mut new, mut old] = [(); 3].map(|()| Raw::ready(&mut world));
    world.hold_caching = true;
    let caches: Vec<u8> = (0..16).flat_map(|place| request(CACHE, place, 65_536 + place * 4096, 4096)).collect();
    cacher.send(&mut world, &caches);
    world.settle();
    old.send(&mut world, &[request(CACHE, 1, 0, 4096), write(2, 4096, &[7; 512])].concat());
    world.settle();
    drop(old);
    new.send(&mut world, &write(9, 4096, &[8; 512]));
    assert_eq!(new.receive(&mut world, 16), simple(0, 9));
    world.hold_caching = false;
    world.settle();
    assert_eq!(world.memory.bytes[4096], 8);
}

/// The first was closed, the second has waited for that and is closed, the third is not.
#[test]
fn of_three_connections_each_waits_for_those_that_were_closed_before() {
    let mut world = World::new(MIB);
    let [third, mut old, mut new] = [(); 3].map(|()| Raw::ready(&mut world));
    world.settle();
    old.send(&mut world, &(0..36u64).flat_map(|place| write(place, place * 8192, &[7; 4096])).collect::<Vec<u8>>());
    drop(third);
    let (mut room, mut events) = (world.room, Vec::new());
    world.front.ready(1 << 62 | 1, true, false, &mut room, &mut events);
    assert!(events.is_empty(), "it waits for the first one");
    drop(old);
    new.send(&mut world, &write(99, 35 * 8192, &[8; 512]));
    world.front.ready(1 << 62 | 2, true, false, &mut room, &mut events);
    assert_eq!(events.len(), 36, "what is on the second one comes first");
}

/// The same on three threads: of the first it is only known that it was closed once its thread is asked for that.
#[test]
fn of_three_connections_to_three_threads_each_comes_behind_those_that_were_closed_before() {
    for places in [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]] {
        let mut world = World::with_threads(MIB, 3);
        let mut clients = [(); 3].map(|()| Some(Raw::ready(&mut world)));
        let [mut first, mut old, mut new] = places.map(|place: usize| clients[place].take().expect("each is one of them"));
        world.hold = true;
        first.send(&mut world, &[reads(128, 512), request(TRIM, 200, 8192, 512)].concat());
        world.until(|world| world.held.len() == 128);
        world.settle();
        drop(first);
        old.send(&mut world, &write(1, 4096, &[7; 4096]));
        world.let_threads_sleep();
        drop(old);
        new.send(&mut world, &write(9, 4096, &[8; 512]));
        world.let_threads_sleep();
        assert_eq!(changes(&world), 0, "nobody has had a turn");
        world.settle();
        let written: Vec<u64> = world.held[128..].iter().map(|request| request.span.bytes()).collect();
        assert_eq!(written, [4096, 512], "on threads {places:?}");
    }
}
