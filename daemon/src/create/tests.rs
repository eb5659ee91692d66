//! What is made and what is overwritten, and what is refused.

use super::*;
use crate::state::Place;
use std::os::unix::fs::FileExt;
use tidegate_engine::block::Span;

fn options(folder: &Path) -> CreateOptions {
    CreateOptions {
        origin_bytes: Some(64 << 20),
        cache_bytes: Some(64 << 20),
        ..CreateOptions::new(folder.join("origin.img"), folder.join("cache.img"))
    }
}

#[test]
fn a_block_shares_no_sector_with_its_neighbours() {
    for (sector, block) in [(512, 512), (512, 4096), (4096, 4096), (4096, 65_536)] {
        assert_eq!(refuse_shared_sectors(sector, block), Ok(()), "{sector}, {block}");
    }
    // Journal pages have 4 KiB, whatever the blocks.
    for (sector, block) in [(4096, 512), (16_384, 4096), (16_384, 65_536)] {
        assert!(refuse_shared_sectors(sector, block).is_err_and(|why| why.contains("take another SSD")), "{sector}, {block}");
    }
}

fn folder() -> tempfile::TempDir {
    tempfile::tempdir().expect("a folder")
}

/// Refused with this code and this in the message; the cache's first MiB is what it was.
fn refuses(options: &CreateOptions, code: u8, what: &str) {
    let first = |path: &Path| {
        let mut bytes = vec![0; 1 << 20];
        File::open(path).and_then(|file| file.read_at(&mut bytes, 0)).map(|_| bytes).ok()
    };
    let before = first(&options.cache);
    let failure = create(options).expect_err("refused");
    assert_eq!((failure.code, failure.message.lines().count()), (code, 1), "{failure}");
    assert!(failure.message.contains(what), "{failure}");
    assert!(before == first(&options.cache));
}

#[test]
fn what_is_missing_is_made_and_formatted() {
    let folder = folder();
    let created = create(&options(folder.path())).expect("created");
    assert!(created.origin_is_new && created.cache_is_new && created.notes.is_empty());
    assert_eq!(created.volume_bytes(), 64 << 20);
    let geometry = created.geometry;
    drop(created);
    let cache = Disk::open(&folder.path().join("cache.img"), DeviceId::Cache, Access::Alone).expect("there");
    let superblock = crate::back::attach::superblock(&cache).expect("ours");
    assert_eq!(superblock.geometry, geometry);
    assert_ne!(superblock.format.0, superblock.volume);
}

#[test]
fn an_existing_cache_is_kept_without_force_and_gets_a_new_identity_with_it() {
    let folder = folder();
    let options = options(folder.path());
    create(&options).expect("created");
    refuses(&options, Failure::REFUSED, "is the tidegate cache of a volume of 67108864 bytes already");
    let format = || {
        let cache = Disk::open(&options.cache, DeviceId::Cache, Access::Shared).expect("there");
        crate::back::attach::superblock(&cache).expect("ours").format
    };
    let before = format();
    let notes = create(&CreateOptions { overwrite: Overwrite::Anything, ..options.clone() }).expect("forced").notes;
    assert!(matches!(&notes[..], [note] if note.ends_with("held nothing newer than the origin")), "{notes:?}");
    assert_ne!(before, format());
}

#[test]
fn a_file_system_is_never_overwritten_without_force() {
    let folder = folder();
    let options = options(folder.path());
    let file = File::create(&options.cache).expect("a file");
    file.set_len(64 << 20).and_then(|()| file.write_at(&[0x53, 0xef], 1080)).expect("written");
    refuses(&options, Failure::REFUSED, "holds an ext2 file system; run `tidegate create --force`");
    assert!(!options.origin.exists(), "the origin made on the way is gone again");
}

#[test]
fn a_cache_that_is_in_use_is_no_origin_and_one_that_cannot_be_read_neither() {
    let folder = folder();
    let first = options(folder.path());
    create(&first).expect("created");
    let wrong = CreateOptions { origin: first.cache.clone(), cache: folder.path().join("other.img"), ..first.clone() };
    let forced = CreateOptions { overwrite: Overwrite::Anything, ..wrong.clone() };
    for options in [&wrong, &forced] {
        refuses(options, Failure::REFUSED, "cache.img is the tidegate cache of a volume of 67108864 bytes, which may hold");
        assert!(!options.cache.exists());
    }
    // A disk with something else on it in the place of the cache: most likely they are swapped.
    let file = File::create(&wrong.cache).expect("a file");
    file.set_len(64 << 20).and_then(|()| file.write_at(&[0x53, 0xef], 1080)).expect("written");
    for options in [&wrong, &forced] {
        refuses(options, Failure::REFUSED, "cache.img holds a tidegate cache and cache ");
    }
    fs::remove_file(&wrong.cache).expect("there");
    let cache = File::options().write(true).open(&first.cache).expect("there");
    for copy in [0, 512 << 10] {
        cache.write_at(&[0xee; 8], copy + 200).expect("written");
    }
    refuses(&wrong, Failure::REFUSED, "cache.img holds a tidegate cache that cannot be read; name another one");
}

