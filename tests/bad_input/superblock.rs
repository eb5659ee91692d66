//! The row "On-disk superblock": what lies where a cache of ours should.

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::Path;

use super::{UP, assert_refused, check, everything, make, reseal};
use crate::common::chance::Chance;
use crate::common::daemon::Daemon;
use crate::common::tool;
use crate::common::{text, volume};

/// Where the two copies lie.
const COPIES: [u64; 2] = [0, 512 << 10];

#[test]
fn a_cache_that_is_not_ours_is_refused() {
    check(
        "ext4",
        make("rm cache.img; truncate -s 64M cache.img; mkfs.ext4 -q cache.img"),
        UP,
        78,
        &["cache", "cache.img", "ext4", "--force"],
    );
    check("xfs", make("rm cache.img; truncate -s 400M cache.img; mkfs.xfs -q cache.img"), UP, 78, &["cache.img", "XFS", "--force"]);
    check("noise", make("head -c 64M /dev/urandom > cache.img"), UP, 78, &["cache.img", "--force"]);
    // `up` formats a blank one, where the last one cannot have held the only copy of anything (tests/modes.rs); `serve` makes nothing.
    let serve: &[&str] = &["serve", "--config", "config.toml"];
    check("wiped", make("rm cache.img; truncate -s 64M cache.img"), serve, 78, &["cache.img", "tidegate create"]);
    check(
        "a copy of the origin",
        make("cp origin.img cache.img; echo data | dd of=cache.img conv=notrunc status=none"),
        UP,
        78,
        &["cache.img"],
    );
    check("a folder", make("rm cache.img; mkdir cache.img"), UP, 78, &["cache.img"]);
    check("a pipe", make("rm cache.img; mkfifo cache.img"), UP, 78, &["cache.img"]);
    check("missing", make("rm cache.img"), UP, 66, &["cache.img"]);
    // What a `create` that was killed leaves.
    for command in [UP, &["create", "--dir", "."]] {
        check(
            "empty",
            make("truncate -s 0 cache.img"),
            command,
            78,
            &["cache.img is empty; remove it (rm), so that `tidegate create --dir"],
        );
    }
    check("cut off", make("truncate -s 40M cache.img"), UP, 78, &["cache.img"]);
}

#[test]
fn signatures_of_others_are_named_and_nothing_is_overwritten() {
    for (name, at, magic, says) in [
        ("LUKS", 0, &b"LUKS\xba\xbe\0\x02"[..], "LUKS"),
        ("LVM", 512, b"LABELONE\x01\0\0\0\0\0\0\0\0\0\0\0\x20\0\0\0LVM2 001", "LVM"),
        ("bcache", 4096 + 24, b"\xc6\x85\x73\xf6\x4e\x1a\x45\xca\x82\x65\xf5\x7f\x48\xba\x6d\x81", "bcache"),
        ("swap", 4096 - 10, b"SWAPSPACE2", "swap"),
        ("GPT", 512, b"EFI PART", "GPT"),
    ] {
        let spoil = |dir: &Path| {
            fs::remove_file(dir.join("cache.img")).unwrap();
            let file = fs::File::create(dir.join("cache.img")).unwrap();
            file.set_len(64 << 20).unwrap();
            file.write_all_at(magic, at).unwrap();
        };
        check(name, spoil, UP, 78, &["cache.img", says, "--force"]);
        check(name, spoil, &["create", "--dir", "."], 78, &["cache.img", says, "--force"]);
    }
}

