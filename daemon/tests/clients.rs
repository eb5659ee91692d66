//! Outside programs against the NBD front: nbdinfo, nbdcopy, qemu-io, qemu-img and libnbd. A missing program is a failure that
//! names its package.

use crate::world::World;
use tidegate_daemon::front::nbd::Address;
use tidegate_engine::block::Span;

const MIB: u64 = 1 << 20;
const LIBNBD: &str = "libnbd-bin";
const QEMU: &str = "qemu-utils";

/// Runs a Python program with libnbd's handle class; the URI is in `uri`.
fn python(world: &mut World, program: &str) {
    let uri = world.uri();
    let start = "import nbd, os, sys\nuri = sys.argv[1]\ndef connect(h=None):\n    h = h or nbd.NBD()\n    h.connect_uri(uri)\n    return h\n\
        def refused(number, call, *args):\n    try:\n        call(*args)\n    except nbd.Error as error:\n        assert error.errnum == number, error\n    else:\n        raise Exception('not refused')\n";
    world.succeed("python3-libnbd", "/usr/bin/python3", &["-c", &format!("{start}{program}"), &uri]);
}

/// Bytes that differ from block to block.
fn pattern(bytes: u64) -> Vec<u8> {
    (0..bytes).map(|at| ((at / 512).wrapping_mul(0x9e37_79b9) >> 7) as u8 ^ at as u8).collect()
}

#[test]
fn nbdinfo_sees_the_export_as_it_is() {
    let mut world = World::with(8 * MIB, |options| {
        options.exports.get_mut(0).name = "disk".into();
        options.exports.get_mut(0).description = "a test volume".into();
    });
    let uri = world.uri();
    let json = world.succeed(LIBNBD, "nbdinfo", &["--json", &uri]);
    for part in [
        "\"protocol\": \"newstyle-fixed\"",
        "\"structured\": true",
        "\"export-name\": \"disk\"",
        "\"description\": \"a test volume\"",
        "\"export-size\": 8388608",
        "\"is_read_only\": false",
        "\"can_df\": true",
        "\"can_fua\": true",
        "\"can_flush\": true",
        "\"can_multi_conn\": true",
        "\"can_trim\": true",
        "\"can_zero\": true",
        "\"can_cache\": true",
        "\"can_fast_zero\": true",
        "\"block_size_minimum\": 512",
        "\"block_size_preferred\": 4096",
        "\"block_size_maximum\": 33554432",
        "base:allocation",
        "tidegate:tier",
    ] {
        assert!(json.contains(part), "{part} in {json}");
    }
    let list = world.succeed(LIBNBD, "nbdinfo", &["--list", "--json", &uri]);
    assert!(list.contains("\"export-name\": \"disk\""), "{list}");
    let unknown = uri.replace("/disk", "/other");
    assert!(!world.run(LIBNBD, "nbdinfo", &[&unknown]).status.success());
}

#[test]
fn nbdinfo_maps_what_was_written() {
    let mut world = World::new(8 * MIB);
    let uri = world.uri();
    python(&mut world, "h = connect()\nh.pwrite(b'x' * 65536, 1 << 20)\n");
    let map = world.succeed(LIBNBD, "nbdinfo", &["--map", &uri]);
    let rows: Vec<Vec<&str>> = map.lines().map(|line| line.split_whitespace().collect()).collect();
    let expect = [["0", "1048576", "3"], ["1048576", "65536", "0"], ["1114112", "7274496", "3"]];
    assert_eq!(rows.iter().map(|row| &row[..3]).collect::<Vec<_>>(), expect.each_ref().map(|row| &row[..]), "{map}");
}

#[test]
fn nbdcopy_in_and_out_is_the_same_file() {
    let mut world = World::new(64 * MIB);
    let uri = world.uri();
    let mut contents = pattern(64 * MIB);
    contents[(10 * MIB) as usize..(20 * MIB) as usize].fill(0);
    std::fs::write(world.path("in"), &contents).expect("the file is written");
    world.succeed(LIBNBD, "nbdcopy", &["--flush", "in", &uri]);
    assert!(world.memory.bytes == contents);
    assert!(world.memory.flushes > 0);
    world.succeed(LIBNBD, "nbdcopy", &["--connections=4", "--requests=64", &uri, "out"]);
    assert!(std::fs::read(world.path("out")).expect("the file was written") == contents);
}

