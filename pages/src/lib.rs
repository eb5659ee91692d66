//! The memory tier of one volume: pages that many threads read at once, while some write and the engine manages (paper 004).
//!
//! A hit costs a look-up and a copy, and writes nothing that another thread reads: no lock, no count of references, no list of the recently
//! used. What makes that possible:
//!
//! * A **page** is immutable. A write is a new page, published by one store; whoever is reading the old one goes on reading it.
//! * The **epoch** ([`epoch`]), not a count, says when nobody reads a page any more.
//! * That a page was read is noted in a **ring** of the thread's own ([`ring`]), for the engine to read some time: replacement is done there,
//!   in bulk (paper 004, technique 1).
//!
//! Two kinds of threads: any number of [`Front`]s serve clients, and one [`Keeper`], the engine's, fills, cleans and evicts.
//!
//! # What is dirty
//!
//! A front fills a page, and then, under the lock of the block, in this order: reads the *stamp*, pushes the page into the thread's dirty ring,
//! publishes it. The reply comes after that. The keeper moves the stamp on and then drains all rings: a *group* is what it finds with the old
//! stamp. Three things follow; each has a model (`tests/loom.rs`).
//!
//! * A FLUSH that drains after a reply finds what was replied to: the push came before.
//! * No group holds an effect without its cause. Who has seen a page can see its push too: either the keeper does, or the stamp has moved.
//! * Of two pages of one block the one with the higher version has the later stamp, or the same: the stamp is read under the lock.

pub mod atoms;
mod batch;
mod copy;
#[cfg(not(loom))]
mod epoch;
#[cfg(loom)]
pub mod epoch;
mod front;
mod keeper;
mod lease;
mod locks;
mod marks;
mod memory;
mod pool;
mod ring;
mod sync;
mod tree;
mod write;

use std::fmt;
use std::io;
use std::sync::Arc;

pub use atoms::Atoms;
pub use batch::Read;
pub use copy::{copy, expect_first, expect_next};
pub use front::{Counts, Front, Page, Pinned};
pub use keeper::{Dirty, Group, Hold, Keeper, Refused};
pub use lease::Lease;
pub use marks::Marks;
pub use memory::Frame;
pub use sync::prefetch;
pub use write::{Unwritten, Write};

use locks::Locks;
use pool::Pool;
use ring::Ring;
use sync::{AtomicBool, AtomicU64, Ordering, Padded};
use tree::Tree;

/// A block's number on the volume.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Block(pub u64);

/// The most blocks that one write takes: 1 MiB of 4 KiB.
pub const WRITE_BLOCKS_MAX: usize = if cfg!(loom) { 4 } else { 256 };

/// What is fixed at the start.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// Pages in the pool.
    pub pages: usize,
    /// Atoms of a page, 1 to 128.
    pub page_atoms: usize,
    /// Bytes of an atom: 512, or what a simulation keeps in its stead.
    pub atom_bytes: usize,
    /// Fronts at most.
    pub fronts: usize,
    /// Leases at most ([`Pages::lease`]).
    pub leases: usize,
    /// Notes that a front makes before the keeper looks: one of each hit, and one of each [time](Front::set_time) at which there were some. What
    /// comes then is not noted. A power of two, and not 1; 0: none are noted, or counted as such.
    pub touches: usize,
    /// Writes of blocks that a front pushes before the keeper looks; then it has to wait. A power of two.
    pub dirty_ring: usize,
    /// Pages that are dirty at most, to begin with ([`Keeper::allow`]): `dirty_ram`, in pages.
    pub dirty_pages: usize,
    /// A front writes whole blocks only ([`Unwritten::Ragged`]). Where others write blocks too, past the pages, it must: it would copy the rest of a
    /// block from a page that may be older than what they are about to write there.
    pub whole_blocks: bool,
}

impl Config {
    /// A pool of `bytes` of memory in pages of 4 KiB, with as many dirty ones, for `fronts` threads.
    pub fn of_memory(bytes: usize, fronts: usize) -> Config {
        let pages = bytes / 4096;
        Config {
            pages,
            page_atoms: 8,
            atom_bytes: 512,
            fronts,
            leases: fronts,
            touches: 8192,
            dirty_ring: 4096,
            dirty_pages: pages,
            whole_blocks: false,
        }
    }
}

