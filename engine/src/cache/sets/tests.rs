//! What the sets know of themselves as a whole.

use super::*;
use crate::block::{Atoms, Block};
use crate::cache::format::Entry;
use crate::cache::stream::{Source, Stream};

/// Four sets of eight slots.
fn sets() -> Sets {
    let geometry = Geometry { block_atoms: 8, set_slots: 8, sets: 4, journal_pages: 64, volume_atoms: 512, range_entries: 252 };
    let mut sets = Sets::new(geometry, Benefit::Greedy, Lanes::new(1, geometry.cache_atoms()));
    sets.rebuild_lists();
    sets
}

/// Opens a set with one live slot.
fn opened(sets: &mut Sets, stream: Stream, is_dirty: bool) -> u32 {
    let set = sets.open(stream, 1).expect("a free set");
    let entry = Entry { block: Block(u64::from(set)), valid: Atoms::first(8), crc: 0 };
    sets.describe(Slot { set, slot: 0 }, &[entry], true, |_| Atoms::first(8));
    sets.make_live(Slot { set, slot: 0 }, 1, is_dirty);
    set
}

#[test]
fn where_every_set_is_free_dying_dirty_or_open_none_is_looked_for_that_is_clean() {
    let mut sets = sets();
    let stream = |source| Stream::all(source, 1).next().expect("a stream");
    let dirty = opened(&mut sets, stream(Source::Client), true);
    sets.seal(dirty, Position::default());
    let dying = opened(&mut sets, stream(Source::Client), true);
    sets.seal(dying, Position::default());
    sets.kill(Slot { set: dying, slot: 0 }, 1, 1);
    let written = opened(&mut sets, stream(Source::Client), true);
    assert!(!sets.may_have_clean([written].into_iter()), "one is free, one dying, one dirty, and one dirty and open");
    let filled = opened(&mut sets, stream(Source::Fill), false);
    assert!(!sets.may_have_clean([written, filled].into_iter()), "an open one is not dropped, clean as it is");
    sets.seal(filled, Position::default());
    assert!(sets.may_have_clean([written, filled].into_iter()), "it is sealed, and could be dropped");
    sets.soil(Slot { set: filled, slot: 0 }, 1);
    assert!(!sets.may_have_clean([written].into_iter()));
    sets.clean(Slot { set: dirty, slot: 0 }, 1);
    assert!(sets.may_have_clean([written].into_iter()), "what has gone home could be dropped");
}
