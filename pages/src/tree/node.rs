//! Nodes by pointer. The two lowest bits say what it points to, so that a look-up knows before the line has come.

use std::ptr::NonNull;

use super::leaf::{Full, Leaf, Small};
use crate::sync::{AtomicPtr, Mutex, MutexGuard, Ordering, lock};

/// Bits of the key that a node chooses by. A model has small nodes.
pub const BITS: u32 = if cfg!(loom) { 2 } else { 6 };
pub const FANOUT: usize = 1 << BITS;

/// A node that is linked, or is to be. It owns nothing by itself: the tree frees it, or limbo.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Node(NonNull<()>);

// SAFETY: it points to atomics and locks, or to what is constant while it is shared.
unsafe impl Send for Node {}

/// What a node is.
pub enum Shape<'p> {
    Inner(&'p Inner),
    Leaf(Leaf<'p>),
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Inner = 0,
    Few = 1,
    Several = 2,
    Full = 3,
}

pub type Few = Small<FEW>;
pub type Several = Small<SEVERAL>;

/// Places of the small leaves.
pub const FEW: usize = if cfg!(loom) { 1 } else { 4 };
pub const SEVERAL: usize = if cfg!(loom) { 2 } else { 16 };

const KIND_MASK: usize = 3;
const _: () = assert!(align_of::<Inner>() > KIND_MASK && align_of::<Few>() > KIND_MASK);
const _: () = assert!(align_of::<Several>() > KIND_MASK && align_of::<Full>() > KIND_MASK);

impl Node {
    pub fn from_box<T>(node: Box<T>, kind: Kind) -> Node {
        Node(NonNull::from(Box::leak(node)).cast::<()>().map_addr(|address| address | kind as usize))
    }

    #[inline(always)]
    pub fn of(pointer: *mut ()) -> Option<Node> {
        NonNull::new(pointer).map(Node)
    }

    pub fn pointer(node: Option<Node>) -> *mut () {
        node.map_or(std::ptr::null_mut(), |node| node.0.as_ptr())
    }

    #[inline(always)]
    fn kind(self) -> Kind {
        match self.0.addr().get() & KIND_MASK {
            0 => Kind::Inner,
            1 => Kind::Few,
            2 => Kind::Several,
            _ => Kind::Full,
        }
    }

    /// Where it is, for a prefetch.
    #[inline(always)]
    fn place<T>(self) -> *mut T {
        self.0.as_ptr().map_addr(|address| address & !KIND_MASK).cast()
    }

    /// # Safety
    /// The node is not freed during `'p`: a pin is held since it was found, or the lock of the place where it is linked.
    #[inline(always)]
    pub unsafe fn shape<'p>(self) -> Shape<'p> {
        // SAFETY: alive as the caller says, and of the kind that it was made as.
        unsafe {
            match self.kind() {
                Kind::Inner => Shape::Inner(&*self.place::<Inner>()),
                Kind::Few => Shape::Leaf(Leaf::Few(&*self.place::<Few>())),
                Kind::Several => Shape::Leaf(Leaf::Several(&*self.place::<Several>())),
                Kind::Full => Shape::Leaf(Leaf::Full(&*self.place::<Full>())),
            }
        }
    }

    /// Bytes allocated for it.
    pub fn bytes(self) -> usize {
        match self.kind() {
            Kind::Inner => size_of::<Inner>(),
            Kind::Few => size_of::<Few>(),
            Kind::Several => size_of::<Several>(),
            Kind::Full => size_of::<Full>(),
        }
    }

    /// # Safety
    /// Nobody can find it or has kept it, and it is freed once.
    pub unsafe fn free(self) {
        // SAFETY: made by `from_box` of the same type; the caller answers for the rest.
        unsafe {
            match self.kind() {
                Kind::Inner => drop(Box::from_raw(self.place::<Inner>())),
                Kind::Few => drop(Box::from_raw(self.place::<Few>())),
                Kind::Several => drop(Box::from_raw(self.place::<Several>())),
                Kind::Full => drop(Box::from_raw(self.place::<Full>())),
            }
        }
    }
}

/// 64 children, by six bits of the leaf number.
pub struct Inner {
    /// The bits above those six: the same in all that is below.
    prefix: u64,
    /// The bits below those six: what the children differ in.
    shift: u32,
    state: Mutex<State>,
    slots: [AtomicPtr<()>; FANOUT],
}

/// Of an inner node, under its lock. Who holds the lock may change the slots.
pub struct State {
    pub children: usize,
    /// Taken out of the tree: nothing is linked here any more.
    pub is_gone: bool,
}

impl Inner {
    /// The lowest node that covers two leaf numbers, with what lies there.
    pub fn boxed(number: u64, node: Node, other_number: u64, other: Node) -> Node {
        assert_ne!(number, other_number, "a leaf number has one leaf");
        let shift = (number ^ other_number).ilog2() / BITS * BITS;
        let slots = std::array::from_fn(|_| AtomicPtr::new(std::ptr::null_mut()));
        let state = Mutex::new(State { children: 2, is_gone: false });
        let inner = Inner { prefix: number >> shift >> BITS, shift, state, slots };
        inner.slots[inner.index(number)].store(Node::pointer(Some(node)), Ordering::Relaxed);
        inner.slots[inner.index(other_number)].store(Node::pointer(Some(other)), Ordering::Relaxed);
        Node::from_box(Box::new(inner), Kind::Inner)
    }

    #[inline(always)]
    pub fn covers(&self, number: u64) -> bool {
        number >> self.shift >> BITS == self.prefix
    }

    #[inline(always)]
    pub fn index(&self, number: u64) -> usize {
        (number >> self.shift) as usize & (FANOUT - 1)
    }

    pub fn slot(&self, index: usize) -> &AtomicPtr<()> {
        &self.slots[index]
    }

    /// Where a leaf number's child is, if this node covers it.
    #[inline(always)]
    pub fn slot_towards(&self, number: u64) -> Option<&AtomicPtr<()>> {
        self.covers(number).then(|| &self.slots[self.index(number)])
    }

    /// Its children are leaves, each at its number.
    #[inline(always)]
    pub fn is_above_leaves(&self) -> bool {
        self.shift == 0
    }

    /// A leaf number of its range.
    pub fn first_number(&self) -> u64 {
        self.prefix << BITS << self.shift
    }

    pub fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// The only child of a node with at most one. The caller has the lock.
    pub fn only_child(&self) -> Option<Node> {
        self.slots.iter().find_map(|slot| Node::of(slot.load(Ordering::Relaxed)))
    }
}
