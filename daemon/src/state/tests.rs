//! Which cache is taken for that of a volume, and where what the host knows of it is written.

use super::*;
use tidegate_engine::cache::format::{FormatId, Geometry};

const BACK: ModeView = ModeView { wanted: Mode::WriteBack, recorded: Mode::WriteBack, is_switching: false, has_exceptions: false };

fn at(path: &Path) -> Place {
    Place::open(path).unwrap()
}

#[test]
fn a_cache_that_promised_the_origin_may_be_lost() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join(FILE_NAME);
    let through = ModeView { wanted: Mode::WriteThrough, recorded: Mode::WriteThrough, ..BACK };
    State::of(&superblock(1, 5), 6, None, &through).write(&at(&path)).unwrap();
    assert!(compare(&at(&path), &superblock(2, 1), false).unwrap()[0].contains("nothing that was flushed is lost"));
    // On the way there or back it may not, nor with blocks that no stop could take home.
    for view in [ModeView { recorded: Mode::WriteBack, ..through }, ModeView { wanted: Mode::WriteBack, ..through }] {
        State::of(&superblock(1, 5), 6, None, &view).write(&at(&path)).unwrap();
        assert!(compare(&at(&path), &superblock(2, 9), false).is_err());
    }
    // Nor where an older contents would be read that nobody was to see any more. The new one promises the same.
    State::of(&superblock(1, 5), 6, None, &ModeView { has_exceptions: true, ..through }).write(&at(&path)).unwrap();
    assert!(compare(&at(&path), &superblock(2, 1), false).unwrap_err().message.contains("of which the origin has older contents"));
    assert_eq!(State::read(&path).unwrap().unwrap().mode, Mode::WriteThrough);
    State::of(&superblock(1, 5), 6, Some(0), &ModeView { has_exceptions: true, ..through }).write(&at(&path)).unwrap();
    assert!(compare(&at(&path), &superblock(2, 1), false).is_ok(), "an orderly stop knows");
    State::of(&superblock(1, 5), 6, Some(3), &through).write(&at(&path)).unwrap();
    assert!(compare(&at(&path), &superblock(2, 9), false).unwrap_err().message.contains("held 3 blocks"));
    // A file of a version that knew no modes.
    std::fs::write(&path, "{\"format\":\"ab\",\"epoch\":1,\"dirty\":null}").unwrap();
    assert_eq!(State::read(&path).unwrap().unwrap().mode, Mode::WriteBack);
}

#[test]
fn what_is_lost_is_listed_where_it_is_known() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join(FILE_NAME);
    let last = superblock(1, 5);
    State::of(&last, 6, None, &BACK).write(&at(&path)).unwrap();
    assert!(compare(&at(&path), &superblock(2, 9), true).unwrap()[1].contains("not known"));
    Dirty::now(&format_of(&last), false, vec![tidegate_engine::block::Span::new(8, 8)]).write(&at(&path));
    let notes = compare(&at(&path), &superblock(2, 9), true).unwrap();
    assert_eq!(notes[2], "lost: 4096 bytes from byte 4096 on");
}

#[test]
fn a_new_cache_whose_first_start_is_cut_short_is_no_stranger() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join(FILE_NAME);
    State::begin(&at(&path), &superblock(2, 1)).unwrap();
    assert!(!path.exists(), "where nothing is known, nothing is compared");
    State::of(&superblock(1, 5), 6, Some(0), &BACK).write(&at(&path)).unwrap();
    assert!(compare(&at(&path), &superblock(2, 2), false).is_err(), "it has served somewhere");
    State::begin(&at(&path), &superblock(2, 1)).unwrap();
    for epoch in [1, 2] {
        assert_eq!(compare(&at(&path), &superblock(2, epoch), false).unwrap(), Vec::<String>::new());
    }
    assert!(compare(&at(&path), &superblock(1, 6), true).unwrap_err().message.contains("has missed writes"));
    // That of the last run is as it was.
    let last = State::of(&superblock(2, 2), 3, Some(7), &BACK);
    last.write(&at(&path)).unwrap();
    State::begin(&at(&path), &superblock(2, 3)).unwrap();
    assert_eq!(State::read(&path).unwrap().unwrap().dirty, Some(7));
}