#[test]
fn nbdcopy_works_over_tcp() {
    let mut world = World::with(4 * MIB, |options| options.addresses.insert(0, "127.0.0.1:0".parse().expect("an address")));
    assert!(matches!(world.front.addresses()[0], Address::Tcp(address) if address.port() != 0));
    let uri = world.uri();
    std::fs::write(world.path("in"), pattern(4 * MIB)).expect("the file is written");
    world.succeed(LIBNBD, "nbdcopy", &["in", &uri]);
    world.succeed(LIBNBD, "nbdcopy", &[&uri, "out"]);
    assert!(std::fs::read(world.path("out")).expect("the file was written") == pattern(4 * MIB));
}

#[test]
fn qemu_io_patterns_hold() {
    let mut world = World::new(16 * MIB);
    let uri = world.uri();
    let commands = [
        "write -P 0x11 0 1M",
        "write -f -P 0x22 1M 64k",
        "write -z 128k 64k",
        "write -z -u 256k 64k",
        "discard 512k 64k",
        "write -P 0x33 1000 3001",
        "aio_write -P 0x44 8M 4M",
        "aio_flush",
        "flush",
        "read -P 0x11 0 1000",
        "read -P 0x33 1000 3001",
        "read -P 0x11 4001 127071",
        "read -P 0 128k 64k",
        "read -P 0 256k 64k",
        "read -P 0 512k 64k",
        "read -P 0x22 1M 64k",
        "read -P 0x44 8M 4M",
    ];
    let arguments: Vec<&str> =
        ["-f", "raw"].into_iter().chain(commands.iter().flat_map(|command| ["-c", command])).chain([&*uri]).collect();
    world.qemu_io(&arguments);
    assert!(world.memory.fuas >= 1 && world.memory.flushes >= 1);
}

#[test]
fn qemu_img_converts_compares_and_maps() {
    let mut world = World::new(32 * MIB);
    let uri = world.uri();
    let mut contents = pattern(32 * MIB);
    contents[(4 * MIB) as usize..(12 * MIB) as usize].fill(0);
    std::fs::write(world.path("in.img"), contents).expect("the file is written");
    world.succeed(QEMU, "qemu-img", &["convert", "-n", "-f", "raw", "-O", "raw", "in.img", &uri]);
    world.succeed(QEMU, "qemu-img", &["compare", "-f", "raw", "-F", "raw", "in.img", &uri]);
    let map = world.succeed(QEMU, "qemu-img", &["map", "--output=json", "-f", "raw", &uri]);
    assert!(map.contains("\"start\": 4194304, \"length\": 8388608") && map.contains("\"zero\": true"), "{map}");
    world.succeed(QEMU, "qemu-img", &["bench", "-f", "raw", "-w", "-c", "2000", "-d", "32", "-s", "4k", "--flush-interval=100", &uri]);
}

#[test]
fn libnbd_gets_the_errors_of_the_document() {
    let mut world = World::new(MIB);
    world.memory.broken = Some(Span::new(1024, 8));
    python(
        &mut world,
        "import errno\n\
         h = connect()\n\
         h.set_strict_mode(0)\n\
         size = h.get_size()\n\
         refused(errno.EINVAL, h.pread, 512, size)\n\
         refused(errno.EINVAL, h.pread, 100, 0)\n\
         refused(errno.EINVAL, h.pread, 512, 1)\n\
         refused(errno.EINVAL, h.trim, 512, size)\n\
         refused(errno.ENOSPC, h.pwrite, b'x' * 512, size)\n\
         refused(errno.ENOSPC, h.zero, 1024, size - 512)\n\
         refused(errno.EINVAL, h.pwrite, b'x' * 100, 0)\n\
         refused(errno.EINVAL, h.cache, 512, size)\n\
         refused(errno.EINVAL, h.cache, 512, 0, nbd.CMD_FLAG_NO_HOLE)\n\
         refused(errno.EINVAL, h.pwrite, b'x' * 512, 0, nbd.CMD_FLAG_DF)\n\
         refused(errno.EINVAL, h.trim, 512, 0, nbd.CMD_FLAG_FAST_ZERO)\n\
         refused(errno.EINVAL, h.block_status, 512, 0, lambda *a: 0)\n\
         refused(errno.EIO, h.pread, 4096, 1024 * 512)\n\
         refused(errno.EIO, h.pwrite, b'x' * 512, 1024 * 512)\n\
         assert h.pread(512, 0, nbd.CMD_FLAG_DF) == bytearray(512)\n\
         h.pwrite(b'y' * 512, 0, nbd.CMD_FLAG_FUA)\n\
         h.flush()\n\
         assert h.pread(512, 0) == b'y' * 512\n\
         h.shutdown()\n",
    );
    assert_eq!((world.memory.fuas, world.memory.flushes), (1, 1));
}

