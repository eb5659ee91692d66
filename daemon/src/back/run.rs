//! `Run`: contents of whole atoms in aligned memory, shared by reference count; production's [`Payload`].
//! A [`RunMut`] is filled by one owner (a socket, a device), frozen, and never changes again. Memory comes from size
//! classes with free lists and is zeroed when it enters the process: nobody ever sees what was not written here, and a
//! steady load neither allocates nor faults a page in.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::borrow::Cow;
use std::fmt;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering, fence};
use std::sync::{Mutex, OnceLock};

use tidegate_engine::block::ATOM_BYTES;
use tidegate_engine::payload::{Checksum, Payload};
use tidegate_pages::{copy, prefetch};

/// Every slab starts at a multiple of this: what the strictest device asks of memory.
pub const ALIGNMENT: usize = 4096;

/// Size classes: 4 KiB << class, up to 1 MiB.
const CLASSES: usize = 9;
const CLASS_BYTES_MAX: usize = ALIGNMENT << (CLASSES - 1);
const LEASED: usize = CLASSES + 1;
/// Slabs are cut from chunks of this size and alignment: one huge page where the kernel gives one. Then 1 MiB is one piece for a
/// device, where 256 pages would be too many and the operation would be split. Chunks are kept: what was needed once is again.
const CHUNK_BYTES: usize = 2 << 20;

/// A run of so much comes instead of what free slabs hold, not beside it: else many reads, and then the largest write there is, would be twice as
/// much memory as is lent at once.
const TRIM_BYTES: usize = 16 << 20;
/// Then so much is left of free slabs of one size, and those below 64 KiB.
const KEPT_BYTES: usize = 2 << 20;
const TRIMMED_CLASS_MIN: usize = 4;

const ATOM: usize = ATOM_BYTES as usize;
/// What comes from memory at once.
const LINE_BYTES: usize = 64;
const _: () = assert!(CLASS_BYTES_MAX == 1 << 20 && CHUNK_BYTES.is_multiple_of(CLASS_BYTES_MAX));

/// One piece of aligned memory and how many runs share it. The header lives and is recycled with its memory.
struct Slab {
    refs: AtomicU32,
    /// `CLASSES`: too large for the pool, returned to the allocator. `LEASED`: pages of the memory tier, and somebody else looks after them.
    class: usize,
    bytes: usize,
    data: NonNull<u8>,
}

impl Slab {
    fn layout(bytes: usize) -> Layout {
        Layout::from_size_align(bytes, ALIGNMENT).expect("a slab is far smaller than the address space")
    }

    fn boxed(class: usize, bytes: usize, data: NonNull<u8>) -> NonNull<Slab> {
        NonNull::from(Box::leak(Box::new(Slab { refs: AtomicU32::new(0), class, bytes, data })))
    }

    /// A slab too large for the pool.
    fn allocate(bytes: usize) -> NonNull<Slab> {
        let layout = Slab::layout(bytes);
        // SAFETY: the layout's size is not zero.
        let data = NonNull::new(unsafe { alloc_zeroed(layout) }).unwrap_or_else(|| handle_alloc_error(layout));
        Slab::boxed(CLASSES, bytes, data)
    }

    /// Back to the allocator with it.
    fn release(slab: NonNull<Slab>) {
        // SAFETY: nobody else refers to the slab (its count is zero and it is in no list); it came from `boxed`.
        let slab = unsafe { Box::from_raw(slab.as_ptr()) };
        assert_eq!(slab.class, CLASSES, "a slab cut from a chunk stays in the pool");
        // SAFETY: `data` came from `allocate` with this layout.
        unsafe { dealloc(slab.data.as_ptr(), Slab::layout(slab.bytes)) };
    }
}

/// Zeroed memory, aligned to its own size, for good.
fn chunk() -> NonNull<u8> {
    // SAFETY: an anonymous mapping of twice the size holds an aligned chunk; what lies around it is unmapped, all of it ours.
    unsafe {
        let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        let mapped = libc::mmap(std::ptr::null_mut(), 2 * CHUNK_BYTES, protection, flags, -1, 0);
        if mapped == libc::MAP_FAILED {
            handle_alloc_error(Slab::layout(CHUNK_BYTES));
        }
        let before = mapped.addr().next_multiple_of(CHUNK_BYTES) - mapped.addr();
        let chunk = mapped.byte_add(before);
        if before > 0 {
            libc::munmap(mapped, before);
        }
        if before < CHUNK_BYTES {
            libc::munmap(chunk.byte_add(CHUNK_BYTES), CHUNK_BYTES - before);
        }
        // Only advice: without huge pages everything works, a little slower.
        libc::madvise(chunk, CHUNK_BYTES, libc::MADV_HUGEPAGE);
        NonNull::new_unchecked(chunk.cast())
    }
}

