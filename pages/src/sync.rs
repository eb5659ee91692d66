//! What threads share is built from these: the standard ones, or loom's in a model (`--cfg loom`).

#[cfg(loom)]
pub use loom::sync::{
    Mutex, MutexGuard,
    atomic::{AtomicBool, AtomicPtr, AtomicU8, AtomicU32, AtomicU64, Ordering, fence},
};
#[cfg(not(loom))]
pub use std::sync::{
    Mutex, MutexGuard,
    atomic::{AtomicBool, AtomicPtr, AtomicU8, AtomicU32, AtomicU64, Ordering, fence},
};

/// What a processor fetches at once.
pub const LINE_BYTES: usize = 64;

/// Alone on its cache lines. Two of them: processors fetch lines in pairs.
#[repr(align(128))]
pub struct Padded<T>(pub T);

/// Takes a lock that nobody panics under.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().expect("nobody panics under a lock")
}

/// Asks for the line at `place`, which may be any address.
#[inline(always)]
pub fn prefetch<T>(place: *const T) {
    ask::<{ hint::NEAR }>(place.cast());
}

/// The same, to be written: no other core keeps it.
#[inline(always)]
pub fn prefetch_to_write<T>(place: *const T) {
    ask::<{ hint::TO_WRITE }>(place.cast());
}

/// The same, for later: the line comes as near as the second level of caches, where there is more room, and more of it may be under way.
#[inline(always)]
pub fn prefetch_for_later<T>(place: *const T) {
    ask::<{ hint::FOR_LATER }>(place.cast());
}

#[cfg(target_arch = "x86_64")]
mod hint {
    use std::arch::x86_64::{_MM_HINT_ET0, _MM_HINT_T0, _MM_HINT_T1};
    pub const NEAR: i32 = _MM_HINT_T0;
    pub const TO_WRITE: i32 = _MM_HINT_ET0;
    pub const FOR_LATER: i32 = _MM_HINT_T1;
}
#[cfg(not(target_arch = "x86_64"))]
mod hint {
    pub const NEAR: i32 = 0;
    pub const TO_WRITE: i32 = 0;
    pub const FOR_LATER: i32 = 0;
}

#[inline(always)]
fn ask<const HINT: i32>(place: *const i8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch reads nothing that the program could notice, and faults at no address.
    unsafe {
        std::arch::x86_64::_mm_prefetch::<HINT>(place);
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = place;
}