/// Tables of partitions, and most of what makes a file system, leave our second superblock where it is.
#[test]
fn a_disk_that_begins_with_somebody_elses_data_is_theirs_whatever_of_ours_lies_further_on() {
    let mut gpt = vec![0; 17 << 10];
    gpt[510..520].copy_from_slice(b"\x55\xaaEFI PART");
    let mbr = [&[0xeb; 510][..], &[0x55, 0xaa]].concat();
    // Behind our first superblock, which stays too.
    let member = 0xa92b_4efc_u32.to_le_bytes();
    let begins: [(&str, &[u8], u64, bool); 3] = [
        ("a GPT partition table", &gpt, 0, true),
        ("a partition table or a boot sector", &mbr, 0, true),
        ("a member of a RAID array", &member, 4096, false),
    ];
    for (what, bytes, at, is_zeroed) in begins {
        let cover = |dir: &Path, name: &str| {
            let cache = fs::File::options().write(true).open(dir.join(name)).unwrap();
            if is_zeroed {
                cache.write_all_at(&[0; 4096], 0).unwrap();
            }
            cache.write_all_at(bytes, at).unwrap();
        };
        let (is, advice, zeros) = if is_zeroed {
            (
                format!("begins with {what} and has the superblock of a tidegate cache further on"),
                "if it is still that cache, overwrite its first 128 KiB with zeros",
                "count=32",
            )
        } else {
            (
                format!("has both superblocks of a tidegate cache and {what} between them"),
                "if it is still that cache, overwrite byte 4096 to byte 131071 with zeros",
                "seek=1 count=31",
            )
        };
        let says = [&format!("cache.img {is}")[..], "name another one, or overwrite it with `tidegate create --", advice];
        let commands: [&[&str]; 5] = [
            &["create", "--dir", "."],
            &["attach", "--dir", "."],
            &["check", "--cache", "cache.img"],
            &["detach", "--dir", ".", "--discard-dirty", "00000000"],
            UP,
        ];
        commands.iter().for_each(|command| check(what, |dir| cover(dir, "cache.img"), command, 78, &says));

        // A first run formats nothing of it, with its own origin or another one; nor does `attach` what was detached.
        let folder = volume("48MiB", "64MiB", "");
        let dir = folder.path();
        let data = Chance::new(at).bytes(64 << 10);
        let daemon = Daemon::up(dir);
        daemon.connect().write(1 << 20, &data).unwrap();
        daemon.stop();
        make("truncate -s 48M other.img; mkdir d; cp origin.img cache.img d")(dir);
        tool::tidegate_in(dir, &["detach", "--dir", "d"]).succeeds();
        make("mv d/cache.img detached.img; rm -r d")(dir);
        ["cache.img", "detached.img"].iter().for_each(|name| cover(dir, name));
        let before = everything(dir);
        for command in ["attach", "up"] {
            for (origin, cache) in [("origin.img", "cache.img"), ("other.img", "cache.img"), ("other.img", "detached.img")] {
                let refused = tool::tidegate_in(dir, &[command, "--dir", "new/v", "--origin", origin, "--cache", cache]);
                assert_refused(what, &refused, 78, &[&format!("{cache} {is}")]);
                assert_eq!(everything(dir), before);
            }
        }
        // It was still that cache: as the line says.
        let over = format!("cd '{}'; dd if=/dev/zero of=cache.img bs=4K {zeros} conv=notrunc status=none", text(dir));
        tool::shell(&over).succeeds();
        let checked = tool::tidegate_in(dir, &["check", "--cache", "cache.img"]);
        assert_eq!(checked.stdout.contains("superblock"), is_zeroed, "whatever was intact is: {checked}");
        let daemon = Daemon::up(dir);
        daemon.connect().expect(1 << 20, &data);
        daemon.stop();
    }
}

/// Changes both superblocks of a stopped cache.
fn change(dir: &Path, change: impl Fn(&mut [u8])) {
    let cache = fs::File::options().read(true).write(true).open(dir.join("cache.img")).unwrap();
    for offset in COPIES {
        let mut page = [0; 4096];
        cache.read_exact_at(&mut page, offset).unwrap();
        change(&mut page);
        cache.write_all_at(&page, offset).unwrap();
    }
}

#[test]
fn another_version_of_the_format_is_refused_with_its_number() {
    for version in [0u16, 3, 0xffff] {
        let spoil = |dir: &Path| {
            change(dir, |page| {
                page[4..6].copy_from_slice(&version.to_le_bytes());
                reseal(page);
            });
        };
        let says = format!("format version {version}, this program knows 1 and 2");
        check("version", spoil, UP, 78, &["cache.img", &says]);
        check("version", spoil, &["create", "--dir", "."], 78, &["cache.img"]);
    }
}

#[test]
fn a_cache_of_the_other_byte_order_is_no_cache_of_ours() {
    let spoil = |dir: &Path| change(dir, |page| page.chunks_exact_mut(4).for_each(<[u8]>::reverse));
    check("byte order", spoil, UP, 78, &["cache.img", "--force"]);
}

