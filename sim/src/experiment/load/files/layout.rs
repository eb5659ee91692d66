//! Where a file system puts files, inodes and its journal, in pages of 4 KiB. Each file has a place for the largest that it may be.
//!
//! ```text
//!   ext3   journal │ group: bitmaps, inodes, directory, files … │ group … (128 MiB each)    directories anywhere among the groups
//!   XFS    allocation group: inodes, files … │ … │ log, files … │ …  (4 on the volume)      directories in turn
//!   NILFS  everything one after the other, each time it is written
//! ```

use crate::chance::mix;
use std::collections::HashMap;

/// Pages of a block group: 128 MiB.
pub const GROUP: u64 = 32_768;
/// Of those: bitmaps and inodes.
const TABLES: u64 = 516;
/// Pages of a journal or log: 128 MiB.
pub const JOURNAL: u64 = 32_768;
const ALLOCATION_GROUPS: u64 = 4;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Ext3,
    Xfs,
    Nilfs,
}

impl Kind {
    pub const ALL: [(&str, Kind); 3] = [("ext3", Kind::Ext3), ("xfs", Kind::Xfs), ("nilfs", Kind::Nilfs)];
}

pub struct Layout {
    kind: Kind,
    pages: u64,
    places: Vec<u64>,
    /// The home of each file: a block group, or an allocation group.
    homes: Vec<u64>,
    directory: u64,
    /// The first page behind all files.
    end: u64,
    journal: u64,
    written: u64,
    /// Where pages of files were last put by a log-structured file system.
    // Only looked into, never walked: its order does not matter.
    moved: HashMap<u64, u64>,
    head: u64,
}

impl Layout {
    /// For so many files with places of `file_pages`, on a volume of `pages`.
    pub fn new(kind: Kind, files: u32, file_pages: u64, directory: u32, pages: u64) -> Layout {
        let directory = u64::from(directory);
        let mut layout = Layout {
            kind,
            pages,
            places: Vec::new(),
            homes: Vec::new(),
            directory,
            end: 0,
            journal: 0,
            written: 0,
            moved: HashMap::new(),
            head: 0,
        };
        match kind {
            Kind::Ext3 => layout.place_in_groups(u64::from(files), file_pages),
            Kind::Xfs => layout.place_in_allocation_groups(u64::from(files), file_pages),
            Kind::Nilfs => {
                layout.places = (0..u64::from(files)).map(|file| file * file_pages).collect();
                layout.homes = vec![0; files as usize];
                layout.end = u64::from(files) * file_pages;
                layout.head = layout.end;
            }
        }
        layout
    }

    /// A directory has a group of its own choice, and goes on in the next one when that is full.
    fn place_in_groups(&mut self, files: u64, file_pages: u64) {
        let room = GROUP - TABLES - 1;
        // Twice the groups that are needed: a file system that is half full.
        let groups = (files * file_pages * 2).div_ceil(room).max(8);
        let mut used = vec![0; groups as usize];
        for file in 0..files {
            let mut group = if files <= self.directory { 0 } else { mix(file / self.directory) % groups };
            // A file larger than a group takes several of them.
            while used[group as usize] + file_pages.min(room) > room {
                group = (group + 1) % groups;
            }
            self.places.push((1 + group) * GROUP + TABLES + 1 + used[group as usize]);
            self.homes.push((1 + group) * GROUP);
            let mut left = file_pages;
            while left > 0 {
                let taken = left.min(room - used[group as usize]);
                used[group as usize] += taken;
                left -= taken;
                group = if left > 0 { (group + 1) % groups } else { group };
            }
        }
        self.end = (1 + groups) * GROUP;
    }

    fn place_in_allocation_groups(&mut self, files: u64, file_pages: u64) {
        let size = self.pages / ALLOCATION_GROUPS;
        let tables = files.div_ceil(16) + 64;
        let mut used = [tables; ALLOCATION_GROUPS as usize];
        self.journal = 2 * size + tables;
        used[2] += JOURNAL;
        for file in 0..files {
            let home = file / self.directory.min(files.div_ceil(ALLOCATION_GROUPS)) % ALLOCATION_GROUPS;
            self.places.push(home * size + used[home as usize]);
            self.homes.push(home * size);
            used[home as usize] += file_pages;
        }
        // The log of an application grows in the first one.
        self.end = used[0];
    }

