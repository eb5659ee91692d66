//! Nodes by pointer. Its lowest bits say what it points to, and where in the key an inner node chooses, so that a look-up knows before the line has come:
//! the next pointer is all it waits for.

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

/// What a node is, as the lowest bits of its pointer say it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Even, with its level above that bit.
    Inner = 0,
    Few = 1,
    Several = 3,
    Full = 5,
}

pub type Few = Small<FEW>;
pub type Several = Small<SEVERAL>;

/// Places of the small leaves.
pub const FEW: usize = if cfg!(loom) { 1 } else { 4 };
pub const SEVERAL: usize = if cfg!(loom) { 2 } else { 16 };

/// The bits of a leaf's kind.
const LEAF_TAG: usize = 7;
/// The bits that say an inner node's level, above the one that says it is one.
const INNER_TAG: usize = 31;
const LEVELS: usize = (INNER_TAG >> 1) + 1;
/// Enough for the leaf numbers of 64-bit blocks. (A model has more levels, and keeps to small numbers.)
const _: () = assert!(cfg!(loom) || (u64::BITS - BITS - 1) / BITS < LEVELS as u32);
const _: () = assert!(align_of::<Inner>() > INNER_TAG && align_of::<Few>() > LEAF_TAG);
const _: () = assert!(align_of::<Several>() > LEAF_TAG && align_of::<Full>() > LEAF_TAG);

impl Node {
    pub fn from_box<T>(node: Box<T>, kind: Kind) -> Node {
        Node(NonNull::from(Box::leak(node)).cast::<()>().map_addr(|address| address | kind as usize))
    }

    fn of_inner(node: Box<Inner>) -> Node {
        let level = (node.shift / BITS) as usize;
        assert!(level < LEVELS, "level {level} has no place in a pointer");
        Node(Node::from_box(node, Kind::Inner).0.map_addr(|address| address | (level << 1)))
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
        match self.0.addr().get() & LEAF_TAG {
            1 => Kind::Few,
            3 => Kind::Several,
            5 => Kind::Full,
            _ => Kind::Inner,
        }
    }

    /// The bits below those that it chooses by, of an inner node.
    #[inline(always)]
    pub fn shift(self) -> u32 {
        ((self.0.addr().get() & INNER_TAG) >> 1) as u32 * BITS
    }

    /// Where it is: what the pointer says beside that lies below the alignment of a `T`.
    #[inline(always)]
    fn place<T>(self) -> *mut T {
        self.0.as_ptr().map_addr(|address| address & !(align_of::<T>() - 1)).cast()
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
#[repr(align(32))]
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
    pub children: u8,
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
        Node::of_inner(Box::new(inner))
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

    /// Where a leaf number's child is, if this node covers it. `shift` is this node's own, as the pointer to it says.
    #[inline(always)]
    pub fn slot_towards(&self, number: u64, shift: u32) -> Option<&AtomicPtr<()>> {
        debug_assert_eq!(shift, self.shift);
        let above = number >> shift;
        (above >> BITS == self.prefix).then(|| &self.slots[above as usize & (FANOUT - 1)])
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