/// What fronts and keeper share.
pub struct Pages {
    config: Config,
    pool: Pool,
    tree: Tree,
    locks: Locks,
    /// Number of the group that writes belong to now.
    stamp: Padded<AtomicU64>,
    /// Dirty pages that may still be made.
    dirty_room: Padded<AtomicU64>,
    desks: Box<[Desk]>,
    /// Which leases are out.
    leases: Box<[AtomicBool]>,
    /// The one [`Marks`] is out.
    marks_are_out: AtomicBool,
}

/// Where one front and the keeper meet.
struct Desk {
    is_taken: AtomicBool,
    /// What was read, and when ([`front::Note`]).
    touches: Ring<1>,
    /// Block, frame and version, stamp.
    dirty: Ring<3>,
    counters: Padded<front::Counters>,
}

impl Pages {
    /// The tier, empty, and the one keeper that it has. All memory of pages is mapped here.
    ///
    /// # Errors
    /// The kernel's, where it has no address space for so many pages.
    ///
    /// # Panics
    /// If the configuration makes no sense.
    pub fn new(config: Config) -> io::Result<(Arc<Pages>, Keeper)> {
        assert!(config.pages > 0 && config.pages < tree::leaf::FRAMES_MAX, "a pool of {} pages", config.pages);
        assert!((1..=128).contains(&config.page_atoms), "pages of {} atoms", config.page_atoms);
        assert!(config.atom_bytes > 0, "an atom has bytes");
        assert!(config.fronts > 0, "somebody reads");
        assert!(config.touches != 1, "a hit is noted with its time");
        let desk = |_| Desk {
            is_taken: AtomicBool::new(false),
            touches: Ring::new(config.touches),
            dirty: Ring::new(config.dirty_ring),
            counters: Padded(front::Counters::default()),
        };
        let pages = Arc::new(Pages {
            // The keeper reads as well, and so does who marks.
            pool: Pool::new(config.pages, config.page_atoms, config.atom_bytes, config.fronts + 1, config.leases + 1)?,
            tree: Tree::new(),
            locks: Locks::new(),
            stamp: Padded(AtomicU64::new(0)),
            dirty_room: Padded(AtomicU64::new(config.dirty_pages as u64)),
            desks: (0..config.fronts).map(desk).collect(),
            leases: (0..config.leases).map(|_| AtomicBool::new(false)).collect(),
            marks_are_out: AtomicBool::new(false),
            config,
        });
        let keeper = Keeper::new(Arc::clone(&pages));
        Ok((pages, keeper))
    }

    /// A front for a thread; `None` if there are as many as the configuration has. It is given back when it is dropped.
    pub fn front(pages: &Arc<Pages>) -> Option<Front> {
        let free = |desk: &Desk| desk.is_taken.compare_exchange(false, true, Ordering::AcqRel, Ordering::Relaxed).is_ok();
        let desk = pages.desks.iter().position(free)?;
        Some(Front::new(Arc::clone(pages), desk))
    }

    pub fn config(&self) -> &Config {
        &self.config
    }

    pub(crate) fn page_bytes(&self) -> usize {
        self.config.page_atoms * self.config.atom_bytes
    }

    /// Bytes used beside the contents of pages: nodes, and what is known of each page. Rings and locks, which do not grow, not counted, nor the
    /// list of free pages, 4 bytes for each of them.
    pub fn overhead_bytes(&self) -> u64 {
        self.tree.node_bytes() + (self.pool.bytes_per_page() * self.config.pages) as u64
    }

    /// Pages that nobody has and nobody reads, those in magazines not counted.
    pub fn free_pages(&self) -> usize {
        self.pool.free_frames()
    }

    /// What all fronts have counted, those that have gone included.
    pub fn counts(&self) -> Counts {
        self.desks.iter().map(|desk| desk.counters.0.counts()).fold(Counts::default(), |sum, counts| sum + counts)
    }

    /// Gives up one owner of a page; the last one sends it to limbo.
    fn disown(&self, frame: Frame) {
        if self.pool.disown(frame) {
            self.pool.unlink(frame);
        }
    }
}

impl fmt::Debug for Pages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pages").field("config", &self.config).finish_non_exhaustive()
    }
}
