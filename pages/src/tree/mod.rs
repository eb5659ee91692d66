//! The index of one volume's pages: a radix tree read under RCU (paper 004, technique 2), keyed by block.
//!
//! Inner nodes have 64 slots and cover 6 bits of the key; a leaf covers 64 blocks. An inner node with a single child is left out (technique 4):
//! a slot may point far down, so a look-up checks that the range of what it has found holds the key. Leaves come in three sizes
//! ([`leaf`]).
//!
//! ```text
//! root ─▶ inner, bits 12 to 17 of the leaf number ─┬─▶ leaf 5              (the nodes between left out: nothing else is there)
//!                                                  └─▶ inner, bits 0 to 5 ─┬─▶ leaf 0x2000
//!                                                                          └─▶ leaf 0x2001
//! ```
//!
//! **Readers** take no lock and write nothing; a pin keeps what they find. **Writers** of a leaf have the lock of its blocks ([`crate::locks`])
//! to themselves, and change its entries in place. Where the shape changes, the inner node that changes is locked (technique 3), from the
//! root downwards; what was read on the way there is looked at again, and if it has changed the writer starts again from the root.
//! What is taken out goes through limbo.

pub mod leaf;
pub mod node;

use crate::Block;
use crate::epoch::Pin;
use crate::memory::Frame;
use crate::pool::Unlinked;
use crate::sync::{AtomicPtr, AtomicU64, Mutex, MutexGuard, Ordering, lock};

pub use leaf::{Entry, Leaf};
pub use node::{FANOUT, Inner, Node, Shape};

/// Bits of a block's number that choose the entry in its leaf.
pub const LEAF_BLOCKS: u64 = FANOUT as u64;
/// So many blocks are looked up ahead.
const AHEAD: usize = 4;

pub struct Tree {
    root: AtomicPtr<()>,
    root_lock: Mutex<()>,
    /// Of the nodes that are linked.
    node_bytes: AtomicU64,
}

/// The place of a pointer that a writer has come by: the root's, or a slot of an inner node.
#[derive(Clone, Copy)]
enum Place<'p> {
    Root,
    Slot(&'p Inner, usize),
}

/// A locked place. While it is held, nobody else changes the pointer.
struct Held<'p> {
    pointer: &'p AtomicPtr<()>,
    node: Option<MutexGuard<'p, node::State>>,
    _root: Option<MutexGuard<'p, ()>>,
}

impl Held<'_> {
    /// Puts `node` here, or nothing; the inner node counts its children.
    fn set(mut self, node: Option<Node>) {
        let before = Node::of(self.pointer.load(Ordering::Relaxed));
        if let Some(state) = &mut self.node {
            state.children = state.children + u8::from(node.is_some()) - u8::from(before.is_some());
        }
        // Release: who finds the node finds it filled.
        self.pointer.store(Node::pointer(node), Ordering::Release);
    }
}

impl Tree {
    pub fn new() -> Tree {
        Tree { root: AtomicPtr::new(Node::pointer(None)), root_lock: Mutex::new(()), node_bytes: AtomicU64::new(0) }
    }

    pub fn node_bytes(&self) -> u64 {
        self.node_bytes.load(Ordering::Relaxed)
    }