#[test]
fn libnbd_without_structured_replies_and_with_plain_export_name_is_served() {
    let mut world = World::new(MIB);
    python(
        &mut world,
        "h = nbd.NBD()\n\
         h.set_request_structured_replies(False)\n\
         h.set_handshake_flags(0)\n\
         connect(h)\n\
         assert not h.get_structured_replies_negotiated() and not h.can_df()\n\
         h.pwrite(b'z' * 4096, 8192)\n\
         assert h.pread(8192, 8192) == b'z' * 4096 + bytes(4096)\n\
         h.shutdown()\n",
    );
}

#[test]
fn libnbd_reads_the_allocation_in_one_and_in_many_extents() {
    let mut world = World::new(MIB);
    python(
        &mut world,
        "h = nbd.NBD()\n\
         h.add_meta_context('base:allocation')\n\
         connect(h)\n\
         h.pwrite(b'x' * 8192, 4096)\n\
         got = []\n\
         see = lambda context, offset, entries, error: got.append(list(entries)) or 0\n\
         h.block_status(65536, 0, see)\n\
         h.block_status(65536, 0, see, nbd.CMD_FLAG_REQ_ONE)\n\
         assert got == [[4096, 3, 8192, 0, 53248, 3], [4096, 3]], got\n\
         h.shutdown()\n",
    );
}

#[test]
fn a_read_only_export_is_read_and_never_changed() {
    let mut world = World::with(MIB, |options| options.exports.get_mut(0).read_only = true);
    python(
        &mut world,
        "import errno\n\
         h = connect()\n\
         assert h.is_read_only() and h.can_multi_conn() and not h.can_trim() and not h.can_zero()\n\
         h.set_strict_mode(0)\n\
         refused(errno.EPERM, h.pwrite, b'x' * 4096, 0)\n\
         refused(errno.EPERM, h.trim, 4096, 0)\n\
         refused(errno.EPERM, h.zero, 4096, 0)\n\
         h.flush()\n\
         assert h.pread(4096, 0) == bytearray(4096)\n",
    );
    assert!(world.memory.bytes.iter().all(|byte| *byte == 0));
}

#[test]
fn sixteen_connections_at_once_keep_their_requests_apart() {
    let mut world = World::new(16 * MIB);
    python(
        &mut world,
        "hs = [connect() for _ in range(16)]\n\
         def wait(h, cookie):\n\
         \x20   while not h.aio_command_completed(cookie):\n\
         \x20       h.poll(-1)\n\
         for round in range(8):\n\
         \x20   writes = [(h, h.aio_pwrite(nbd.Buffer.from_bytearray(bytearray([16 * round + i]) * 4096), (i * 64 + r) * 4096))\n\
         \x20             for r in range(40) for i, h in enumerate(hs)]\n\
         \x20   for h, cookie in writes: wait(h, cookie)\n\
         \x20   hs[round].flush()\n\
         \x20   for i, h in enumerate(hs):\n\
         \x20       assert hs[(i + 1) % 16].pread(40 * 4096, i * 64 * 4096) == bytes([16 * round + i]) * (40 * 4096)\n\
         for h in hs: h.shutdown()\n",
    );
    assert_eq!(world.front.connections(), 0);
    assert_eq!(world.memory.flushes, 8);
}

#[test]
fn trim_and_zeroes_longer_than_any_payload_are_one_request() {
    let mut world = World::new(256 * MIB);
    python(
        &mut world,
        "h = connect()\n\
         h.pwrite(b'x' * (32 << 20), 64 << 20)\n\
         h.zero(256 << 20, 0)\n\
         assert h.pread(32 << 20, 64 << 20) == bytearray(32 << 20)\n\
         h.trim(256 << 20, 0, nbd.CMD_FLAG_FUA)\n\
         h.shutdown()\n",
    );
    assert_eq!(world.memory.fuas, 1);
}

#[test]
fn x6_fast_zeroes_are_refused_where_they_are_slow_and_others_never() {
    let mut world = World::new(MIB);
    let program = "h = connect()\n\
         assert h.can_fast_zero() and h.can_cache() and h.can_df()\n\
         h.pwrite(b'x' * 65536, 0)\n";
    world.memory.slow = true;
    python(
        &mut world,
        &format!(
            "import errno\n{program}\
             refused(errno.ENOTSUP, h.zero, 4096, 0, nbd.CMD_FLAG_FAST_ZERO)\n\
             assert h.pread(4096, 0) == b'x' * 4096\n\
             h.zero(4096, 0)\n\
             assert h.pread(8192, 0) == bytes(4096) + b'x' * 4096\n"
        ),
    );
    world.memory.slow = false;
    python(
        &mut world,
        &format!(
            "{program}\
             h.zero(4096, 0, nbd.CMD_FLAG_FAST_ZERO | nbd.CMD_FLAG_NO_HOLE)\n\
             h.trim(8192, 0)\n\
             h.zero(8192, 0)\n\
             assert h.pread(8192, 0) == bytes(8192), 'zeroes are zeroes, trimmed or not'\n"
        ),
    );
}

