//! What a device holds: stamps for data, bytes for metadata pages, nothing for what was never written (it reads as zeros).
//! A clone is a snapshot: what lies below the first level is shared until one side writes. What nobody wrote costs next to nothing, so a
//! terabyte may be simulated (its first level is half a megabyte).
//!
//! ```text
//!   trunk ─▶ branch: 512 chunks = 16 MiB ─▶ chunk: 64 stamps = 32 KiB
//! ```

use crate::stamp::Stamps;
use std::rc::Rc;
use tidegate_engine::block::{ATOM_BYTES, PAGE_ATOMS, PAGE_BYTES, Span};
use tidegate_engine::payload::Payload;

/// Atoms of a chunk of data: what is copied at the first write after a snapshot.
const CHUNK: usize = 64;
/// Chunks of a branch.
const BRANCH: usize = 512;
const PAGE: usize = PAGE_BYTES as usize;

type Chunk = [u64; CHUNK];
type Branch = [Option<Rc<Chunk>>; BRANCH];

/// The atoms of one device: metadata pages below `data_start`, stamps from there on.
#[derive(Clone, Debug)]
pub struct Contents {
    data_start: u64,
    pages: Vec<Option<Page>>,
    trunk: Vec<Option<Rc<Branch>>>,
}

/// 4 KiB at `offset` of shared bytes.
#[derive(Clone, Debug)]
struct Page {
    bytes: Rc<[u8]>,
    offset: usize,
}

impl Page {
    fn get(&self) -> &[u8] {
        &self.bytes[self.offset..self.offset + PAGE]
    }
}

impl Contents {
    /// A blank device of `atoms` atoms with metadata before `data_start` (a whole number of pages).
    pub fn blank(data_start: u64, atoms: u64) -> Self {
        assert!(data_start.is_multiple_of(PAGE_ATOMS) && data_start <= atoms);
        Contents {
            data_start,
            pages: vec![None; (data_start / PAGE_ATOMS) as usize],
            trunk: vec![None; (atoms - data_start).div_ceil((BRANCH * CHUNK) as u64) as usize],
        }
    }

    /// The chunk that holds atom `at` of the data; none: zeros.
    fn chunk(&self, at: usize) -> Option<&Chunk> {
        self.trunk[at / CHUNK / BRANCH].as_ref()?[at / CHUNK % BRANCH].as_deref()
    }

    /// The same, to be written.
    fn chunk_mut(&mut self, at: usize) -> &mut Chunk {
        let branch = self.trunk[at / CHUNK / BRANCH].get_or_insert_with(|| Rc::new([const { None }; BRANCH]));
        Rc::make_mut(Rc::make_mut(branch)[at / CHUNK % BRANCH].get_or_insert_with(|| Rc::new([0; CHUNK])))
    }

    /// The stamp of one atom.
    pub fn stamp(&self, atom: u64) -> u64 {
        match atom.checked_sub(self.data_start) {
            Some(at) => self.chunk(at as usize).map_or(0, |chunk| chunk[at as usize % CHUNK]),
            None => self.read_page(atom, 1).stamp(0),
        }
    }

    /// The contents of `span`: one payload for data, one for each page of metadata.
    pub fn read(&self, span: Span) -> Vec<Stamps> {
        let Some(at) = span.start.checked_sub(self.data_start) else { return self.read_pages(span) };
        let (mut at, mut stamps) = (at as usize, vec![0; span.atoms as usize]);
        let mut rest = &mut stamps[..];
        while !rest.is_empty() {
            let (piece, after) = rest.split_at_mut(rest.len().min(CHUNK - at % CHUNK));
            if let Some(chunk) = self.chunk(at) {
                piece.copy_from_slice(&chunk[at % CHUNK..][..piece.len()]);
            }
            at += piece.len();
            rest = after;
        }
        vec![Stamps::from_stamps(&stamps)]
    }

    fn read_pages(&self, span: Span) -> Vec<Stamps> {
        assert!(span.end() <= self.data_start, "an access lies in metadata or in data");
        pieces(span, PAGE_ATOMS).map(|piece| self.read_page(piece.start, piece.atoms)).collect()
    }

    fn read_page(&self, start: u64, atoms: u64) -> Stamps {
        match &self.pages[(start / PAGE_ATOMS) as usize] {
            None => Stamps::zero(atoms),
            Some(page) => {
                let first = page.offset as u64 / ATOM_BYTES + start % PAGE_ATOMS;
                Stamps::from_shared_bytes(page.bytes.clone()).slice(first, atoms)
            }
        }
    }

    pub fn write(&mut self, start: u64, data: &Stamps) {
        match start.checked_sub(self.data_start) {
            Some(at) => self.write_stamps(at as usize, data),
            None => {
                assert!(start + data.atoms() <= self.data_start, "an access lies in metadata or in data");
                for piece in pieces(Span::new(start, data.atoms()), PAGE_ATOMS) {
                    self.write_page(piece, &data.slice(piece.start - start, piece.atoms));
                }
            }
        }
    }

    fn write_stamps(&mut self, mut at: usize, data: &Stamps) {
        let end = at + data.atoms() as usize;
        let mut done = 0;
        while at < end {
            let atoms = (end - at).min(CHUNK - at % CHUNK);
            data.slice(done, atoms as u64).copy_stamps(&mut self.chunk_mut(at)[at % CHUNK..][..atoms]);
            at += atoms;
            done += atoms as u64;
        }
    }