#[test]
fn a_cache_of_a_smaller_volume_is_not_taken_and_the_own_one_comes_back() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join(FILE_NAME);
    State::of(&superblock(1, 5), 6, Some(0), &BACK).write(&at(&path)).unwrap();
    let mut small = superblock(2, 1);
    small.geometry.volume_atoms = 256;
    let refused = compare(&at(&path), &small, false).unwrap_err();
    assert!(refused.message.contains("131072 bytes") && refused.message.contains("262144"), "{refused}");
    assert!(compare(&at(&path), &superblock(1, 6), false).unwrap().is_empty());
    let notes = compare(&at(&path), &small, true).unwrap();
    assert!(notes[0].contains("131072") && notes[1].contains("held nothing newer"), "{notes:?}");
    // A file of a version that did not write the size.
    State { bytes: None, ..State::of(&superblock(1, 5), 6, Some(0), &BACK) }.write(&at(&path)).unwrap();
    assert_eq!(compare(&at(&path), &small, false).unwrap().len(), 1);
}

fn superblock(id: u8, epoch: u64) -> Superblock {
    let geometry = Geometry { block_atoms: 8, set_slots: 8, sets: 16, journal_pages: 64, volume_atoms: 512, range_entries: 252 };
    Superblock { epoch, ..Superblock::new(FormatId([id; 16]), geometry, [0; 16], [0; 16]) }
}

#[test]
fn the_cache_of_the_last_run_is_taken_and_others_are_not() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join(FILE_NAME);
    assert_eq!(compare(&at(&path), &superblock(1, 5), false).unwrap(), Vec::<String>::new(), "a new volume");
    State::of(&superblock(1, 5), 6, None, &BACK).write(&at(&path)).unwrap();
    for epoch in [6, 7] {
        assert!(compare(&at(&path), &superblock(1, epoch), false).unwrap().is_empty());
    }
    let older = compare(&at(&path), &superblock(1, 5), true).unwrap_err();
    assert!(older.message.contains("an older copy") && older.message.contains("create --force"), "{}", older.message);
    let other = compare(&at(&path), &superblock(2, 9), false).unwrap_err();
    assert!(other.message.contains("02020202…") && other.message.contains("01010101…, which may have held"), "{}", other.message);
    assert!(compare(&at(&path), &superblock(2, 9), true).unwrap()[0].contains("are lost"));
    State::of(&superblock(1, 5), 6, Some(0), &BACK).write(&at(&path)).unwrap();
    assert!(compare(&at(&path), &superblock(2, 1), false).unwrap()[0].contains("held nothing newer"));
    let used = compare(&at(&path), &superblock(2, 9), false).unwrap_err();
    assert!(used.message.contains("has served before") && used.message.contains("--accept-loss"), "{}", used.message);
    assert!(compare(&at(&path), &superblock(2, 9), true).unwrap()[0].contains("held nothing newer"));
}

#[test]
fn a_cache_that_failed_in_service_must_not_come_back_and_another_one_is_told_what_was_lost() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join(FILE_NAME);
    let fence = |dirty| State { degraded: true, ..State::of(&superblock(1, 5), 6, Some(dirty), &BACK) }.write(&at(&path)).unwrap();
    fence(40);
    for epoch in [6, 7, 100] {
        let back = compare(&at(&path), &superblock(1, epoch), true).unwrap_err();
        assert!(back.message.contains("has missed writes") && back.message.contains("alone had 40 blocks"), "{}", back.message);
    }
    let other = compare(&at(&path), &superblock(2, 1), false).unwrap_err();
    assert!(other.message.contains("alone had 40 blocks") && other.message.contains("--accept-loss"), "{}", other.message);
    assert!(compare(&at(&path), &superblock(2, 1), true).unwrap()[0].contains("are lost"));
    fence(0);
    assert!(compare(&at(&path), &superblock(1, 6), false).unwrap_err().message.contains("nothing is lost"));
    assert!(compare(&at(&path), &superblock(2, 1), false).unwrap()[0].contains("held nothing newer"));
}

#[test]
fn a_cache_that_the_volume_went_on_without_never_comes_back() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join(FILE_NAME);
    let serve = |id, dirty| State::of(&superblock(id, 5), 6, dirty, &BACK).write(&at(&path)).unwrap();
    let refused = |id| {
        let refused = [false, true].map(|accept_loss| compare(&at(&path), &superblock(id, 100), accept_loss).unwrap_err().message);
        assert!(refused.iter().all(|message| message.contains("has missed writes")), "{refused:?}");
    };
    // It fails, another one is taken, and that one is stopped with nothing that only it has.
    State { degraded: true, ..State::of(&superblock(1, 5), 6, Some(40), &BACK) }.write(&at(&path)).unwrap();
    serve(2, None);
    serve(2, Some(0));
    refused(1);
    // Nor when that one is given up before another has served, and after it has.
    State::give_up(&path).unwrap();
    [1, 2].into_iter().for_each(refused);
    assert_eq!(compare(&at(&path), &superblock(3, 1), false).unwrap(), Vec::<String>::new());
    serve(3, None);
    [1, 2].into_iter().for_each(refused);
    assert!(compare(&at(&path), &superblock(3, 6), false).unwrap().is_empty());
    // They do not grow without end.
    (4..=255).for_each(|id| serve(id, Some(0)));
    for id in 0..=255 {
        let other = Superblock { format: FormatId([[id; 8], [!id; 8]].concat().try_into().unwrap()), ..superblock(0, 5) };
        State::of(&other, 6, Some(0), &BACK).write(&at(&path)).unwrap();
    }
    assert!(std::fs::metadata(&path).unwrap().len() < BYTES_MAX && State::read(&path).unwrap().is_some());
    let none = folder.path().join("none");
    State::give_up(&none).unwrap();
    assert!(!none.exists(), "there was none to be given up");
}

