//! Models: every order in which threads can meet, up to four preemptions, and every value that the memory model lets them read.
//! Contents of pages are watched as well: a page that is filled while somebody may be reading it fails the model.
//!
//!     RUSTFLAGS="--cfg loom" cargo test --release -p tidegate-pages --test loom --target-dir target/loom
//!
//! In a model nodes have four children and a page has two atoms of a byte each. It takes a minute; `LOOM_MAX_PREEMPTIONS` bounds more or less.
#![cfg(loom)]

use std::collections::BTreeMap;
use std::sync::Arc;

use loom::cell::UnsafeCell;
use loom::sync::atomic::{AtomicBool, Ordering};
use loom::thread;
use tidegate_pages::epoch::Epochs;
use tidegate_pages::{Atoms, Block, Config, Front, Group, Hold, Keeper, Pages, Refused, Write};

const ATOMS: u64 = 2;

fn check(pages: usize, fronts: usize, body: impl Fn(Arc<Pages>, Keeper) + Send + Sync + 'static) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = model.preemption_bound.or(Some(4));
    model.max_branches = 20_000;
    model.check(move || {
        let config = Config {
            pages,
            page_atoms: ATOMS as usize,
            atom_bytes: 1,
            fronts,
            leases: fronts - 1,
            // Two hits, each with its time.
            touches: 4,
            dirty_ring: 4,
            dirty_pages: 8,
            whole_blocks: false,
        };
        let (pages, keeper) = Pages::new(config).expect("memory");
        body(pages, keeper);
    });
}

fn front(pages: &Arc<Pages>) -> Front {
    Pages::front(pages).expect("a front")
}

/// The block's contents, if it is in memory.
fn read(front: &mut Front, block: u64) -> Option<[u8; ATOMS as usize]> {
    front.pin().find(Block(block)).map(|page| page.bytes().try_into().expect("a page"))
}

fn write(front: &mut Front, block: u64, value: u8) {
    front.write(block * ATOMS, &[value; ATOMS as usize]).expect("room");
}

/// What groups have made durable: atom by atom, in their order.
#[derive(Default)]
struct Log(BTreeMap<u64, [u8; ATOMS as usize]>);

impl Log {
    fn take(&mut self, group: &Group) {
        for dirty in &group.dirty {
            let logged = self.0.entry(dirty.block.0).or_default();
            dirty.page.mask().iter().for_each(|atom| logged[atom] = dirty.page.bytes()[atom]);
        }
    }

    fn value(&self, block: u64) -> u8 {
        self.0.get(&block).map_or(0, |logged| logged[0])
    }
}

/// Publish, read, reclaim: pages are used again at once, as the pool has no others. Nothing but the epoch's own fences is between the unlinking
/// and the reclaiming.
#[test]
fn a_reader_never_sees_a_page_that_is_used_again() {
    check(2, 2, |pages, mut keeper| {
        keeper.fill(Block(0), &[1, 1], Atoms(0b11)).expect("a page");
        let mut writer = front(&pages);
        let mut reader = front(&pages);
        let reading = thread::spawn(move || {
            let pinned = reader.pin();
            let page = pinned.find(Block(0)).expect("it is never taken out");
            let before = page.bytes().to_vec();
            assert!(before == [1, 1] || before == [2, 2] || before == [3, 3]);
            assert_eq!(before, page.bytes());
        });
        write(&mut writer, 0, 2);
        // The first page is free only if nobody can be reading it: this write may find none.
        let _ = writer.write(0, &[3, 3]);
        reading.join().unwrap();
    });
}

/// A lease looks, twice: what it has read is used again only when it has looked anew or let go. (That it goes on behind a look is in `scenarios`.)
#[test]
fn what_a_lease_has_found_is_not_used_again_before_it_looks_anew() {
    check(2, 2, |pages, mut keeper| {
        keeper.fill(Block(0), &[1, 1], Atoms(0b11)).expect("a page");
        let mut writer = front(&pages);
        let mut lease = Pages::lease(&pages).expect("there is one");
        let reading = thread::spawn(move || {
            for _ in 0..2 {
                let look = lease.look();
                let page = look.find(Block(0)).expect("it is never taken out");
                let before = page.bytes().to_vec();
                assert!(before == [1, 1] || before == [2, 2] || before == [3, 3]);
                assert_eq!(before, page.bytes());
            }
            lease.let_go();
        });
        write(&mut writer, 0, 2);
        let _ = writer.write(0, &[3, 3]);
        reading.join().unwrap();
    });
}