#[test]
fn libnbd_prefetches_and_sees_the_tiers() {
    let mut world = World::new(64 * MIB);
    python(
        &mut world,
        "h = nbd.NBD()\n\
         h.add_meta_context('base:allocation')\n\
         h.add_meta_context('tidegate:tier')\n\
         connect(h)\n\
         h.pwrite(b'x' * 4096, 4096)\n\
         h.cache(48 << 20, 1 << 20)\n\
         got = {}\n\
         see = lambda context, offset, entries, error: got.update({context: list(entries)})\n\
         h.block_status(2 << 20, 0, see)\n\
         assert got['tidegate:tier'] == [4096, 0, 4096, 3, (1 << 20) - 8192, 0, 1 << 20, 1], got\n\
         assert got['base:allocation'] == [4096, 3, 4096, 0, (2 << 20) - 8192, 3], got\n\
         h.shutdown()\n",
    );
    let pieces: Vec<(u64, u64)> = world.memory.cached.iter().map(|span| (span.offset(), span.bytes())).collect();
    assert_eq!(pieces, (0..12).map(|piece| (MIB + 4 * MIB * piece, 4 * MIB)).collect::<Vec<_>>(), "in pieces, not all at once");
    let uri = world.uri();
    let map = world.succeed(LIBNBD, "nbdinfo", &["--map=tidegate:tier", &uri]);
    let rows: Vec<Vec<&str>> = map.lines().map(|line| line.split_whitespace().collect()).collect();
    let expect =
        [["0", "4096", "0"], ["4096", "4096", "3"], ["8192", "1040384", "0"], ["1048576", "50331648", "1"], ["51380224", "15728640", "0"]];
    assert_eq!(rows.iter().map(|row| &row[..3]).collect::<Vec<_>>(), expect.each_ref().map(|row| &row[..]), "{map}");
}

#[test]
fn x9_libnbd_that_did_not_ask_for_block_sizes_is_served_to_the_byte() {
    let mut world = World::new(MIB);
    python(
        &mut world,
        "import random\n\
         h = nbd.NBD()\n\
         h.set_request_block_size(False)\n\
         connect(h)\n\
         draw = random.Random(7)\n\
         naive = bytearray(16384)\n\
         for round in range(400):\n\
         \x20   at = draw.randrange(16000)\n\
         \x20   length = draw.randrange(1, min(3000, 16384 - at))\n\
         \x20   what = draw.randrange(3)\n\
         \x20   if what == 0:\n\
         \x20       data = draw.randbytes(length)\n\
         \x20       h.pwrite(data, at)\n\
         \x20       naive[at:at + length] = data\n\
         \x20   elif what == 1:\n\
         \x20       h.zero(length, at)\n\
         \x20       naive[at:at + length] = bytes(length)\n\
         \x20   else:\n\
         \x20       assert h.pread(length, at) == naive[at:at + length]\n\
         assert h.pread(16384, 0) == naive\n\
         h.shutdown()\n",
    );
}

#[test]
fn qemu_negotiates_extended_headers_and_its_writes_arrive() {
    let told = std::process::Command::new("qemu-io").arg("--version").output().map(|output| output.stdout).unwrap_or_default();
    let told = String::from_utf8_lossy(&told).into_owned();
    let version = told.split_whitespace().nth(2).unwrap_or("");
    let mut numbers = version.split('.').map(|number| number.parse::<u32>().unwrap_or(0));
    if (numbers.next(), numbers.next()) < (Some(8), Some(2)) {
        return eprintln!("skipped: qemu {version} knows no extended headers (8.2 is the first that does)");
    }
    let mut world = World::new(16 * MIB);
    let uri = world.uri();
    let output = world.run(QEMU, "qemu-io", &["-T", "nbd_*", "-f", "raw", "-c", "write -P 5 64k 1M", "-c", "read -P 5 64k 1M", &uri]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success() && said.contains("extended headers"), "{said}");
    assert!(world.memory.bytes[65536..][..1 << 20].iter().all(|byte| *byte == 5));
}