#[test]
fn a_folder_that_was_renamed_is_written_and_not_the_one_that_has_its_name_now() {
    let folder = tempfile::tempdir().unwrap();
    let [old, new] = ["old", "new"].map(|name| folder.path().join(name));
    std::fs::create_dir(&old).unwrap();
    let place = at(&old.join(FILE_NAME));
    State::of(&superblock(1, 5), 6, None, &BACK).write(&place).unwrap();
    std::fs::rename(&old, &new).unwrap();
    std::fs::create_dir(&old).unwrap();
    State { degraded: true, ..State::of(&superblock(1, 5), 6, Some(3), &BACK) }.write(&place).unwrap();
    Dirty::now(&format_of(&superblock(1, 5)), true, Vec::new()).write(&place);
    assert_eq!(std::fs::read_dir(&old).unwrap().count(), 0);
    assert!(State::read(&new.join(FILE_NAME)).unwrap().unwrap().degraded && new.join("tidegate.dirty").exists());
}

/// A cache that is to be refused for ever is, also where another folder is the one that knows it by now, or what the file says cannot be read.
#[test]
fn what_is_gone_stays_gone_where_the_file_is_lost_or_damaged() {
    let folder = tempfile::tempdir().unwrap();
    let at_home = folder.path().join("volume");
    let path = at_home.join(FILE_NAME);
    let of = |id| State::of(&superblock(id, 5), 6, None, &BACK);
    let is_refused = || compare(&at(&path), &superblock(1, 100), true).is_err_and(|failure| failure.message.contains("has missed writes"));
    std::fs::create_dir(&at_home).unwrap();
    of(1).write(&at(&path)).unwrap();
    of(2).write(&at(&path)).unwrap();
    let place = at(&path);
    std::fs::write(&path, "rotten").unwrap();
    of(2).write(&place).unwrap();
    assert!(is_refused());
    // What may say anything is not replaced.
    std::fs::rename(&path, folder.path().join("away")).unwrap();
    std::os::unix::fs::symlink(folder.path().join("away"), &path).unwrap();
    assert_eq!(of(2).write(&place).unwrap_err().code, Failure::NO_INPUT);
    std::fs::rename(folder.path().join("away"), &path).unwrap();
    of(2).write(&place).unwrap();
    assert!(is_refused());
    std::fs::remove_dir_all(&at_home).unwrap();
    std::fs::create_dir(&at_home).unwrap();
    Dirty::now(&format_of(&superblock(2, 5)), true, Vec::new()).write(&place);
    of(2).write(&place).unwrap();
    assert!(is_refused() && at_home.join("tidegate.dirty").exists());
    // Another volume's, which is there again and knows another cache.
    std::fs::remove_file(&path).unwrap();
    of(3).write(&at(&path)).unwrap();
    assert!(of(2).write(&place).is_err());
    assert_eq!(State::read(&path).unwrap().unwrap(), of(3));
}

/// What the volume has of its cache in its folder may be the cache, or no more than a link that leads to it.
#[test]
fn a_cache_goes_with_the_folder_that_it_lies_in_and_not_with_a_link_to_it() {
    use crate::back::disk::Access;
    use tidegate_engine::op::DeviceId;
    for is_link in [true, false] {
        let folder = tempfile::tempdir().unwrap();
        let [at_home, ssd] = ["volume", "ssd"].map(|name| folder.path().join(name));
        [&at_home, &ssd].into_iter().for_each(|folder| fs::create_dir(folder).unwrap());
        let (cache, origin, path) = (at_home.join("cache.img"), ssd.join("origin.img"), at_home.join(FILE_NAME));
        let file = if is_link { ssd.join("cache.img") } else { cache.clone() };
        [&file, &origin].into_iter().for_each(|file| File::create(file).unwrap().set_len(1 << 20).unwrap());
        if is_link {
            std::os::unix::fs::symlink(&file, &cache).unwrap();
        }
        let opened = [(&cache, DeviceId::Cache), (&origin, DeviceId::Origin)].map(|(path, role)| Disk::open(path, role, Access::Alone));
        let [cache, origin] = opened.map(Result::unwrap);
        let mut place = at(&path);
        place.serves(&cache, &origin).expect("nobody else serves it");
        let serving = State::of(&superblock(1, 5), 6, None, &BACK);
        serving.write(&place).unwrap();
        fs::remove_dir_all(&at_home).unwrap();
        fs::create_dir(&at_home).unwrap();
        let written = State { degraded: true, ..serving }.write(&place);
        assert_eq!(written.is_ok(), is_link, "{written:?}");
        assert_eq!(State::read(&path).unwrap().is_some_and(|state| state.degraded), is_link);
    }
}