/// Of the epoch alone, since whoever fills a page has passed a fence more: who sees the note of a reader's second pin may fill again what that has
/// copied under the first one.
#[test]
fn the_note_of_a_second_pin_says_that_what_was_read_under_the_first_one_is_read() {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = model.preemption_bound.or(Some(4));
    model.check(|| {
        let epochs = Arc::new(Epochs::new(1));
        let page = Arc::new((AtomicBool::new(true), UnsafeCell::new(1)));
        let reading = thread::spawn({
            let (epochs, page) = (Arc::clone(&epochs), Arc::clone(&page));
            move || {
                for _ in 0..2 {
                    let _pin = epochs.pin(0);
                    if page.0.load(Ordering::Acquire) {
                        // SAFETY: found under a pin.
                        page.1.with(|contents| assert_eq!(unsafe { *contents }, 1));
                    }
                }
            }
        });
        page.0.store(false, Ordering::Release);
        let seal = epochs.seal();
        if seal < epochs.oldest() {
            // SAFETY: nobody finds it any more, and nobody is reading it.
            page.1.with_mut(|contents| unsafe { *contents = 2 });
        }
        reading.join().unwrap();
    });
}

/// What limbo frees by the epoch is filled again: two threads unlink, one of them needs a page.
#[test]
fn no_page_is_handed_out_twice() {
    check(3, 2, |pages, mut keeper| {
        let mut other = front(&pages);
        let mut front = front(&pages);
        let writing = thread::spawn(move || {
            let _ = other.write(0, &[1, 1]);
            let _ = other.write(0, &[2, 2]);
        });
        let _ = front.write(ATOMS, &[3, 3]);
        front.rest();
        let _ = front.write(ATOMS, &[4, 4]);
        drop(keeper.drain());
        writing.join().unwrap();
        drop(front);
        drop(keeper.drain());
        keeper.remove(Block(0)).unwrap();
        keeper.remove(Block(1)).unwrap();
        drop(keeper);
        assert_eq!(pages.free_pages(), 3);
    });
}

/// Two leaves far apart are linked at once, so that one of the writers finds the root changed; a reader meets all shapes.
#[test]
fn nodes_are_split_by_two_writers_under_a_reader() {
    check(4, 3, |pages, _keeper| {
        let mut near = front(&pages);
        write(&mut near, 0, 1);
        let mut far = front(&pages);
        let mut reader = front(&pages);
        let writing = thread::spawn(move || write(&mut far, 17, 2));
        let reading = thread::spawn(move || {
            assert_eq!(read(&mut reader, 0), Some([1, 1]), "never gone, whatever is above it");
            assert!([None, Some([2, 2])].contains(&read(&mut reader, 17)));
        });
        write(&mut near, 5, 3);
        writing.join().unwrap();
        reading.join().unwrap();
        assert_eq!([0, 17, 5].map(|block| read(&mut near, block)), [Some([1, 1]), Some([2, 2]), Some([3, 3])]);
    });
}

/// The last child but one goes, while another one comes.
#[test]
fn a_node_is_left_out_while_a_writer_links_below_it() {
    check(5, 2, |pages, mut keeper| {
        let mut writer = front(&pages);
        write(&mut writer, 0, 1);
        write(&mut writer, 17, 2);
        drop(keeper.drain());
        let mut reader = front(&pages);
        let writing = thread::spawn(move || {
            write(&mut writer, 44, 3);
            writer
        });
        // All three are below one inner node, which goes with 17 unless 44 is there by then.
        while keeper.remove(Block(17)) == Err(Refused::Busy) {
            thread::yield_now();
        }
        let mut writer = writing.join().unwrap();
        assert_eq!(read(&mut reader, 0), Some([1, 1]));
        assert_eq!(read(&mut reader, 17), None);
        assert_eq!(read(&mut writer, 44), Some([3, 3]));
    });
}

#[test]
fn two_atoms_of_one_block_from_two_threads_both_survive() {
    check(6, 2, |pages, mut keeper| {
        let (mut one, mut other) = (front(&pages), front(&pages));
        let writing = thread::spawn(move || one.write(0, &[1]).expect("room"));
        other.write(1, &[2]).expect("room");
        let mut log = Log::default();
        log.take(&keeper.drain());
        writing.join().unwrap();
        log.take(&keeper.drain());
        let page = keeper.hold(Block(0)).expect("it is there");
        assert_eq!((page.bytes(), page.mask()), (&[1, 2][..], Atoms(0b11)));
        assert_eq!(log.0[&0], [1, 2]);
    });
}

/// Whatever the order of the rings: what a later group brings is never older than what an earlier one has.
#[test]
fn the_later_of_two_writes_is_the_one_logged() {
    check(6, 2, |pages, mut keeper| {
        let (mut one, mut other) = (front(&pages), front(&pages));
        let writing = thread::spawn(move || write(&mut one, 0, 1));
        let overwriting = thread::spawn(move || write(&mut other, 0, 2));
        let mut log = Log::default();
        log.take(&keeper.drain());
        writing.join().unwrap();
        overwriting.join().unwrap();
        log.take(&keeper.drain());
        let newest = keeper.hold(Block(0)).expect("it is there");
        assert_eq!(log.0[&0], newest.bytes());
    });
}