/// The free slabs of one size.
struct FreeList(Mutex<Vec<NonNull<Slab>>>);

// SAFETY: the list owns its slabs alone (their count is zero), and the mutex orders who takes them.
unsafe impl Sync for FreeList {}

static POOL: [FreeList; CLASSES] = [const { FreeList(Mutex::new(Vec::new())) }; CLASSES];

impl FreeList {
    fn list(&self) -> std::sync::MutexGuard<'_, Vec<NonNull<Slab>>> {
        self.0.lock().expect("nothing panics while it holds a free list")
    }

    fn take(&self, class: usize) -> NonNull<Slab> {
        let mut list = self.list();
        if list.is_empty() {
            let (bytes, chunk) = (ALIGNMENT << class, chunk());
            // SAFETY: every offset lies inside the chunk just made.
            list.extend((0..CHUNK_BYTES).step_by(bytes).rev().map(|at| Slab::boxed(class, bytes, unsafe { chunk.add(at) })));
        }
        list.pop().expect("filled above")
    }
}

fn take(bytes: usize) -> NonNull<Slab> {
    if bytes > CLASS_BYTES_MAX {
        if bytes >= TRIM_BYTES {
            trim();
        }
        return Slab::allocate(bytes.next_multiple_of(ALIGNMENT));
    }
    let class = (bytes.next_power_of_two().max(ALIGNMENT) / ALIGNMENT).trailing_zeros() as usize;
    POOL[class].take(class)
}

/// The caller held the last reference to it. The header of leased pages may be gone already.
fn put(slab: NonNull<Slab>, class: usize) {
    match class {
        LEASED => {}
        CLASSES => Slab::release(slab),
        class => POOL[class].list().push(slab),
    }
}

/// Gives the kernel back what large free slabs have, but for those that were used last. They stay slabs, and are zero when they are taken next.
fn trim() {
    for (class, free) in POOL.iter().enumerate().skip(TRIMMED_CLASS_MIN) {
        let (list, bytes) = (free.list(), ALIGNMENT << class);
        for slab in list.iter().rev().skip(KEPT_BYTES / bytes) {
            // SAFETY: a free slab's memory is nobody's, and anonymous: what is read of it next is zero.
            unsafe { libc::madvise(slab.as_ref().data.as_ptr().cast(), bytes, libc::MADV_DONTNEED) };
        }
    }
}

/// Memory for `atoms` atoms with one owner, to be filled and then frozen. What it holds before is arbitrary: recycled
/// contents of this process, so whoever shows it to a client has filled all of it first.
pub struct RunMut {
    slab: NonNull<Slab>,
    atoms: u64,
}

// SAFETY: the slab belongs to this value alone.
unsafe impl Send for RunMut {}

impl RunMut {
    /// # Panics
    /// If `atoms` is zero or does not fit a `u32` (2 TiB).
    pub fn new(atoms: u64) -> RunMut {
        assert!(atoms > 0 && u32::try_from(atoms).is_ok(), "a run of {atoms} atoms");
        RunMut { slab: take(atoms as usize * ATOM), atoms }
    }

    /// Length in atoms.
    pub fn atoms(&self) -> u64 {
        self.atoms
    }

    pub fn as_slice(&self) -> &[u8] {
        // SAFETY: the slab holds at least `atoms` atoms of initialised memory, and `&self` excludes writers.
        unsafe { std::slice::from_raw_parts(self.slab.as_ref().data.as_ptr(), self.atoms as usize * ATOM) }
    }

    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: as above, and `&mut self` is the only way to the memory.
        unsafe { std::slice::from_raw_parts_mut(self.slab.as_ref().data.as_ptr(), self.atoms as usize * ATOM) }
    }

    /// From here on it is shared and immutable.
    pub fn freeze(self) -> Run {
        let run = Run { slab: self.slab, start: 0, atoms: self.atoms as u32 };
        // SAFETY: the slab is alive; `self` is its only owner.
        unsafe { self.slab.as_ref() }.refs.store(1, Ordering::Relaxed);
        std::mem::forget(self);
        run
    }
}

