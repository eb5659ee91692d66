//! Copies out of memory that no cache of the processor holds. It comes a line at a time and from far away, so what counts is how many lines are
//! under way at once: those of the page that is copied next are asked for meanwhile, and come as near as the second level of caches, where there is
//! more room than in the first, and more of them may be under way.
//!
//! Where one move takes a whole line ([`wide`]), the lines of the next page are asked for in turns with those moves. Of a page that is copied alone
//! only the first lines are asked for there, which come while it is noted: its moves are all under way at once, and so is the look-up of the next
//! one behind them, which a string of requests, or an instruction that copies as a whole, would keep waiting.

use crate::sync::{LINE_BYTES, prefetch_for_later};

/// So much at once of what is copied next, at most.
const PAGE_BYTES: usize = 4_096;
/// So much of a page that is copied alone by wide moves, or later by somebody else. Alone, with none it is now faster, now slower (it seems, when
/// somebody else is on the same core), with more slower.
const FIRST_BYTES: usize = 8 * LINE_BYTES;

/// Copies `from`, which was expected, and expects `next`.
///
/// # Panics
/// If `into` is not as long as `from`.
#[inline(always)]
pub fn copy(from: &[u8], into: &mut [u8], next: &[u8]) {
    if let (Some(from), Some(next), true) = (as_page(from), as_page(next), wide::is_there()) {
        return wide::copy_and_expect(from, as_page_mut(into), next);
    }
    expect_next(next);
    into.copy_from_slice(from);
}

/// Asks for what is copied alone, by [`copy_alone`], after what there is to do anyway.
#[inline(always)]
pub fn expect_alone(bytes: &[u8]) {
    match as_page(bytes) {
        Some(page) if wide::is_there() => ask(&page[..FIRST_BYTES]),
        _ => expect_next(bytes),
    }
}

/// Copies `from`, and nothing behind it.
///
/// # Panics
/// If `into` is not as long as `from`.
#[inline(always)]
pub fn copy_alone(from: &[u8], into: &mut [u8]) {
    match as_page(from) {
        Some(from) if wide::is_there() => wide::copy(from, as_page_mut(into)),
        _ => into.copy_from_slice(from),
    }
}

/// Asks for what is copied next.
#[inline(always)]
pub fn expect_next(bytes: &[u8]) {
    match bytes.first_chunk::<PAGE_BYTES>() {
        // A length that is known: nothing but the requests.
        Some(page) => ask(page),
        None => ask(bytes),
    }
}

/// Asks for the first lines of what somebody else copies soon, in order: it seems that the processor fetches the rest ahead of that by itself. (Of
/// pages that the kernel sends, 32 requests at once, on a Xeon with 260 MiB of last level: a request took 1.73 to 1.95 us of processor with 4, 8 or
/// 16 lines, 1.87 to 2.0 with none, 1.96 to 2.23 with all 64.)
#[inline(always)]
pub fn expect_first(bytes: &[u8]) {
    ask(&bytes[..bytes.len().min(FIRST_BYTES)]);
}

#[inline(always)]
fn ask(bytes: &[u8]) {
    bytes.chunks(LINE_BYTES).for_each(|line| prefetch_for_later(line.as_ptr()));
}

type Page = [u8; PAGE_BYTES];

#[inline(always)]
fn as_page(bytes: &[u8]) -> Option<&Page> {
    bytes.try_into().ok()
}

#[inline(always)]
fn as_page_mut(bytes: &mut [u8]) -> &mut Page {
    bytes.try_into().expect("a copy fits where it goes")
}

/// Moves of 512 bits.
#[cfg(target_arch = "x86_64")]
mod wide {
    use std::arch::x86_64::{__m512i, _mm512_loadu_si512, _mm512_storeu_si512};

    use super::{LINE_BYTES, PAGE_BYTES, Page, ask};

    /// Four lines are moved together.
    const STEP_BYTES: usize = 4 * LINE_BYTES;
    const _: () = assert!(size_of::<__m512i>() == LINE_BYTES);