    /// The page of a file's own page number `page`.
    pub fn page(&self, file: u32, page: u64) -> u64 {
        let place = || self.places.get(file as usize).copied().unwrap_or(self.end) + page;
        match self.kind {
            Kind::Ext3 | Kind::Xfs => place(),
            Kind::Nilfs => self.moved.get(&key(file, page)).copied().unwrap_or_else(place),
        }
    }

    /// What else changes with a file: its inode; and, when it comes or goes, its directory and what counts free blocks.
    pub fn metadata(&self, file: u32, comes_or_goes: bool) -> Vec<u64> {
        let (home, number) = (self.homes.get(file as usize).copied().unwrap_or(GROUP), u64::from(file));
        match self.kind {
            Kind::Ext3 => {
                let inode = home + 2 + number / 32 % (TABLES - 2);
                // Names of a directory take a block for about 100 of them.
                let names = home + TABLES - (number / 100 % 64);
                if comes_or_goes { vec![inode, home, home + 1, names] } else { vec![inode, home] }
            }
            Kind::Xfs => {
                let inode = home + 8 + number / 16;
                if comes_or_goes { vec![inode, home, home + 1, home + 2 + number / 100 % 6] } else { vec![inode, home] }
            }
            // Inode, the block tree above it, and the file that maps blocks: numbers, not places.
            Kind::Nilfs => {
                if comes_or_goes {
                    vec![number / 32, 1 << 30, (1 << 30) + 1, (1 << 31) + number / 100]
                } else {
                    vec![number / 32, 1 << 30, (1 << 30) + 1]
                }
            }
        }
    }

    /// The next `pages` of the journal, or of the log of everything.
    pub fn log(&mut self, pages: u64) -> u64 {
        if self.kind == Kind::Nilfs {
            if self.head + pages > self.pages {
                self.head = self.end;
            }
            self.head += pages;
            return self.head - pages;
        }
        if self.written + pages > JOURNAL {
            self.written = 0;
        }
        self.written += pages;
        self.journal + self.written - pages
    }

    /// A page of a file is put there from now on.
    pub fn moves(&mut self, file: u32, page: u64, to: u64) {
        self.moved.insert(key(file, page), to);
    }

    /// Where the first file begins, and where the last one ends.
    pub fn bounds(&self) -> (u64, u64) {
        (self.places.iter().copied().min().unwrap_or(0), self.pages)
    }

    /// The bitmap that says which pages are free around there, where that is looked up on the disk.
    pub fn bitmap(&self, page: u64) -> Option<u64> {
        (self.kind == Kind::Ext3).then_some(page / GROUP * GROUP)
    }

    pub fn kind(&self) -> Kind {
        self.kind
    }
}

/// A page of a file, as a number.
pub fn key(file: u32, page: u64) -> u64 {
    u64::from(file) << 28 | page
}

pub fn of_key(key: u64) -> (u32, u64) {
    ((key >> 28) as u32, key & ((1 << 28) - 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_lie_apart_from_each_other_and_from_what_is_about_them() {
        for (name, kind) in Kind::ALL {
            let layout = Layout::new(kind, 3_000, 68, 20, 244_000_000);
            let mut places: Vec<u64> = (0..3_000).map(|file| layout.page(file, 0)).collect();
            places.sort_unstable();
            assert!(places.windows(2).all(|pair| pair[1] - pair[0] >= 68), "{name}");
            assert!(places.iter().all(|&place| place + 68 <= 244_000_000), "{name}");
            if kind != Kind::Nilfs {
                for file in 0..3_000 {
                    for page in layout.metadata(file, true) {
                        let before = places.partition_point(|&place| place <= page);
                        assert!(before == 0 || page >= places[before - 1] + 68, "{name}: file {file}, page {page}");
                    }
                }
            }
        }
    }

    #[test]
    fn a_log_goes_round() {
        let mut ext3 = Layout::new(Kind::Ext3, 10, 4, 10, 1 << 24);
        let places: Vec<u64> = (0..5).map(|_| ext3.log(10_000)).collect();
        assert_eq!(places, [0, 10_000, 20_000, 0, 10_000]);
        let mut nilfs = Layout::new(Kind::Nilfs, 10, 4, 10, 1_000);
        assert_eq!([nilfs.log(500), nilfs.log(400), nilfs.log(400)], [40, 540, 40]);
    }
}
