//! Asking for memory ahead of a copy. What no cache of the processor holds comes a line at a time and from far away: a copy by itself keeps few lines
//! under way, so the page that is copied next is asked for before this one is copied, all of its lines at once, and as near as the second level of
//! caches: there is more room than in the first, and more of them may be under way.

use crate::sync::{LINE_BYTES, prefetch_for_later};

/// So much at once of what is copied next, at most.
const PAGE_BYTES: usize = 4_096;

/// Asks for what is copied next.
#[inline(always)]
pub fn expect_next(bytes: &[u8]) {
    match bytes.first_chunk::<PAGE_BYTES>() {
        // A length that is known: nothing but the requests.
        Some(page) => ask(page),
        None => ask(bytes),
    }
}

#[inline(always)]
fn ask(bytes: &[u8]) {
    bytes.chunks(LINE_BYTES).for_each(|line| prefetch_for_later(line.as_ptr()));
}