impl Drop for RunMut {
    fn drop(&mut self) {
        // SAFETY: the slab belongs to this value.
        put(self.slab, unsafe { self.slab.as_ref() }.class);
    }
}

impl fmt::Debug for RunMut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RunMut({} atoms)", self.atoms)
    }
}

/// Immutable contents of whole atoms: a range of a shared slab. Cloning and slicing copy nothing.
pub struct Run {
    slab: NonNull<Slab>,
    /// First atom in the slab.
    start: u32,
    atoms: u32,
}

// SAFETY: the contents never change while a `Run` exists, and the count is atomic.
unsafe impl Send for Run {}
// SAFETY: as above.
unsafe impl Sync for Run {}

impl Run {
    pub fn as_slice(&self) -> &[u8] {
        // SAFETY: the range lies inside the slab (kept by `slice`), whose memory is initialised and immutable.
        unsafe {
            let data = self.slab.as_ref().data.add(self.start as usize * ATOM);
            std::slice::from_raw_parts(data.as_ptr(), self.atoms as usize * ATOM)
        }
    }

    /// Length in bytes.
    pub fn bytes(&self) -> usize {
        self.atoms as usize * ATOM
    }

    /// A copy of so many atoms of pages, one behind the other, without the first `skip` atoms.
    ///
    /// # Panics
    /// If the pages do not hold as much.
    pub fn copied<'p>(pages: impl Iterator<Item = &'p [u8]>, skip: u64, atoms: u64) -> Run {
        let mut run = RunMut::new(atoms);
        let (mut rest, mut skip) = (run.as_mut_slice(), skip as usize * ATOM);
        let mut pages = pages.peekable();
        while let Some(page) = pages.next() {
            let part = &page[skip.min(page.len())..];
            let (here, behind) = rest.split_at_mut(part.len().min(rest.len()));
            copy(&part[..here.len()], here, pages.peek().copied().unwrap_or_default());
            (rest, skip) = (behind, skip.saturating_sub(page.len()));
        }
        assert!(rest.is_empty(), "the pages hold what is asked for");
        run.freeze()
    }

    /// Bytes of memory that it keeps, if it is the only one to keep them: at least whole pages of its slab.
    pub fn memory(&self) -> u64 {
        self.bytes().next_multiple_of(ALIGNMENT) as u64
    }

    /// Bytes of memory that stay for as long as any run of its slab does; of the zeros that everybody shares none.
    pub fn slab_bytes(&self) -> u64 {
        // SAFETY: `self` keeps the slab alive.
        let bytes = unsafe { self.slab.as_ref() }.bytes;
        if self.shared_zeros().is_some() { 0 } else { bytes as u64 }
    }

    /// Is it pages of the memory tier?
    pub fn is_leased(&self) -> bool {
        // SAFETY: `self` keeps the slab alive.
        unsafe { self.slab.as_ref() }.class == LEASED
    }

    fn share(&self, start: u32, atoms: u32) -> Run {
        // SAFETY: `self` keeps the slab alive.
        let before = unsafe { self.slab.as_ref() }.refs.fetch_add(1, Ordering::Relaxed);
        assert!(before < u32::MAX / 2, "the reference count of a slab is about to overflow");
        Run { slab: self.slab, start, atoms }
    }
}

impl Clone for Run {
    fn clone(&self) -> Run {
        self.share(self.start, self.atoms)
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        // SAFETY: `self` keeps the slab alive until the decrement.
        let Slab { refs, class, .. } = unsafe { self.slab.as_ref() };
        let class = *class;
        if refs.fetch_sub(1, Ordering::Release) == 1 {
            fence(Ordering::Acquire);
            put(self.slab, class);
        }
    }
}

impl fmt::Debug for Run {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Run({} atoms)", self.atoms)
    }
}

impl PartialEq for Run {
    fn eq(&self, other: &Run) -> bool {
        self.as_slice() == other.as_slice()
    }
}

impl Eq for Run {}

/// Memory that is somebody else's, and how many runs there are of it.
pub(super) struct Leased {
    slab: NonNull<Slab>,
}

// SAFETY: what it refers to is the header, whose count is atomic and which does not change otherwise.
unsafe impl Send for Leased {}

impl Leased {
    /// `bytes` from `start` on. `None`: there are atoms that no run can begin with (behind 2 TiB).
    pub(super) fn new(start: NonNull<u8>, bytes: usize) -> Option<Leased> {
        u32::try_from(bytes / ATOM).ok().map(|_| Leased { slab: Slab::boxed(LEASED, bytes, start) })
    }

