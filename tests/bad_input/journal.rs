//! The row "Journal, map, segment": pages that are sealed as they should be and say what cannot be.

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::Path;

use super::{assert_refused, everything, reseal};
use crate::common::chance::Chance;
use crate::common::daemon::Daemon;
use crate::common::{text, tool, volume};

const PAGE: usize = 4096;
/// Where the records of a journal page begin.
const RECORDS: usize = 64;
const PUT: u8 = 1;

/// A journal page in the cache: where it lies, and what it says.
struct Page {
    offset: u64,
    seq: u64,
    bytes: Vec<u8>,
}

/// The journal pages of a cache, in the order of their numbers.
fn pages(cache: &Path) -> Vec<Page> {
    let bytes = fs::read(cache).unwrap();
    let word = |page: &[u8], at: usize| u64::from_le_bytes(page[at..at + 8].try_into().unwrap());
    let mut pages: Vec<Page> = (0..)
        .zip(bytes.chunks_exact(PAGE))
        .filter(|(number, page)| page.starts_with(b"TIDJ") && word(page, 16) == number * 8 && word(page, 8) == word(&bytes, 32))
        .map(|(number, page)| Page { offset: number * PAGE as u64, seq: word(page, 40), bytes: page.to_vec() })
        .collect();
    pages.sort_by_key(|page| page.seq);
    pages
}

/// A cache that was killed with eight flushed writes in its journal; and the place among its pages of one that tells of a write, with
/// durable ones behind it.
fn killed(dir: &Path) -> (Vec<Page>, usize) {
    // On a busy machine the origin's flush may be the quicker one, and then the journal tells nothing of what went there.
    fs::write(dir.join("config.toml"), "[log]\ncommit_home = false\n").unwrap();
    let daemon = Daemon::up(dir);
    let mut client = daemon.connect();
    for block in 0..8 {
        client.write(block * PAGE as u64, &Chance::new(block).bytes(PAGE)).unwrap();
        client.flush().unwrap();
    }
    daemon.kill();
    // What a killed daemon leaves behind, any start takes over.
    ["nbd.sock", "control.sock"].iter().for_each(|socket| fs::remove_file(dir.join(socket)).unwrap());
    let pages = pages(&dir.join("cache.img"));
    let puts: Vec<usize> = (0..pages.len()).filter(|place| pages[*place].bytes[RECORDS] == PUT).collect();
    assert!(puts.len() >= 6, "{} pages tell of writes", puts.len());
    (pages, puts[2])
}

/// What is changed at which byte of the page, the numbers as docs/format.md has them.
const IMPOSSIBLE: &[(&str, usize, &[u8])] = &[
    ("a block beyond the volume", RECORDS + 16, &[0xff; 6]),
    ("the first block beyond the volume", RECORDS + 16, &[0, 0x30, 0, 0, 0, 0]),
    ("no entry", RECORDS + 2, &[0, 0]),
    ("more entries than the page holds", RECORDS + 2, &[0xff, 0xff]),
    ("a set beyond the cache", RECORDS + 4, &[0xff; 4]),
    ("a slot beyond the set", RECORDS + 8, &[0xff; 4]),
    ("an entry without an atom", RECORDS + 22, &[0]),
    ("a kind that nobody knows", RECORDS, &[77]),
    ("flags that nobody knows", RECORDS + 1, &[0x80]),
    ("a life from the future", RECORDS + 12, &[0xff; 4]),
    ("an epoch from the future", 32, &[0, 0, 0, 0, 0, 0, 0, 0x20]),
    ("an epoch beyond all numbers", 32, &[0xff; 8]),
    ("a sequence number from the future", 40, &[0, 0, 0, 0, 0, 0, 0, 0x20]),
    ("a page that counts itself durable", 48, &[0xff; 8]),
    ("2^16 - 1 records", 60, &[0xff, 0xff]),
    ("page 2^32 - 1 of its group", 28, &[0xff; 4]),
    ("a page that follows itself", 56, &[0x11, 0x22, 0x33, 0x44]),
];