/// The reply goes through a channel of its own, as through a socket; the FLUSH comes by another connection.
#[test]
fn a_flush_covers_every_reply_that_was_sent_before_it() {
    use loom::sync::atomic::{AtomicBool, Ordering};
    check(4, 1, |pages, mut keeper| {
        let mut writer = front(&pages);
        let replied = Arc::new(AtomicBool::new(false));
        let writing = {
            let replied = Arc::clone(&replied);
            thread::spawn(move || {
                write(&mut writer, 0, 1);
                replied.store(true, Ordering::Release);
            })
        };
        let was_replied = replied.load(Ordering::Acquire);
        let mut log = Log::default();
        log.take(&keeper.drain());
        assert!(!was_replied || log.value(0) == 1);
        writing.join().unwrap();
    });
}

#[test]
fn no_group_holds_an_effect_without_its_cause() {
    check(4, 2, |pages, mut keeper| {
        let (mut one, mut other) = (front(&pages), front(&pages));
        let cause = thread::spawn(move || write(&mut one, 0, 1));
        let effect = thread::spawn(move || {
            if read(&mut other, 0).is_some() {
                write(&mut other, 17, 2);
            }
        });
        let mut log = Log::default();
        log.take(&keeper.drain());
        assert!(log.value(17) == 0 || log.value(0) == 1, "an effect without its cause");
        cause.join().unwrap();
        effect.join().unwrap();
    });
}

/// Two writes that were there at once, the second of which somebody sees and writes something because of it.
#[test]
fn no_group_holds_an_effect_without_its_cause_that_came_with_another_write() {
    check(5, 2, |pages, mut keeper| {
        let (mut one, mut other) = (front(&pages), front(&pages));
        let cause = thread::spawn(move || {
            let mut writes = [Write::new(17 * ATOMS, &[1; ATOMS as usize]), Write::new(0, &[2; ATOMS as usize])];
            one.write_all(&mut writes);
            assert!(writes.iter().all(|write| write.result.is_ok()));
        });
        let effect = thread::spawn(move || {
            if read(&mut other, 0).is_some() {
                write(&mut other, 5, 3);
            }
        });
        let mut log = Log::default();
        log.take(&keeper.drain());
        assert!(log.value(5) == 0 || log.value(0) == 2, "an effect without its cause");
        cause.join().unwrap();
        effect.join().unwrap();
    });
}

/// Who manages pages goes by what is in memory: what is drained must not come there later.
#[test]
fn what_is_drained_is_in_memory() {
    check(4, 1, |pages, mut keeper| {
        let mut writer = front(&pages);
        let writing = thread::spawn(move || write(&mut writer, 0, 1));
        let group = keeper.drain();
        assert!(group.dirty.is_empty() || keeper.pin().find(Block(0)).is_some());
        writing.join().unwrap();
    });
}

#[test]
fn an_overwritten_page_stays_in_its_own_group() {
    check(3, 1, |pages, mut keeper| {
        let mut writer = front(&pages);
        write(&mut writer, 0, 1);
        let group = keeper.drain();
        let writing = thread::spawn(move || write(&mut writer, 0, 2));
        assert_eq!(group.dirty[0].page.bytes(), [1, 1]);
        let next = keeper.drain();
        assert_eq!(group.dirty[0].page.bytes(), [1, 1]);
        writing.join().unwrap();
        assert!(next.dirty.iter().all(|dirty| dirty.page.bytes() == [2, 2]));
    });
}

/// Evict, fill and publish of one block in every order: the newest contents are in memory, or in the log.
#[test]
fn evict_fill_and_publish_of_one_block_in_every_order() {
    check(5, 1, |pages, mut keeper| {
        keeper.fill(Block(0), &[1, 1], Atoms(0b11)).expect("a page");
        let mut writer = front(&pages);
        let writing = thread::spawn(move || {
            write(&mut writer, 0, 2);
            assert_eq!(read(&mut writer, 0), Some([2, 2]), "nobody but a write replaces what is not drained");
            writer
        });
        let evicted = keeper.evict(Block(0));
        if evicted.is_ok() {
            // From the log, where only the old contents are.
            let _ = keeper.fill(Block(0), &[1, 1], Atoms(0b11));
        }
        let mut writer = writing.join().unwrap();
        assert_eq!(read(&mut writer, 0), Some([2, 2]));
        let group = keeper.drain();
        assert_eq!(keeper.evict(Block(0)), Err(Refused::Held));
        drop(group);
        assert_eq!(keeper.evict(Block(0)), Ok(()));
    });
}