    fn slab(&self) -> &Slab {
        // SAFETY: it lives as long as `self`, and as any run of it.
        unsafe { self.slab.as_ref() }
    }

    /// No run of it is left, and what was read there has been read.
    pub(super) fn is_free(&self) -> bool {
        self.slab().refs.load(Ordering::Acquire) == 0
    }

    /// # Safety
    /// `part` is whole atoms of this memory, at a multiple of an atom, and stays as it is until [`Leased::is_free`].
    pub(super) unsafe fn run(&self, part: &[u8]) -> Run {
        let start = part.as_ptr().addr() - self.slab().data.addr().get();
        self.slab().refs.fetch_add(1, Ordering::Relaxed);
        Run { slab: self.slab, start: (start / ATOM) as u32, atoms: (part.len() / ATOM) as u32 }
    }
}

impl Drop for Leased {
    fn drop(&mut self) {
        // Otherwise the header stays for those that are left: they say so when they go.
        if self.is_free() {
            // SAFETY: nobody else refers to it; it came from `boxed`.
            drop(unsafe { Box::from_raw(self.slab.as_ptr()) });
        }
    }
}

/// 1 MiB of zeros that everybody shares.
fn zeros() -> &'static Run {
    static ZEROS: OnceLock<Run> = OnceLock::new();
    ZEROS.get_or_init(|| zeroed((CLASS_BYTES_MAX / ATOM) as u64))
}

fn zeroed(atoms: u64) -> Run {
    let mut run = RunMut::new(atoms);
    run.as_mut_slice().fill(0);
    run.freeze()
}

fn checksum(bytes: &[u8], by: Checksum) -> u32 {
    by.of(crc(bytes), || sum(bytes))
}

/// CRC32C: it is paid for every byte. With 512-bit multiplications where there are any, two to three times as quick as the CRC instructions, which
/// are the quickest elsewhere.
fn crc(bytes: &[u8]) -> u32 {
    if has_wide_multiplications() { by_multiplications(bytes) } else { crc32c::crc32c(bytes) }
}

/// Of whole words: contents are atoms.
fn sum(bytes: &[u8]) -> u64 {
    let (words, _) = bytes.as_chunks();
    words.iter().fold(0, |sum, word| sum.wrapping_add(u64::from_le_bytes(*word)))
}

fn by_multiplications(bytes: &[u8]) -> u32 {
    crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, bytes) as u32
}

#[cfg(target_arch = "x86_64")]
fn has_wide_multiplications() -> bool {
    std::arch::is_x86_feature_detected!("avx512vl") && std::arch::is_x86_feature_detected!("vpclmulqdq")
}

#[cfg(not(target_arch = "x86_64"))]
fn has_wide_multiplications() -> bool {
    true
}

impl Payload for Run {
    fn atoms(&self) -> u64 {
        u64::from(self.atoms)
    }

    fn zero(atoms: u64) -> Run {
        if atoms <= zeros().atoms() { zeros().slice(0, atoms) } else { zeroed(atoms) }
    }

    fn shared_zeros(&self) -> Option<Range<u64>> {
        let start = u64::from(self.start);
        (self.slab == zeros().slab).then(|| start..start + self.atoms())
    }

    fn slice(&self, start: u64, atoms: u64) -> Run {
        assert!(atoms > 0, "a run is never empty");
        assert!(start + atoms <= self.atoms(), "atoms {start}+{atoms} of a run of {}", self.atoms);
        self.share(self.start + start as u32, atoms as u32)
    }

    fn concat(parts: &[Run]) -> Run {
        if let [part] = parts {
            return part.clone();
        }
        let mut whole = RunMut::new(parts.iter().map(Run::atoms).sum());
        let mut rest = whole.as_mut_slice();
        for part in parts {
            let (here, behind) = rest.split_at_mut(part.bytes());
            here.copy_from_slice(part.as_slice());
            rest = behind;
        }
        whole.freeze()
    }

    fn checksum(&self, by: Checksum) -> u32 {
        checksum(self.as_slice(), by)
    }