    fn write_page(&mut self, piece: Span, data: &Stamps) {
        let page = &mut self.pages[(piece.start / PAGE_ATOMS) as usize];
        if piece.atoms == PAGE_ATOMS
            && let Some((bytes, offset)) = data.shared_bytes()
        {
            *page = Some(Page { bytes: bytes.clone(), offset });
            return;
        }
        let mut bytes = page.as_ref().map_or_else(|| vec![0; PAGE], |page| page.get().to_vec());
        let mut part = Vec::with_capacity(PAGE);
        data.append_to(&mut part);
        bytes[((piece.start % PAGE_ATOMS) * ATOM_BYTES) as usize..][..part.len()].copy_from_slice(&part);
        *page = Some(Page { bytes: bytes.into(), offset: 0 });
    }

    /// The bytes of a metadata page.
    pub fn page_bytes(&self, start: u64) -> Vec<u8> {
        self.pages[(start / PAGE_ATOMS) as usize].as_ref().map_or_else(|| vec![0; PAGE], |page| page.get().to_vec())
    }

    /// Changes one atom so that no checksum over it holds: another stamp, or one flipped bit of its bytes.
    pub fn rot(&mut self, atom: u64, bit: u64) {
        if atom >= self.data_start {
            let rotten = crate::chance::mix(self.stamp(atom) ^ bit) | crate::stamp::HASHED;
            self.write(atom, &Stamps::from_stamps(&[rotten]));
            return;
        }
        let mut bytes = Vec::new();
        self.read_page(atom, 1).append_to(&mut bytes);
        let bit = (bit % (ATOM_BYTES * 8)) as usize;
        bytes[bit / 8] ^= 1 << (bit % 8);
        self.write(atom, &Stamps::from_bytes(&bytes));
    }
}

/// `span` cut at every multiple of `grain`.
fn pieces(span: Span, grain: u64) -> impl Iterator<Item = Span> {
    let mut start = span.start;
    std::iter::from_fn(move || {
        let atoms = (span.end() - start).min(grain - start % grain);
        let piece = Span::new(start, atoms);
        start += atoms;
        (atoms > 0).then_some(piece)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chance::Chance;

    fn stamps(contents: &Contents, span: Span) -> Vec<u64> {
        contents.read(span).iter().flat_map(|part| part.stamps().collect::<Vec<_>>()).collect()
    }

    #[test]
    fn it_holds_what_a_flat_array_holds() {
        const META: u64 = 64;
        // Data is written across the border between two branches.
        const FIRST: u64 = META + 32_400;
        const END: u64 = FIRST + 1_000;
        let mut chance = Chance::new(1, "contents");
        let (mut contents, mut flat) = (Contents::blank(META, END), vec![0; END as usize]);
        let mut snapshots = Vec::new();
        for write in 1..2_000 {
            let area = if chance.one_in(2) { 0..META } else { FIRST..END };
            let start = chance.between(area.start, area.end - 1);
            let span = Span::new(start, chance.between(1, (area.end - start).min(150)));
            let data = if chance.one_in(4) { Stamps::zero(span.atoms) } else { Stamps::written(write, start, span.atoms) };
            contents.write(start, &data);
            data.copy_stamps(&mut flat[start as usize..span.end() as usize]);
            assert_eq!(stamps(&contents, span), flat[start as usize..span.end() as usize]);
            if chance.one_in(100) {
                snapshots.push((contents.clone(), flat.clone()));
            }
        }
        for (contents, flat) in snapshots {
            assert_eq!(stamps(&contents, Span::new(0, META)), flat[..META as usize]);
            assert_eq!(stamps(&contents, Span::new(META, END - META)), flat[META as usize..]);
        }
    }

    #[test]
    fn a_terabyte_is_sparse_and_its_snapshots_are_its_own() {
        let terabyte = 1 << 31;
        let mut contents = Contents::blank(64, terabyte);
        let mut chance = Chance::new(1, "terabyte");
        let mut before = Vec::new();
        for write in 1..1_000 {
            let start = chance.between(64, terabyte - 8);
            before.push((contents.clone(), start, contents.stamp(start)));
            contents.write(start, &Stamps::from_stamps(&[write; 8]));
            assert_eq!(stamps(&contents, Span::new(start, 8)), [write; 8]);
        }
        assert!(before.iter().all(|(snapshot, start, stamp)| snapshot.stamp(*start) == *stamp));
    }

    #[test]
    fn whole_pages_of_bytes_come_back_as_written_and_rot_is_seen() {
        let mut contents = Contents::blank(64, 128);
        let bytes: Vec<u8> = (0..8192u32).map(|i| (i * 7) as u8).collect();
        contents.write(8, &Stamps::from_bytes(&bytes));
        assert_eq!([contents.page_bytes(8), contents.page_bytes(16)].concat(), bytes);
        contents.rot(17, 3);
        assert_ne!(contents.page_bytes(16), bytes[4096..]);
        contents.write(100, &Stamps::written(1, 0, 2));
        let before = contents.stamp(101);
        contents.rot(101, 0);
        assert_ne!(contents.stamp(101), before);
        assert_eq!(crate::stamp::meaning(contents.stamp(101)), None);
    }
}