/// Most of what makes a file system or a table of partitions leaves our second superblock where it is.
#[test]
fn a_disk_that_once_was_a_cache_and_holds_something_else_now_is_an_origin() {
    let folder = folder();
    let first = options(folder.path());
    let mut table = [0xee; 17 << 10];
    table[510..512].copy_from_slice(&[0x55, 0xaa]);
    let begins: [(&[u8], u64); 2] = [(&[0x53, 0xef], 1080), (&table, 0)];
    for (bytes, at) in begins {
        create(&CreateOptions { overwrite: Overwrite::Anything, ..first.clone() }).expect("created");
        let disk = File::options().write(true).open(&first.cache).expect("there");
        disk.write_at(&[0; 4096], 0).and_then(|_| disk.write_at(bytes, at)).expect("written");
        let cache = folder.path().join("other.img");
        let next = CreateOptions { origin: first.cache.clone(), cache: cache.clone(), ..first.clone() };
        let held = create(&next).expect("an origin").held;
        let failure = Failure::new(Failure::REFUSED, "as it was".to_owned());
        assert_eq!(swapped(failure.clone(), &held.cache, &held.origin), failure, "they are not swapped");
        fs::remove_file(cache).expect("there");
    }
}

/// Whoever has made it meanwhile has it; it is opened as one that is there.
#[test]
fn a_file_that_somebody_else_makes_at_once_is_not_claimed() {
    let folder = folder();
    let path = folder.path().join("origin.img");
    File::create(&path).expect("a file");
    assert!(Disk::claim(&path, DeviceId::Origin).expect("nothing failed").is_none());
}

#[test]
fn attaching_takes_what_is_blank_or_detached_and_nothing_that_is_in_use() {
    let folder = folder();
    let options = CreateOptions { overwrite: Overwrite::Detached, ..options(folder.path()) };
    create(&options).expect("blank");
    refuses(&options, Failure::REFUSED, "cache.img is attached already; serve it with `tidegate up`");
    let cache = Disk::open(&options.cache, DeviceId::Cache, Access::Alone).expect("free");
    let superblock = crate::back::attach::superblock(&cache).expect("ours");
    crate::back::update::rewrite(&cache, &Superblock { detached: true, ..superblock.clone() }).expect("written");
    drop(cache);
    refuses(&CreateOptions { overwrite: Overwrite::Nothing, ..options.clone() }, Failure::REFUSED, "was detached from a volume");
    let created = create(&options).expect("detached");
    assert_eq!(created.replaced.expect("ours").format, superblock.format);
}