    fn checksums(&self, by: Checksum, atoms: u64, each: impl FnMut(u32)) {
        assert!(self.atoms().is_multiple_of(atoms), "whole pieces");
        let bytes = atoms as usize * ATOM;
        let pieces = self.as_slice().chunks_exact(bytes);
        if has_wide_multiplications() {
            return pieces.map(|piece| checksum(piece, by)).for_each(each);
        }
        // What a device has just brought comes from far: the next piece is asked for before this one is needed. (Of CRCs alone, on an EPYC, 111
        // instead of 165 us a MiB, which is what it takes to read that at all.)
        let ask_for = |piece: &[u8]| (0..bytes).step_by(LINE_BYTES).for_each(|line| prefetch(&raw const piece[line]));
        let next = pieces.clone().skip(1).map(Some).chain([None]);
        let sum = |(piece, next): (&[u8], Option<&[u8]>)| {
            next.into_iter().for_each(ask_for);
            checksum(piece, by)
        };
        pieces.zip(next).map(sum).for_each(each);
    }

    fn from_bytes(bytes: &[u8]) -> Run {
        assert!(bytes.len().is_multiple_of(ATOM), "{} bytes are not whole atoms", bytes.len());
        let mut run = RunMut::new((bytes.len() / ATOM) as u64);
        run.as_mut_slice().copy_from_slice(bytes);
        run.freeze()
    }

    fn append_to(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(self.as_slice());
    }

    fn from_pages(pages: &[&[u8]], skip: u64, atoms: u64) -> Run {
        Run::copied(pages.iter().copied(), skip, atoms)
    }

    fn bytes(&self) -> Cow<'_, [u8]> {
        self.as_slice().into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_engine::payload::bytes_held;

    fn run(atoms: u64, seed: u8) -> Run {
        let mut run = RunMut::new(atoms);
        run.as_mut_slice().iter_mut().enumerate().for_each(|(at, byte)| *byte = (at / ATOM) as u8 ^ seed);
        run.freeze()
    }

    #[test]
    fn a_slice_shares_the_memory_and_sees_its_atoms() {
        let whole = run(8, 0x40);
        let part = whole.slice(2, 3).slice(1, 2);
        assert_eq!(part.as_slice().as_ptr(), whole.as_slice()[3 * ATOM..].as_ptr());
        assert_eq!(part, Run::concat(&[whole.slice(3, 1), whole.slice(4, 1)]));
        drop(whole);
        assert!(part.as_slice()[..ATOM].iter().all(|byte| *byte == 3 ^ 0x40));
    }

    #[test]
    fn what_is_of_the_zeros_that_everybody_shares_is_known() {
        let (one, other) = (Run::zero(2_048), Run::zero(16).slice(8, 4));
        assert_eq!((one.shared_zeros(), other.shared_zeros()), (Some(0..2_048), Some(8..12)));
        let own = zeroed(8);
        assert_eq!((own.shared_zeros(), own.slice(3, 1).shared_zeros(), run(8, 0).shared_zeros()), (None, None, None));
        assert_eq!(bytes_held([&one, &own, &other, &one].into_iter()), (1 << 20) + 4_096);
    }

    #[test]
    fn every_size_is_aligned_and_whole() {
        for atoms in [1, 7, 8, 9, 255, 256, 2047, 2048, 2049, 70_000] {
            let mut memory = RunMut::new(atoms);
            assert_eq!(memory.as_mut_slice().len(), atoms as usize * ATOM);
            assert!(memory.as_slice().as_ptr().addr().is_multiple_of(ALIGNMENT));
            memory.as_mut_slice().fill(0xaa);
            assert_eq!(memory.freeze().atoms(), atoms);
        }
    }

    #[test]
    fn zero_is_zero_even_after_dirty_memory_was_recycled() {
        for atoms in [1, 8, 2048, 4096] {
            let mut dirty = RunMut::new(atoms);
            dirty.as_mut_slice().fill(0xff);
            drop(dirty);
            let zero = Run::zero(atoms);
            assert_eq!(zero.atoms(), atoms);
            assert!(zero.as_slice().iter().all(|byte| *byte == 0));
        }
    }

    #[test]
    fn a_run_in_use_is_never_handed_out_again() {
        let threads: Vec<_> = (0..4u8)
            .map(|seed| {
                std::thread::spawn(move || {
                    let mut kept: Vec<(Run, u8)> = Vec::new();
                    for step in 0..2_000u64 {
                        let seed = seed ^ step as u8;
                        kept.push((run(1 + step % 40, seed), seed));
                        if step % 3 == 0 {
                            let (old, seed) = kept.swap_remove((step as usize * 7) % kept.len());
                            assert_eq!(old, run(old.atoms(), seed));
                        }
                    }
                    kept.iter().for_each(|(old, seed)| assert_eq!(*old, run(old.atoms(), *seed)));
                })
            })
            .collect();
        threads.into_iter().for_each(|thread| thread.join().expect("the thread found no mix-up"));
    }