#[test]
fn two_damaged_superblocks_are_refused_and_stay_as_they_are() {
    for (name, at) in [("checksum", 24), ("identity", 40), ("geometry", 150), ("origin", 64)] {
        check(name, |dir| change(dir, |page| page[at] ^= 0x10), UP, 65, &["cache.img", "both superblocks are damaged"]);
        check(name, |dir| change(dir, |page| page[at] ^= 0x10), &["create", "--dir", "."], 78, &["cache.img"]);
    }
    // Sealed as it should be, and impossible all the same: a set of three slots, a volume without atoms.
    for (at, value) in [(156, 3u64), (144, 0)] {
        let spoil = |dir: &Path| {
            change(dir, |page| {
                page[at..at + 4].copy_from_slice(&(value as u32).to_le_bytes());
                reseal(page);
            });
        };
        check("impossible", spoil, UP, 65, &["cache.img", "geometry"]);
    }
}

#[test]
fn superblocks_of_two_formats_are_refused() {
    let spoil = |dir: &Path| {
        make("cp cache.img first")(dir);
        tool::tidegate_in(dir, &["create", "--dir", ".", "--force"]).succeeds();
        make("dd if=first of=cache.img bs=4096 count=1 conv=notrunc status=none; rm first")(dir);
    };
    check("two formats", spoil, UP, 65, &["cache.img", "two formats", "--force"]);
}

#[test]
fn one_bad_superblock_of_two_is_made_good_again() {
    let garbage: &[fn(&mut [u8])] = &[|page| page.fill(0), |page| page[200] ^= 1, |page| page[512..].fill(0xee), |page| page.fill(0xff)];
    for (offset, spoil) in COPIES.into_iter().flat_map(|offset| garbage.iter().map(move |spoil| (offset, spoil))) {
        let folder = volume("48MiB", "64MiB", "");
        let dir = folder.path();
        let data = Chance::new(offset).bytes(64 << 10);
        let daemon = Daemon::up(dir);
        daemon.connect().write(1 << 20, &data).unwrap();
        daemon.stop();
        let cache = fs::File::options().read(true).write(true).open(dir.join("cache.img")).unwrap();
        let mut page = [0; 4096];
        cache.read_exact_at(&mut page, offset).unwrap();
        spoil(&mut page);
        cache.write_all_at(&page, offset).unwrap();

        let daemon = Daemon::up(dir);
        daemon.connect().expect(1 << 20, &data);
        daemon.kill();
        // Now the other one may go: the first has been written again.
        cache.write_all_at(&[0xaa; 4096], COPIES[usize::from(offset == 0)]).unwrap();
        let daemon = Daemon::up(dir);
        daemon.connect().expect(1 << 20, &data);
        daemon.stop();
        let checked = tool::tidegate(&["check", "--cache", text(&dir.join("cache.img"))]);
        assert_eq!(checked.code, Some(0), "both are whole again: {checked}");
    }
}

#[test]
fn a_cache_device_that_has_grown_is_used_as_far_as_it_was() {
    let folder = volume("48MiB", "64MiB", "");
    let dir = folder.path();
    let data = Chance::new(5).bytes(1 << 20);
    let daemon = Daemon::up(dir);
    daemon.connect().write(0, &data).unwrap();
    daemon.stop();
    make("truncate -s 80M cache.img")(dir);
    let daemon = Daemon::up(dir);
    daemon.connect().expect(0, &data);
    daemon.stop();
    assert_eq!(fs::metadata(dir.join("cache.img")).unwrap().len(), 80 << 20);
}

#[test]
fn of_two_caches_with_one_identity_only_one_is_served_and_the_one_that_missed_something_never() {
    let folder = volume("48MiB", "64MiB", "");
    let dir = folder.path();
    Daemon::up(dir).stop();
    make("cp cache.img twin.img")(dir);
    let daemon = Daemon::up(dir);
    let twin = &["up", "--dir", ".", "--cache", "twin.img"][..];
    assert_refused("beside the other", &tool::tidegate_in(dir, twin), 75, &["origin.img", "in use"]);
    daemon.connect().write(0, &[3; 4096]).unwrap();
    daemon.stop();
    let before = everything(dir);
    assert_refused("after the other", &tool::tidegate_in(dir, twin), 65, &["an older copy of itself"]);
    assert_eq!(everything(dir), before);
}