/// What the host knows of the cache that a volume last ran with is forgotten when its own is overwritten and is that one, or has failed; not with
/// another one, nor with what may be a copy.
#[test]
fn only_a_cache_that_was_overwritten_or_has_failed_is_given_up() {
    let folder = folder();
    let options = options(folder.path());
    let state = folder.path().join("state");
    let forced = CreateOptions { overwrite: Overwrite::Anything, ..options.clone() };
    let known = |format: &str| State {
        format: format.to_owned(),
        epoch: 1,
        bytes: Some(64 << 20),
        dirty: Some(3),
        mode: Mode::WriteThrough,
        ..State::default()
    };
    let other = "ab".repeat(16);
    create(&options).expect("created");
    let degraded = State { degraded: true, ..known(&other) };
    let larger = State { dirty: Some(0), bytes: Some(65 << 20), ..known(&other) };
    let own = Own { origin: true, cache: true };
    let elsewhere = Own { cache: false, ..own };
    let before_another = Own { origin: false, ..own };
    let others = Own { origin: false, cache: false };
    let copy = Some("what was overwritten may have been a copy of it, so a start with the new one asks for --accept-loss");
    // (is it the cache that is overwritten, which disks are the volume's own, what is known, is it given up, what is said)
    for (same, own, known, is_given_up, says) in [
        (true, own, known(""), true, None),
        (true, own, State { epoch: 2, ..known("") }, false, copy),
        (true, elsewhere, known(""), false, copy),
        (true, before_another, known(""), false, copy),
        (true, others, known(""), false, copy),
        (true, elsewhere, State { dirty: Some(0), ..known("") }, false, None),
        (false, own, known(&other), false, Some("with the cache abababab…, which held 3 blocks newer")),
        (false, own, degraded.clone(), true, Some("(abababab…) failed in service and alone had 3 blocks")),
        (false, elsewhere, degraded.clone(), true, Some("(abababab…) failed in service and alone had 3 blocks")),
        (false, others, degraded, false, Some("with the cache abababab…, which failed in service and alone had 3 blocks")),
        (false, own, State { dirty: Some(0), ..known(&other) }, false, None),
        (false, own, larger.clone(), true, None),
        (false, others, larger, false, None),
    ] {
        let cache = Disk::open(&options.cache, DeviceId::Cache, Access::Alone).expect("free");
        let format = if same { format_of(&crate::back::attach::superblock(&cache).expect("ours")) } else { known.format.clone() };
        drop(cache);
        let known = State { format, ..known };
        // Of the case before; the first one has none.
        let _ = fs::remove_file(&state);
        known.write(&Place::open(&state).expect("a folder")).expect("written");
        let said = create(&forced).expect("forced").begin_anew(&state, own).expect("written");
        assert_eq!(said.first().is_some_and(|said| says.is_some_and(|says| said.contains(says))), says.is_some(), "{says:?}: {said:?}");
        assert!(said.len() == usize::from(says.is_some()) + usize::from(is_given_up && known.degraded), "{said:?}");
        assert!(said.iter().all(|said| !said.contains('\n')), "{said:?}");
        let left = State::read(&state).expect("readable").expect("there");
        assert_eq!(left.gone, if is_given_up { vec![known.format.clone()] } else { vec![] }, "{known:?}");
        assert_eq!(left.format, if is_given_up { String::new() } else { known.format.clone() });
        assert_eq!(left.mode, known.mode, "the next one promises no less");
    }
    fs::remove_file(&state).expect("there");
    assert_eq!(create(&forced).expect("forced").begin_anew(&state, own), Ok(vec![]));
    assert!(!state.exists(), "nothing was known");
}

/// The next start writes its own list in the place of that one.
#[test]
fn what_was_only_in_a_cache_that_has_failed_is_listed_when_it_is_given_up() {
    let folder = folder();
    let forced = CreateOptions { overwrite: Overwrite::Anything, ..options(folder.path()) };
    let state = folder.path().join("state");
    let format = "ab".repeat(16);
    let begin_anew = |ranges: Option<Vec<Span>>| {
        let known = State { format: format.clone(), dirty: Some(2), degraded: true, ..State::default() };
        fs::remove_file(&state).unwrap_or_default();
        let place = Place::open(&state).expect("a folder");
        known.write(&place).expect("written");
        ranges.into_iter().for_each(|ranges| Dirty::now(&format, true, ranges).write(&place));
        create(&forced).expect("forced").begin_anew(&state, Own { origin: true, cache: true }).expect("written")
    };
    let said = begin_anew(None);
    assert!(said.len() == 2 && said[0].contains("2 blocks") && said[1].contains("which blocks is not known"), "{said:?}");
    let said = begin_anew(Some(vec![Span::new(16, 8), Span::new(64, 8)]));
    assert!(said.len() == 4 && said[1].contains("8192 bytes in 2 ranges") && said[3].contains("4096 bytes from byte 32768"), "{said:?}");
}

/// Whoever may still read it has it, until it is formatted.
#[test]
fn a_cache_that_cannot_be_read_goes_with_a_word_and_no_origin_is_made_beside_it() {
    let folder = folder();
    let options = options(folder.path());
    let forced = CreateOptions { overwrite: Overwrite::Anything, ..options.clone() };
    let unknown = "how many blocks newer than the origin are given up with it is not known";
    create(&options).expect("created");
    let first = fs::read(&options.cache).expect("readable");
    let mut table = vec![0; 17 << 10];
    table[510..520].copy_from_slice(b"\x55\xaaEFI PART");
    let spoils: [&dyn Fn(&File); 3] = [
        &|cache| [0, 512 << 10].iter().for_each(|copy| cache.write_all_at(&[0xee; 8], copy + 200).expect("written")),
        &|cache| cache.write_all_at(&first[..4096], 0).expect("written"),
        &|cache| cache.write_all_at(&table, 0).expect("written"),
    ];
    for spoil in spoils {
        let cache = File::options().write(true).open(&options.cache).expect("there");
        spoil(&cache);
        fs::rename(&options.origin, folder.path().join("away")).expect("there");
        refuses(&forced, Failure::NO_INPUT, "holds an unknown number of blocks newer than its origin");
        assert!(!options.origin.exists());
        fs::rename(folder.path().join("away"), &options.origin).expect("there");
        let created = create(&forced).expect("forced");
        assert!(created.gives_up && created.notes.iter().any(|note| note.ends_with(unknown)), "{:?}", created.notes);
    }
    // Of one that was taken from its origin nothing can be lost, whatever it begins with.
    let cache = Disk::open(&options.cache, DeviceId::Cache, Access::Alone).expect("free");
    let superblock = crate::back::attach::superblock(&cache).expect("ours");
    crate::back::update::rewrite(&cache, &Superblock { detached: true, ..superblock }).expect("written");
    drop(cache);
    File::options().write(true).open(&options.cache).and_then(|cache| cache.write_all_at(&table, 0)).expect("written");
    let created = create(&forced).expect("forced");
    assert!(!created.gives_up && created.notes.is_empty(), "{:?}", created.notes);
}

