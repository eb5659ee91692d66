//! Asking for memory ahead of a copy. What no cache of the processor holds comes a line at a time and from far away: a copy by itself keeps few lines
//! under way, so the page that is copied next is asked for before this one is copied. How much of it depends on the processor.
//!
//! * AMD's take a whole page at once, as near as the second level of caches: 260 to 290 ns a page of 4 KiB in queues of 32 (Zen 4), where the first
//!   lines alone come to 340 to 360, and copies without any of it to 400 to 440.
//! * On others all lines of a page, asked for at once and near, were in each other's way (0.83 times as quick as without). A few are enough there for
//!   the processor to see where this goes, and of a page that comes later even fewer.

use std::sync::LazyLock;

use crate::sync::{LINE_BYTES, prefetch, prefetch_for_later};

/// So much at once of what is copied next, at most.
const PAGE_BYTES: usize = 4_096;
/// Lines of it where the processor goes on by itself.
const NEXT_LINES: usize = 8;
/// Lines of what comes [`LATER`] pages later: the processor has begun to fetch that page when its turn comes.
const LATER_LINES: usize = 2;
/// Copies before its own at which a page is asked for the first time.
pub const LATER: usize = 3;

/// Does the processor take a whole page at once?
static TAKES_WHOLE: LazyLock<bool> = LazyLock::new(takes_whole);

/// Asks for what is copied next.
#[inline(always)]
pub fn expect_next(bytes: &[u8]) {
    match bytes.first_chunk::<PAGE_BYTES>() {
        _ if !*TAKES_WHOLE => lines(bytes).take(NEXT_LINES).for_each(prefetch),
        // A length that is known: nothing but the requests.
        Some(page) => lines(page).for_each(prefetch_for_later),
        None => lines(bytes).for_each(prefetch_for_later),
    }
}

/// Asks for what is copied after [`LATER`] others.
#[inline(always)]
pub fn expect_later(bytes: &[u8]) {
    if !*TAKES_WHOLE {
        lines(bytes).take(LATER_LINES).for_each(prefetch_for_later);
    }
}

#[inline(always)]
fn lines(bytes: &[u8]) -> impl Iterator<Item = *const u8> + '_ {
    bytes.chunks(LINE_BYTES).map(<[u8]>::as_ptr)
}

#[cfg(target_arch = "x86_64")]
fn takes_whole() -> bool {
    // SAFETY: every processor of this architecture has the instruction, and its first leaf. (Not unsafe any more in later versions of the language.)
    #[allow(unused_unsafe)]
    let found = unsafe { std::arch::x86_64::__cpuid(0) };
    let vendor = [found.ebx, found.edx, found.ecx].map(u32::to_le_bytes).concat();
    [b"AuthenticAMD", b"HygonGenuine"].iter().any(|known| known[..] == vendor)
}

#[cfg(not(target_arch = "x86_64"))]
fn takes_whole() -> bool {
    false
}