#[test]
fn another_cache_than_last_time_is_refused_with_both_identities() {
    let folder = volume("48MiB", "64MiB", "");
    let dir = folder.path();
    let daemon = Daemon::up(dir);
    daemon.connect().write(0, &[3; 4096]).unwrap();
    daemon.kill();
    let id = |name: &str| {
        let page = fs::read(dir.join(name)).unwrap();
        page[32..36].iter().map(|byte| format!("{byte:02x}")).collect::<String>()
    };
    // One that was made elsewhere for an origin of this size.
    make("mv cache.img first.img; rm *.sock")(dir);
    let elsewhere = volume("48MiB", "64MiB", "");
    fs::copy(elsewhere.path().join("cache.img"), dir.join("cache.img")).unwrap();
    let before = everything(dir);
    let ids = [id("cache.img"), id("first.img")];
    assert_refused("another cache", &tool::tidegate_in(dir, UP), 65, &[&ids[0], &ids[1], "--accept-loss"]);
    assert_eq!(everything(dir), before);
}

#[test]
fn create_overwrites_nothing_without_force_and_the_origin_never() {
    let folder = volume("48MiB", "64MiB", "");
    let dir = folder.path();
    fs::File::options().write(true).open(dir.join("origin.img")).unwrap().write_all_at(b"precious", 4096).unwrap();
    let before = everything(dir);
    let again = tool::tidegate_in(dir, &["create", "--dir", "."]);
    assert_refused("create twice", &again, 78, &["cache.img", "--force"]);
    assert_eq!(everything(dir), before);

    tool::tidegate_in(dir, &["create", "--dir", ".", "--force"]).succeeds();
    let after = everything(dir);
    let of = |name: &str, list: &[(String, u64, u32)]| list.iter().find(|(path, ..)| path.ends_with(name)).cloned();
    assert_eq!(of("origin.img", &after), of("origin.img", &before), "the origin is untouched");
    assert_ne!(of("cache.img", &after), of("cache.img", &before), "a new identity was drawn");
}

/// Whatever it is called, and though its folder's configuration names other disks by now.
#[test]
fn no_force_formats_a_cache_that_is_served_or_gives_up_one_that_a_volume_is_served_from() {
    // Nothing would be lost with its cache, so nobody would be asked.
    let folder = volume("48MiB", "64MiB", "mode = \"write-through\"\n");
    let dir = folder.path();
    let daemon = Daemon::up(dir);
    let data = Chance::new(7).bytes(1 << 20);
    daemon.connect().write(0, &data).unwrap();
    let known = || {
        let state: serde_json::Value = serde_json::from_slice(&fs::read(dir.join("tidegate.state")).unwrap()).unwrap();
        (state["format"].clone(), state["gone"].clone())
    };
    let before = known();
    fs::hard_link(dir.join("cache.img"), dir.join("hard.img")).unwrap();
    std::os::unix::fs::symlink("cache.img", dir.join("soft.img")).unwrap();
    for name in ["cache.img", "hard.img", "soft.img"] {
        let arguments = ["create", "--dir", "other", "--origin", "new.img", "--cache", name, "--force"];
        assert_refused(name, &tool::tidegate_in(dir, &arguments), 75, &["cache ", name, "is in use by process"]);
        assert!(!dir.join("new.img").exists() && !dir.join("other").exists(), "{name}");
    }
    tool::shell(&format!("cd '{}'; truncate -s 32M small.img; truncate -s 64M blank.img", text(dir))).succeeds();
    let [small, blank] = ["small.img", "blank.img"].map(|name| dir.join(name));
    fs::write(dir.join("config.toml"), format!("origin = {small:?}\ncache = {blank:?}\n")).unwrap();
    let refused = tool::tidegate_in(dir, &["create", "--dir", ".", "--force"]);
    assert_refused("its state", &refused, 75, &["tidegate.state: another tidegate serves a volume by this state"]);
    assert!(known() == before && fs::read(blank).unwrap().iter().all(|byte| *byte == 0));
    fs::write(dir.join("config.toml"), "").unwrap();
    daemon.stop();
    let daemon = Daemon::up(dir);
    daemon.connect().expect(0, &data);
    daemon.stop();
}