    #[test]
    fn the_checksum_is_crc32c_of_the_bytes() {
        // RFC 3720, B.4. A cache moves from a machine of one kind to one of the other.
        let ascending: Vec<u8> = (0..32).collect();
        for (bytes, expected) in [(&[0; 32][..], 0x8a91_36aa), (&[0xff; 32], 0x62a8_ab43), (&ascending, 0x46dd_794e)] {
            assert_eq!([by_multiplications(bytes), crc32c::crc32c(bytes)], [expected; 2]);
        }
        for atoms in [1, 3, 8, 2048] {
            let run = run(atoms, 0x35);
            assert_eq!([by_multiplications(run.as_slice()), crc32c::crc32c(run.as_slice())], [run.checksum(Checksum::Crc); 2]);
        }
        let (whole, mut pieces) = (run(24, 0x17), Vec::new());
        for by in [Checksum::Crc, Checksum::CrcAndSum] {
            whole.slice(8, 16).checksums(by, 8, |crc| pieces.push(crc));
            assert_eq!(pieces, [whole.slice(8, 8).checksum(by), whole.slice(16, 8).checksum(by)]);
            pieces.clear();
        }
        let mut again = Vec::new();
        run(3, 9).append_to(&mut again);
        assert_eq!(Run::from_bytes(&again), run(3, 9));
    }

    /// docs/format.md: the sum of the words behind the contents.
    #[test]
    fn contents_that_end_with_their_crc_are_told_from_each_other() {
        let whole = |seed: u8, begun: u32| {
            let mut bytes = run(8, seed).as_slice().to_vec();
            let end = bytes.len() - 4;
            // As ext4 ends an extent block: from what the file's number says, not turned over at the end.
            let crc = !crc32c::crc32c_append(!begun, &bytes[..end]);
            bytes[end..].copy_from_slice(&crc.to_le_bytes());
            Run::from_bytes(&bytes)
        };
        for begun in [0, 0x1234_5678, u32::MAX] {
            let (one, other) = (whole(1, begun), whole(2, begun));
            assert_eq!(one.checksum(Checksum::Crc), other.checksum(Checksum::Crc));
            assert_ne!(one.checksum(Checksum::CrcAndSum), other.checksum(Checksum::CrcAndSum));
        }
        let two = Run::from_bytes(&[[3; 256], [0xff; 256]].concat());
        let sum = 32u64.wrapping_mul(0x0303_0303_0303_0303).wrapping_sub(32);
        assert_eq!(two.checksum(Checksum::CrcAndSum), crc32c::crc32c(&[two.as_slice(), &sum.to_le_bytes()].concat()));
    }

    /// What a flipped bit does to the CRC of a block of 4 KiB, no carry in the sum behind it undoes.
    #[test]
    fn every_flipped_bit_changes_the_checksum() {
        const BYTES: usize = 4096;
        let mut bytes = [0; BYTES + 8];
        let none = crc32c::crc32c(&bytes);
        let change = |bytes: &[u8; BYTES + 8]| crc32c::crc32c(&bytes[..]) ^ none;
        let carries: Vec<Vec<u32>> = (0..64)
            .map(|first| {
                let of = |last: u32| {
                    let flipped = u64::MAX << first & u64::MAX >> (63 - last);
                    bytes[BYTES..].copy_from_slice(&flipped.to_le_bytes());
                    change(&bytes)
                };
                (first..64).map(of).collect()
            })
            .collect();
        bytes[BYTES..].fill(0);
        for bit in 0..8 * BYTES {
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert!(!carries[bit % 64].contains(&change(&bytes)), "bit {bit}");
            bytes[bit / 8] = 0;
        }
    }

    #[test]
    fn the_largest_runs_come_instead_of_free_slabs() {
        let eight = || (0..8).map(|_| RunMut::new(CLASS_BYTES_MAX as u64 / ATOM_BYTES)).collect::<Vec<_>>();
        let mut held = eight();
        held.iter_mut().for_each(|run| run.as_mut_slice().fill(7));
        drop(held);
        assert!(eight().iter().filter(|run| run.as_slice()[0] == 7).count() > 4, "they are kept");
        drop(RunMut::new(TRIM_BYTES as u64 / ATOM_BYTES));
        assert!(eight().iter().filter(|run| run.as_slice()[0] == 7).count() < 4, "the last ones alone");
    }
}