/// Of two who want one volume, whether they make or serve it, one waits with nothing, or with the origin alone; nobody holds the cache and waits.
#[test]
fn whoever_takes_both_disks_takes_the_origin_first() {
    use rustix::fs::{FlockOperation, flock};
    let folder = folder();
    let options = options(folder.path());
    create(&options).expect("created");
    let forced = CreateOptions { overwrite: Overwrite::Anything, ..options.clone() };
    let serves = || Held::open(&options.cache, &options.origin).map(drop);
    let makes = || create(&forced).map(drop);
    let both: [&(dyn Fn() -> Result<(), Failure> + Sync); 2] = [&serves, &makes];
    for take in both {
        let cache = File::open(&options.cache).expect("there");
        flock(&cache, FlockOperation::LockExclusive).expect("free");
        std::thread::scope(|threads| {
            let taking = threads.spawn(take);
            let is_held = || {
                let origin = File::open(&options.origin).expect("there");
                flock(&origin, FlockOperation::NonBlockingLockShared).is_err()
            };
            let until = std::time::Instant::now() + std::time::Duration::from_secs(2);
            while !is_held() {
                assert!(std::time::Instant::now() < until && !taking.is_finished(), "it waits for the cache without the origin");
                std::thread::sleep(std::time::Duration::from_millis(5));
            }
            drop(cache);
            taking.join().expect("no panic").expect("it has both");
        });
    }
}

#[test]
fn the_origin_is_never_written() {
    let folder = folder();
    let options = options(folder.path());
    let bytes: Vec<u8> = (0..(5 << 20) + 300).map(|at| (at * 7 / 3) as u8).collect();
    fs::write(&options.origin, &bytes).expect("written");
    let created = create(&options).expect("created");
    assert_eq!(created.volume_bytes(), 5 << 20);
    assert!(created.notes[0].contains("last 300 bytes"), "{:?}", created.notes);
    assert!(fs::read(&options.origin).expect("readable") == bytes);
}

/// Whoever was asked once whether he goes on holds up the signals that would end him: he is asked again before and after whatever takes its time.
/// Who makes nothing is not asked.
#[test]
fn from_the_first_file_on_it_is_asked_around_all_that_takes_its_time() {
    let folder = folder();
    let options = options(folder.path());
    File::create(&options.cache).and_then(|file| file.set_len(64 << 20)).expect("made");
    // Before the origin is made, before and after the cache is opened, and once it is judged.
    for until in 1..=5 {
        let mut asked = 0;
        let held = Ready::hold(&options, &mut || {
            asked += 1;
            if asked == until { Err(Failure::new(130, "interrupted")) } else { Ok(()) }
        });
        assert_eq!((held.map_or_else(|failure| failure.code, |_| 0), asked), if until < 5 { (130, until) } else { (0, 4) });
        assert!(!options.origin.exists(), "removed again");
    }
    File::create(&options.origin).and_then(|file| file.set_len(64 << 20)).expect("made");
    assert!(Ready::hold(&options, &mut || panic!("nothing is made")).is_ok());
}

#[test]
fn sizes_that_cannot_be_are_refused_and_leave_nothing_behind() {
    let folder = folder();
    let good = options(folder.path());
    refuses(&CreateOptions { cache_bytes: Some(1 << 20), ..good.clone() }, Failure::REFUSED, "too small");
    refuses(&CreateOptions { block_bytes: 3000, ..good.clone() }, Failure::REFUSED, "3000");
    refuses(&CreateOptions { set_bytes: 5000, ..good.clone() }, Failure::REFUSED, "5000");
    refuses(&CreateOptions { origin_bytes: None, ..good.clone() }, Failure::NO_INPUT, "give the size");
    refuses(&CreateOptions { cache: good.origin.clone(), ..good.clone() }, Failure::REFUSED, "one and the same");
    assert_eq!(fs::read_dir(folder.path()).expect("a folder").count(), 0);
}