/// Any of them: damage below what was durable. Nothing is served, the place is named, nothing is changed.
#[test]
fn a_sealed_journal_page_that_says_the_impossible_is_refused_with_its_place() {
    let folder = volume("48MiB", "64MiB", "");
    let dir = folder.path();
    let (pages, place) = killed(dir);
    let cache = dir.join("cache.img");
    let file = fs::File::options().write(true).open(&cache).unwrap();
    for (name, at, bytes) in IMPOSSIBLE {
        let Page { offset, bytes: good, .. } = &pages[place];
        let mut page = good.clone();
        page[*at..*at + bytes.len()].copy_from_slice(bytes);
        assert_ne!(&page, good, "{name}: nothing was changed");
        reseal(&mut page);
        file.write_all_at(&page, *offset).unwrap();
        let before = everything(dir);
        // A fence against what a count of 2^32 - 1 could ask for.
        let limited =
            |arguments: &[&str]| tool::run("prlimit", &[&["--as=1073741824", env!("CARGO_BIN_EXE_tidegate")], arguments].concat());
        let checked = limited(&["check", "--cache", text(&cache)]);
        assert_eq!(checked.code, Some(1), "{name}: {checked}");
        assert!(checked.stdout.contains("byte "), "{name}: the place is named: {checked}");
        let refused = limited(&["up", "--dir", text(dir)]);
        assert_refused(name, &refused, 65, &["byte ", "nothing was changed"]);
        assert_eq!(everything(dir), before, "{name}");
        file.write_all_at(good, *offset).unwrap();
    }
    let daemon = Daemon::up(dir);
    let mut client = daemon.connect();
    (0..8).for_each(|block| client.expect(block * PAGE as u64, &Chance::new(block).bytes(PAGE)));
    drop(client);
    daemon.stop();
}

/// Makes of one page, looking at another one, what nobody has written.
type Forge = fn(&mut [u8], &[u8]);

/// The same, with every later page chained to it: whoever writes such a log writes a log. It is read to its end
/// without a panic, without much memory, and within the time of any other one.
#[test]
fn whatever_a_chained_journal_says_it_is_read_to_its_end_or_refused() {
    let folder = volume("48MiB", "64MiB", "");
    let dir = folder.path();
    let (pages, place) = killed(dir);
    let cache = dir.join("cache.img");
    let file = fs::File::options().write(true).open(&cache).unwrap();
    // A second page of the number and the slots of the first: overlapping, and a cycle of two.
    let copies: [(&str, Forge); 3] = [
        ("the same slots twice", |page, other| page[RECORDS..].copy_from_slice(&other[RECORDS..])),
        ("the same number twice", |page, other| page[40..48].copy_from_slice(&other[40..48])),
        ("what another page says", |page, other| page[28..].copy_from_slice(&other[28..])),
    ];
    let mut forgeries: Vec<(&str, Vec<u8>)> = Vec::new();
    for (name, at, bytes) in IMPOSSIBLE {
        let mut page = pages[place].bytes.clone();
        page[*at..*at + bytes.len()].copy_from_slice(bytes);
        forgeries.push((name, page));
    }
    for (name, copy) in copies {
        let mut page = pages[place].bytes.clone();
        copy(&mut page, &pages[place - 1].bytes);
        forgeries.push((name, page));
    }
    for (name, forged) in forgeries {
        let mut chain = None;
        for (number, page) in pages.iter().enumerate().skip(place) {
            let mut bytes = if number == place { forged.clone() } else { page.bytes.clone() };
            if let Some(chain) = chain {
                bytes[56..60].copy_from_slice(&u32::to_le_bytes(chain));
            }
            chain = Some(crc32c::crc32c(&bytes[28..]));
            reseal(&mut bytes);
            file.write_all_at(&bytes, page.offset).unwrap();
        }
        let limited = ["--as=1073741824", env!("CARGO_BIN_EXE_tidegate"), "check", "--cache", text(&cache)];
        let checked = tool::run("prlimit", &limited);
        assert!(matches!(checked.code, Some(0 | 1)), "{name}: {checked}");
        assert!(!checked.stderr.contains("panicked"), "{name}: {checked}");
        pages.iter().for_each(|page| file.write_all_at(&page.bytes, page.offset).unwrap());
    }
    Daemon::up(dir).stop();
}