/// A page that has to go goes, or a front has just written it; and no more is dirty than was allowed.
#[test]
fn a_page_is_forgotten_or_newer_and_no_more_is_written_than_is_allowed() {
    check(5, 1, |pages, mut keeper| {
        keeper.fill(Block(0), &[1, 1], Atoms(0b11)).expect("a page");
        keeper.allow(1);
        let mut writer = front(&pages);
        let writing = thread::spawn(move || {
            let written = [2, 3].map(|value| writer.write(0, &[value; ATOMS as usize]).is_ok());
            writer.rest();
            (writer, written)
        });
        let forgotten = keeper.forget(Block(0));
        keeper.allow(0);
        let (mut writer, written) = writing.join().unwrap();
        assert!(!written[1], "one is allowed, and it is still dirty");
        assert!(written[0] || forgotten.is_ok());
        assert_eq!(read(&mut writer, 0), written[0].then_some([2, 2]));
        keeper.allow(0);
        assert_eq!(keeper.allowed(), usize::from(written[0]));
        for dirty in keeper.drain().dirty {
            keeper.settle(dirty.page);
        }
        assert_eq!((keeper.allowed(), keeper.forget(Block(0))), (0, Ok(())));
    });
}

/// The last owner frees a page: the tree's, by an overwrite, and the engine's, by a hold that ends, at once. Then it is filled again.
#[test]
fn tree_and_engine_let_go_of_one_page_at_once() {
    check(2, 1, |pages, mut keeper| {
        let mut writer = front(&pages);
        write(&mut writer, 0, 1);
        let held: Hold = keeper.drain().dirty.pop().expect("it was written").page;
        let writing = thread::spawn(move || {
            write(&mut writer, 0, 2);
            // Into the first page, if the engine has let go of it.
            let _ = writer.write(0, &[3, 3]);
        });
        assert_eq!(held.bytes(), [1, 1]);
        drop(held);
        writing.join().unwrap();
        drop(keeper.drain());
        keeper.remove(Block(0)).unwrap();
        drop(keeper);
        assert_eq!(pages.free_pages(), 2);
    });
}

#[test]
fn a_page_that_the_engine_completes_is_read_whole_or_not_at_all() {
    check(3, 1, |pages, mut keeper| {
        keeper.fill(Block(0), &[1, 0], Atoms(0b01)).expect("a page");
        let mut reader = front(&pages);
        let reading = thread::spawn(move || {
            let pinned = reader.pin();
            let page = pinned.find(Block(0)).expect("it is never taken out");
            match page.mask() {
                Atoms(0b01) => assert_eq!(page.bytes()[0], 1),
                mask => assert_eq!((mask, page.bytes()), (Atoms(0b11), &[1, 2][..])),
            }
        });
        keeper.complete(Block(0), &[9, 2], Atoms(0b11)).expect("nobody writes");
        reading.join().unwrap();
    });
}

/// What is marked under the block's lock stays with the block, whatever a front publishes meanwhile; and a hint is given, or lost.
#[test]
fn a_mark_stays_with_its_block_while_a_front_writes_there() {
    check(3, 1, |pages, mut keeper| {
        keeper.fill(Block(0), &[1, 1], Atoms(0b11)).expect("a page");
        let (mut writer, marks) = (front(&pages), keeper.marks());
        let writing = thread::spawn(move || write(&mut writer, 0, 2));
        assert!(marks.set(Block(0), 5));
        assert_eq!(marks.get(Block(0)), 5);
        marks.hint(Block(0), |mark| mark + 1);
        let drained = keeper.drain().dirty.len();
        writing.join().unwrap();
        let hinted = marks.get(Block(0));
        assert!(hinted == 6 || hinted == 5, "{hinted}");
        assert_eq!(drained + keeper.drain().dirty.len(), 1, "and it leaves its ring once");
    });
}

#[test]
fn touches_arrive_in_order_or_are_counted_as_unnoted() {
    check(1, 1, |pages, mut keeper| {
        let mut reader = front(&pages);
        let reading = thread::spawn(move || {
            (1..=3).for_each(|block| {
                reader.set_time(block / 2);
                reader.touch(Block(block));
            });
        });
        let mut seen = Vec::new();
        keeper.touches(|block| seen.push(block.0));
        reading.join().unwrap();
        keeper.touches(|block| seen.push(block.0));
        assert_eq!(seen.len() as u64 + pages.counts().unnoted, 3);
        assert!(seen.is_sorted() && seen.starts_with(&[1, 2]), "{seen:?}");
    });
}