    /// The leaf of leaf number `number`, if there is one.
    #[inline(always)]
    pub fn leaf<'p>(&self, _pin: &'p Pin, number: u64) -> Option<Leaf<'p>> {
        let mut node = Node::of(self.root.load(Ordering::Acquire))?;
        // Below an inner node whose children differ in the last bits a leaf is the right one, and its first line need not be fetched.
        let mut is_exact = false;
        loop {
            // SAFETY: the pin is held for `'p`, and the node was linked then, or later.
            match unsafe { node.shape() } {
                Shape::Inner(inner) => {
                    let shift = node.shift();
                    node = Node::of(inner.slot_towards(number, shift)?.load(Ordering::Acquire))?;
                    // Its children are leaves, each at its number.
                    is_exact = shift == 0;
                }
                Shape::Leaf(leaf) => return (is_exact || leaf.number() == number).then_some(leaf),
            }
        }
    }

    #[inline(always)]
    pub fn find(&self, pin: &Pin, block: u64) -> Entry {
        self.leaf(pin, block / LEAF_BLOCKS).map_or(Entry::NONE, |leaf| leaf.get((block % LEAF_BLOCKS) as usize))
    }

    /// What is found of each of these blocks, in their order. A few are looked up ahead: the lines of their leaves are on their way meanwhile.
    #[inline(always)]
    pub fn find_all(&self, pin: &Pin, blocks: &[Block]) -> impl Iterator<Item = Entry> {
        let begin = |block: &Block| {
            let (leaf, key) = (self.leaf(pin, block.0 / LEAF_BLOCKS), (block.0 % LEAF_BLOCKS) as usize);
            leaf.inspect(|leaf| leaf.prefetch(key));
            (leaf, key)
        };
        let mut begun: [_; AHEAD] = std::array::from_fn(|place| blocks.get(place).map(begin));
        (0..blocks.len()).map(move |place| {
            let look_up = std::mem::replace(&mut begun[place % AHEAD], blocks.get(place + AHEAD).map(begin));
            let (leaf, key) = look_up.expect("it was begun");
            leaf.map_or(Entry::NONE, |leaf| leaf.get(key))
        })
    }

    /// The first block from `block` on that has a page.
    pub fn next(&self, _pin: &Pin, block: u64) -> Option<u64> {
        fn next_below(node: Node, block: u64) -> Option<u64> {
            // SAFETY: linked when it was found, under the pin of the caller.
            match unsafe { node.shape() } {
                Shape::Leaf(leaf) => {
                    leaf.iter().map(|(key, _)| leaf.number() * LEAF_BLOCKS + key as u64).filter(|&found| found >= block).min()
                }
                Shape::Inner(inner) => {
                    let number = block / LEAF_BLOCKS;
                    let first = match inner.covers(number) {
                        true => inner.index(number),
                        false if inner.first_number() > number => 0,
                        false => return None,
                    };
                    let mut children = (first..FANOUT).filter_map(|index| Node::of(inner.slot(index).load(Ordering::Acquire)));
                    children.find_map(|child| next_below(child, block))
                }
            }
        }
        next_below(Node::of(self.root.load(Ordering::Acquire))?, block)
    }

    /// Makes `entry` the block's, or leaves it without one ([`Entry::NONE`]), and returns what it was. The caller has the block's lock. Before
    /// `entry` is seen, `inherit` is told what page it replaces, if it replaces one. Nodes that nobody can find any more go to `unlink`.
    pub fn set(&self, pin: &Pin, block: u64, entry: Entry, inherit: impl Fn(Frame), mut unlink: impl FnMut(Unlinked)) -> Entry {
        let (number, place) = (block / LEAF_BLOCKS, (block % LEAF_BLOCKS) as usize);
        loop {
            if let Some(before) = self.try_set(pin, number, place, entry, &inherit, &mut unlink) {
                return before;
            }
        }
    }

    /// `None`: the way to the leaf has changed meanwhile.
    fn try_set(
        &self,
        pin: &Pin,
        number: u64,
        place: usize,
        entry: Entry,
        inherit: &impl Fn(Frame),
        unlink: &mut impl FnMut(Unlinked),
    ) -> Option<Entry> {
        let (parent, found) = self.descend(pin, number);
        // SAFETY: found under the pin.
        let leaf = match found.map(|node| unsafe { node.shape() }) {
            Some(Shape::Leaf(leaf)) if leaf.number() == number => leaf,
            _ if entry == Entry::NONE => return Some(Entry::NONE),
            _ => {
                let leaf = self.counted(leaf::smallest(number, &[(place, entry)]));
                return self.link(parent, found, leaf, number).map(|()| Entry::NONE);
            }
        };
        let before = leaf.get(place);
        let goes = entry == Entry::NONE;
        if goes && before == Entry::NONE {
            return Some(before);
        }
        if !goes {
            before.frame().inspect(|&frame| inherit(frame));
        }
        let stays = !goes || !leaf.is_sparse(leaf.count() - 1);
        if stays && leaf.set(place, entry) {
            return Some(before);
        }
        // Too small, or nearly empty: another one takes its place, or none.
        let others = leaf.iter().filter(|&(other, _)| other != place);
        let entries: Vec<_> = others.chain((!goes).then_some((place, entry))).collect();
        let held = self.hold(parent, found)?;
        held.set((!entries.is_empty()).then(|| self.counted(leaf::smallest(number, &entries))));
        self.unlinked(found.expect("a leaf was found"), unlink);
        if entries.is_empty() {
            self.tidy(pin, parent, number, unlink);
        }
        Some(before)
    }

    /// Goes as near to the leaf as nodes lead: the place of a pointer and the node there, which is the leaf, another one, an inner node
    /// whose range is another one, or nothing.
    fn descend<'p>(&'p self, _pin: &'p Pin, number: u64) -> (Place<'p>, Option<Node>) {
        let mut place = Place::Root;
        loop {
            let node = Node::of(self.pointer(place).load(Ordering::Acquire));
            // SAFETY: found under the pin.
            match node.map(|node| unsafe { node.shape() }) {
                Some(Shape::Inner(inner)) if inner.covers(number) => place = Place::Slot(inner, inner.index(number)),
                _ => return (place, node),
            }
        }
    }

    fn pointer<'p>(&'p self, place: Place<'p>) -> &'p AtomicPtr<()> {
        match place {
            Place::Root => &self.root,
            Place::Slot(inner, index) => inner.slot(index),
        }
    }

    /// Locks the place, if it still holds `expected` and is still part of the tree.
    fn hold<'p>(&'p self, place: Place<'p>, expected: Option<Node>) -> Option<Held<'p>> {
        let pointer = self.pointer(place);
        let held = match place {
            Place::Root => Held { pointer, node: None, _root: Some(lock(&self.root_lock)) },
            Place::Slot(inner, _) => Held { pointer, node: Some(inner.lock()), _root: None },
        };
        let is_gone = held.node.as_ref().is_some_and(|state| state.is_gone);
        (!is_gone && Node::of(pointer.load(Ordering::Relaxed)) == expected).then_some(held)
    }

    /// Links a new leaf at a place where nothing is, or something whose range is another one: then an inner node takes the place, with both.
    /// `None`: somebody was quicker; the leaf is gone.
    fn link(&self, place: Place, found: Option<Node>, leaf: Node, number: u64) -> Option<()> {
        let Some(held) = self.hold(place, found) else {
            self.discard(leaf);
            return None;
        };
        held.set(Some(match found {
            None => leaf,
            Some(other) => {
                // SAFETY: linked at a place that is locked, so it stays.
                let other_number = match unsafe { other.shape() } {
                    Shape::Leaf(leaf) => leaf.number(),
                    Shape::Inner(inner) => inner.first_number(),
                };
                self.counted(Inner::boxed(number, leaf, other_number, other))
            }
        }));
        Some(())
    }

    /// After a child was taken out of the inner node that `place` is in: with one child left it is replaced by that child.
    fn tidy<'p>(&'p self, pin: &'p Pin, mut place: Place<'p>, number: u64, unlink: &mut impl FnMut(Unlinked)) {
        while let Place::Slot(emptied, _) = place {
            // Not there: somebody else has replaced it.
            let Some((parent, node)) = self.parent(pin, emptied, number) else { return };
            let Some(held) = self.hold(parent, Some(node)) else { continue };
            // Locks are taken from the root downwards.
            let mut state = emptied.lock();
            if state.children > 1 {
                return;
            }
            state.is_gone = true;
            let child = emptied.only_child();
            held.set(child);
            drop(state);
            self.unlinked(node, unlink);
            if child.is_some() {
                return;
            }
            // Two children went before one of us came here: the parent has lost one, too.
            place = parent;
        }
    }

    /// Who points to `child`, an inner node on the way to leaf number `number`; and `child` as it points there.
    fn parent<'p>(&'p self, _pin: &'p Pin, child: &Inner, number: u64) -> Option<(Place<'p>, Node)> {
        let mut place = Place::Root;
        loop {
            let node = Node::of(self.pointer(place).load(Ordering::Acquire))?;
            // SAFETY: found under the pin.
            match unsafe { node.shape() } {
                Shape::Inner(inner) if std::ptr::eq(inner, child) => return Some((place, node)),
                Shape::Inner(inner) if inner.covers(number) => place = Place::Slot(inner, inner.index(number)),
                _ => return None,
            }
        }
    }

    fn counted(&self, node: Node) -> Node {
        self.node_bytes.fetch_add(node.bytes() as u64, Ordering::Relaxed);
        node
    }

    fn unlinked(&self, node: Node, unlink: &mut impl FnMut(Unlinked)) {
        self.node_bytes.fetch_sub(node.bytes() as u64, Ordering::Relaxed);
        unlink(Unlinked::Node(node));
    }

    fn discard(&self, leaf: Node) {
        self.node_bytes.fetch_sub(leaf.bytes() as u64, Ordering::Relaxed);
        // SAFETY: made by the caller and never linked.
        unsafe { leaf.free() };
    }
}

impl Drop for Tree {
    fn drop(&mut self) {
        fn free(node: Option<Node>) {
            let Some(node) = node else { return };
            // SAFETY: the tree is borrowed by nobody any more, and each node is linked once.
            if let Shape::Inner(inner) = unsafe { node.shape() } {
                (0..FANOUT).for_each(|index| free(Node::of(inner.slot(index).load(Ordering::Relaxed))));
            }
            // SAFETY: as above; its children are gone.
            unsafe { node.free() };
        }
        free(Node::of(self.root.load(Ordering::Relaxed)));
    }
}