    /// On processors that have them with half precision this was measured to be quicker. (On older ones, whose queues are shorter, it was not
    /// measured.)
    #[inline(always)]
    pub fn is_there() -> bool {
        is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512fp16")
    }

    #[inline(always)]
    pub fn copy(from: &Page, into: &mut Page) {
        assert!(is_there());
        // SAFETY: the processor has these moves.
        unsafe { copy_in_steps::<false>(from, into, from) }
    }

    #[inline(always)]
    pub fn copy_and_expect(from: &Page, into: &mut Page, next: &Page) {
        assert!(is_there());
        // SAFETY: as above.
        unsafe { copy_in_steps::<true>(from, into, next) }
    }

    #[target_feature(enable = "avx512f")]
    fn copy_in_steps<const EXPECTS: bool>(from: &Page, into: &mut Page, next: &Page) {
        // Written out: at the end of a loop the processor would often guess wrong, and what it has begun behind that is lost.
        macro_rules! steps {
            ($($step:literal)*) => {{
                const _: () = assert!([$($step),*].len() * STEP_BYTES == PAGE_BYTES);
                $(step::<EXPECTS>($step * STEP_BYTES, from, into, next);)*
            }};
        }
        steps!(0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15);
    }

    #[target_feature(enable = "avx512f")]
    #[inline]
    fn step<const EXPECTS: bool>(at: usize, from: &Page, into: &mut Page, next: &Page) {
        let (from, into) = (from[at..at + STEP_BYTES].as_ptr(), into[at..at + STEP_BYTES].as_mut_ptr());
        let (from, into): (*const __m512i, *mut __m512i) = (from.cast(), into.cast());
        if EXPECTS {
            ask(&next[at..at + STEP_BYTES]);
        }
        // SAFETY: four lines are at both places, and a line may lie anywhere.
        unsafe {
            let [first, second] = [_mm512_loadu_si512(from), _mm512_loadu_si512(from.add(1))];
            let [third, fourth] = [_mm512_loadu_si512(from.add(2)), _mm512_loadu_si512(from.add(3))];
            _mm512_storeu_si512(into, first);
            _mm512_storeu_si512(into.add(1), second);
            _mm512_storeu_si512(into.add(2), third);
            _mm512_storeu_si512(into.add(3), fourth);
        }
    }
}

#[cfg(not(target_arch = "x86_64"))]
mod wide {
    use super::Page;

    pub fn is_there() -> bool {
        false
    }

    pub fn copy(_from: &Page, _into: &mut Page) {
        unreachable!("there are no such moves");
    }

    pub fn copy_and_expect(_from: &Page, _into: &mut Page, _next: &Page) {
        unreachable!("there are no such moves");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_is_one_whatever_its_length_and_what_comes_next() {
        let bytes: Vec<u8> = (0..4 * PAGE_BYTES).map(|place| (place % 251) as u8).collect();
        for length in [0, 1, 512, 4_095, PAGE_BYTES, PAGE_BYTES + 1, 2 * PAGE_BYTES] {
            for next in [0, 512, PAGE_BYTES, 2 * PAGE_BYTES] {
                // Neither is aligned.
                let (from, mut into) = (&bytes[3..3 + length], vec![0xee; length + 7]);
                copy(from, &mut into[5..5 + length], &bytes[bytes.len() - next..]);
                assert_eq!((&into[..5], &into[5..5 + length], &into[5 + length..]), (&[0xee; 5][..], from, &[0xee; 2][..]));
                into.fill(0xee);
                expect_first(from);
                expect_alone(from);
                copy_alone(from, &mut into[5..5 + length]);
                assert_eq!((&into[..5], &into[5..5 + length], &into[5 + length..]), (&[0xee; 5][..], from, &[0xee; 2][..]));
            }
        }
    }

    #[test]
    #[should_panic(expected = "a copy fits where it goes")]
    fn a_page_does_not_fit_into_less() {
        as_page_mut(&mut [0; PAGE_BYTES - 1]);
    }
}