/// Who reads why something is not written down looks there.
#[test]
fn what_cannot_be_written_is_called_by_its_name_of_now() {
    let folder = tempfile::tempdir().unwrap();
    let [old, new] = ["old", "new"].map(|name| folder.path().join(name));
    std::fs::create_dir(&old).unwrap();
    let place = at(&old.join(FILE_NAME));
    let state = State::of(&superblock(1, 5), 6, None, &BACK);
    state.write(&place).unwrap();
    std::fs::rename(&old, &new).unwrap();
    std::fs::create_dir(&old).unwrap();
    for obstacle in [true, false] {
        std::fs::remove_file(new.join(FILE_NAME)).unwrap();
        if obstacle {
            std::fs::create_dir(new.join(FILE_NAME)).unwrap();
        } else {
            State::of(&superblock(2, 5), 6, None, &BACK).write(&at(&new.join(FILE_NAME))).unwrap();
        }
        let refused = state.write(&place).unwrap_err();
        assert!(refused.message.starts_with(new.join(FILE_NAME).to_str().unwrap()), "{refused}");
        if obstacle {
            std::fs::remove_dir(new.join(FILE_NAME)).unwrap();
            state.write(&place).unwrap();
        }
    }
}

#[test]
fn what_another_volume_has_written_meanwhile_stays() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join(FILE_NAME);
    let of = |id| State::of(&superblock(id, 5), 6, None, &BACK);
    let note = |place: &Place| Dirty::now(&format_of(&superblock(1, 5)), true, Vec::new()).write(place);
    let taken = |place: &Place| {
        let (before, refused) = (std::fs::read(&path).unwrap(), of(1).write(place).unwrap_err());
        note(place);
        assert!(refused.code == Failure::REFUSED && refused.message.contains("one volume's"), "{refused}");
        assert_eq!(std::fs::read(&path).unwrap(), before);
        assert!(!folder.path().join("tidegate.dirty").exists());
    };
    // There was none at first.
    let first = at(&path);
    of(2).write(&at(&path)).unwrap();
    taken(&first);
    // The one that was there gives way, and no other one.
    let second = at(&path);
    of(3).write(&at(&path)).unwrap();
    taken(&second);
    let third = at(&path);
    of(1).write(&third).unwrap();
    State::give_up(&path).unwrap();
    taken(&third);
    // Nobody knows any more which one it was.
    std::fs::remove_file(&path).unwrap();
    of(1).write(&third).unwrap();
    of(1).write(&third).unwrap();
    note(&third);
    assert!(folder.path().join("tidegate.dirty").exists());
}

#[test]
fn a_file_that_is_none_is_refused_in_one_line() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join(FILE_NAME);
    for text in ["", "{}", "{\"format\": 3}", "\0\0\0", &"x".repeat(5_000)] {
        std::fs::write(&path, text).unwrap();
        let refused = compare(&at(&path), &superblock(1, 1), false).unwrap_err();
        assert!(refused.message.contains(FILE_NAME) && !refused.message.contains('\n'), "{}", refused.message);
        assert!(refused.code == Failure::DAMAGED && refused.message.ends_with("delete the file"), "{refused}");
    }
    std::fs::remove_file(&path).unwrap();
    std::fs::create_dir(&path).unwrap();
    let folder_there = compare(&at(&path), &superblock(1, 1), false).unwrap_err();
    std::fs::remove_dir(&path).unwrap();
    std::os::unix::fs::symlink("/not-mounted/state", &path).unwrap();
    let link_there = compare(&at(&path), &superblock(1, 1), false).unwrap_err();
    for refused in [folder_there, link_there] {
        assert!(refused.code == Failure::NO_INPUT && !refused.message.contains("delete"), "what was not read may say anything: {refused}");
    }
}
