//! What is read of each format, and what is refused.

use std::io::Write;

use super::*;
use tidegate_engine::block::Span;

fn parse(format: Format, bytes: &[u8]) -> Result<Vec<Record>, Bad> {
    told(format, bytes).map(|(records, _)| records)
}

fn told(format: Format, bytes: &[u8]) -> Result<(Vec<Record>, Whole), Bad> {
    let mut records = Vec::new();
    let whole = each_from(&mut &bytes[..], format, 8, &mut |record| take(&mut records, record, u64::MAX, 1_000).unwrap())?;
    Ok((records, whole))
}

/// Time in us, first atom, atoms, write.
fn check(format: Format, bytes: &[u8], expected: &[(u64, u64, u32, bool)]) {
    let (found, _) = lay_out(parse(format, bytes).unwrap()).unwrap();
    let found: Vec<_> = found.iter().map(|record| (record.at_ns / 1_000, record.start, record.atoms, record.ask == Ask::Write)).collect();
    assert_eq!(found, expected, "{format:?}");
}

fn bad(format: Format, bytes: &[u8], place: u64, says: &str) {
    let (found, what) = parse(format, bytes).unwrap_err();
    assert!(found == place && what.contains(says), "{format:?}, {found}: {what}");
}

#[test]
fn volumes_that_together_reach_beyond_any_disk_are_refused() {
    let laid_out = |volumes| lay_out((0..volumes).map(|volume| record((1 << 51) - 8, 8, false, volume).unwrap()).collect());
    assert!(record((1 << 51) - 7, 8, false, 0).is_err(), "it ends there");
    assert_eq!(laid_out(1).unwrap().1, 1 << 51);
    // Added up, 8,200 of them would pass for few.
    for volumes in [2, 16, 9_000] {
        assert!(laid_out(volumes).unwrap_err().starts_with("the first 2 volumes reach"));
    }
}

#[test]
fn every_format_is_read() {
    check(Format::Arc, b"5 2 0 0\n64 1 0 1\n", &[(0, 40, 16, false), (0, 512, 8, false)]);
    check(Format::Keys, b"7\r\n*\n\n3\n", &[(0, 56, 8, false), (0, 24, 8, false)]);
    check(Format::Keys32, &[0, 0, 1, 0, 0, 0, 0, 2], &[(0, 2048, 8, false), (0, 16, 8, false)]);
    check(Format::Disksim, b"13.191135\t0\t8\t5\t1\n14.2\t0\t16\t6\t0\n", &[(0, 8, 5, false), (1008, 16, 6, true)]);
    check(Format::Mqsim, b"5000 0 100 16 0\n4000 0 8 8 1\n9000 0 0 1 1\n", &[(0, 100, 16, true), (0, 8, 8, false), (4, 0, 1, false)]);
    let msr = b"128166372003061629,hm,1,Read,1024,4096,413\n128166372003061729,hm,1,Write,700,100,9\n";
    check(Format::Msr, msr, &[(0, 2, 8, false), (10, 1, 1, true)]);
    let mut one = vec![1, 0, 0, 0, 0, 2, 0, 0, 1, 0, 0, 0, 0x2a, 0, 0, 1];
    one.extend([9u64.to_le_bytes(), 5u64.to_le_bytes()].concat());
    check(Format::Vscsi, &one, &[(0, 9, 1, true)]);
    let mut two = vec![0x28, 0, 0, 2, 1, 0, 0, 0, 0, 16, 0, 0, 1, 0, 0, 0];
    two.extend([9u64.to_le_bytes(), 5u64.to_le_bytes(), [0; 8]].concat());
    check(Format::Vscsi, &two, &[(0, 9, 8, false)]);
}

#[test]
fn what_we_recorded_ourselves_is_read_with_its_flushes() {
    let record = |at_ns, kind, span| recorder::Record { at_ns, kind, fua: false, span }.encode();
    let mut bytes = Header { volume_atoms: 1024 }.encode().to_vec();
    bytes.extend(record(5_000, Kind::Write, Span::new(8, 16)));
    bytes.extend(record(6_000, Kind::Trim, Span::new(0, 8)));
    bytes.extend(record(9_000, Kind::Flush, Span::default()));
    bytes.extend(record(12_000, Kind::Read, Span::new(8, 8)));
    check(Format::Tidegate, &bytes, &[(0, 8, 16, true), (4, 0, 0, false), (7, 8, 8, false)]);
    assert_eq!(parse(Format::Tidegate, &bytes).unwrap()[1].ask, Ask::Flush);
    bytes.truncate(bytes.len() - 1);
    check(Format::Tidegate, &bytes, &[(0, 8, 16, true), (4, 0, 0, false)]);
    bytes[7] = 9;
    bad(Format::Tidegate, &bytes, 0, "no recording of tidegate");
    bytes[7] = 1;
    bytes[52] = 9;
    bad(Format::Tidegate, &bytes, 1, "damaged");
}

#[test]
fn fios_logs_and_blkparses_text_are_read() {
    let three =
        b"fio version 3 iolog\n42 /f add\n100 /f open\n200 /f read 4096 512\n250 /f sync 4096 0\n300 /f write 0 8192\n310 /f close\n";
    check(Format::Iolog, three, &[(0, 8, 1, false), (50, 0, 0, false), (100, 0, 16, true)]);
    check(Format::Iolog, b"fio version 2 iolog\n/f add\n/f open\n/f write 512 512\n/f datasync\n", &[(0, 1, 1, true), (0, 0, 0, false)]);
    bad(Format::Iolog, b"fio version 3 iolog\n1 /f leap 0 1\n", 2, "\"leap\" is no action");
    bad(Format::Iolog, b"fio version 3 iolog\n1 /f read x 1\n", 2, "\"x\" is not an offset");
    let text = b"  8,0    3   1   0.000000000   697  G   R 223490 + 8 [kjournald]\n  8,0    3   2   0.000001000   697  Q   R 223490 + 8 [kjournald]\n\
          8,0    1   3   0.000004500   697  Q  WS 16 + 24 [dd]\n  8,0    1   4   0.000005000   697  Q  FN [dd]\n  8,0    1   5   0.000006000   9  Q  D 0 + 8 [x]\n\
        CPU0 (sda):\n Reads Queued:           1,        4KiB\n";
    check(Format::Blkparse, text, &[(0, 223_490, 8, false), (3, 16, 24, true), (4, 0, 0, false)]);
    bad(Format::Blkparse, b"8,0 3 1 0.0 697 Q R x + 8 [a]\n", 1, "\"x\" is not a sector");
}

#[test]
fn a_name_tells_the_format_where_it_can() {
    for (path, format) in [
        ("OLTP.lis", Some(Format::Arc)),
        ("x/OLTP.LIS.zst", Some(Format::Arc)),
        ("a.vscsi.zst", Some(Format::Vscsi)),
        ("web_0.csv.gz", Some(Format::Msr)),
        ("mine.keys", Some(Format::Keys)),
        ("traces/lirs/2_pools.trace.gz", Some(Format::Keys)),
        ("cache2k/web07.trace.xz", Some(Format::Keys32)),
        ("mqsim/wsrch-small.trace.zst", Some(Format::Mqsim)),
        ("disksim/ascii.trace", Some(Format::Disksim)),
        ("arc/keys", Some(Format::Arc)),
        ("web07.trace.xz", None),
        ("keys", None),
        ("", None),
        ("..", None),
    ] {
        assert_eq!(Format::of_name(Path::new(path)), format, "{path}");
    }
}

#[test]
fn volumes_of_a_trace_lie_one_after_the_other() {
    check(Format::Mqsim, b"0 7 0 16 1\n0 2 100 16 1\n", &[(0, 2048, 16, false), (0, 100, 16, false)]);
}

#[test]
fn a_bad_line_is_named() {
    bad(Format::Arc, b"1 1 0 0\n1 x 0 0\n", 2, "\"x\" is not a number of pages");
    bad(Format::Arc, b"1 1 0\n", 1, "3 fields, not 4");
    bad(Format::Arc, b"1 0 0 0\n", 1, "a request of 0 sectors");
    bad(Format::Arc, b"99999999999999999 1 0 0\n", 1, "beyond any disk");
    bad(Format::Keys, b"1\n2 3\n", 2, "\"2 3\" is not a key");
    bad(Format::Keys, b"1\n\xff\xfe\n", 2, "not text");
    bad(Format::Keys, &[b'1'; 5000], 1, "a line of more than 4096 bytes");
    bad(Format::Keys32, &[0; 7], 2, "cut off");
    bad(Format::Disksim, b"1.0 0 8 5 2\n", 1, "neither 0 (write) nor 1 (read)");
    bad(Format::Disksim, b"1.x 0 8 5 1\n", 1, "not a time in ms");
    bad(Format::Mqsim, b"-5 0 8 5 1\n", 1, "not a time in ns");
    bad(Format::Msr, b"1,h,0,Read,0,512,1\n1,h,0,Trim,0,512,1\n", 2, "neither Read nor Write");
    bad(Format::Vscsi, &[0; 32], 1, "neither version 1 nor 2");
    bad(Format::Vscsi, &[0; 10], 1, "cut off");
}

#[test]
fn a_limit_ends_the_reading_and_what_memory_has_no_room_for_is_no_end() {
    let read = |limit, most| {
        let (mut records, mut is_too_long) = (Vec::new(), false);
        let whole = each_from(&mut &b"1\n2\n3\nbad\n"[..], Format::Keys, 8, &mut |record| {
            let is_wanted = take(&mut records, record, limit, most);
            is_too_long = is_wanted.is_none();
            is_wanted.unwrap_or(false)
        });
        (whole.is_ok(), records.len(), is_too_long)
    };
    assert_eq!(read(2, 10), (true, 2, false));
    assert_eq!(read(2, 2), (true, 2, false), "what was asked for fits");
    assert_eq!(read(u64::MAX, 2), (true, 2, true));
    assert_eq!(read(3, 2), (true, 2, true));
    assert_eq!(read(u64::MAX, 3), (false, 3, false), "a bad line is said first");
}

#[test]
fn a_page_is_as_long_as_is_said() {
    let read = |format, bytes: &[u8], atoms| {
        let mut found = Vec::new();
        each_from(&mut &bytes[..], format, atoms, &mut |record| {
            found.push((record.start, record.atoms));
            true
        })
        .unwrap();
        found
    };
    assert_eq!(read(Format::Arc, b"5 2 0 0\n", 1), [(5, 2)]);
    assert_eq!(read(Format::Keys, b"5\n", 2), [(10, 2)]);
    assert_eq!(read(Format::Keys32, &[0, 0, 0, 5], 16), [(80, 16)]);
    assert_eq!(read(Format::Mqsim, b"0 0 5 2 1\n", 16), [(5, 2)], "sectors are sectors");
    assert_eq!((Format::Arc.page_bytes(), Format::Keys.page_bytes(), Format::Msr.has_pages()), (Some(512), None, false));
}

#[test]
fn the_same_disk_of_two_hosts_is_two_volumes() {
    let msr = b"10,hm,1,Read,0,4096,1\n10,prn,1,Read,0,4096,1\n10,hm,0,Read,0,4096,1\n10,prn,1,Read,512,512,1\n";
    check(Format::Msr, msr, &[(0, 2048, 8, false), (0, 4096, 8, false), (0, 0, 8, false), (0, 4097, 1, false)]);
    bad(Format::Msr, b"1,h,65536,Read,0,512,1\n", 1, "disk 65536");
}

#[test]
fn requests_without_length_or_place_are_skipped_and_counted() {
    let skips = |format, bytes: &[u8], requests: usize, skipped: u64| {
        let (records, whole) = told(format, bytes).unwrap();
        assert_eq!((records.len(), whole.skipped), (requests, skipped), "{format:?}");
    };
    skips(Format::Msr, b"1,h,0,Read,0,512,1\n2,h,0,Read,700,0,1\n3,h,0,Write,0,0,1\n", 1, 2);
    let mut vscsi = vec![1, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0x2a, 0, 0, 1];
    vscsi.extend([9u64.to_le_bytes(), 5u64.to_le_bytes()].concat());
    let empty = vscsi.clone();
    vscsi[5] = 2;
    skips(Format::Vscsi, &[empty.clone(), vscsi, empty].concat(), 1, 2);
    skips(Format::Iolog, b"fio version 3 iolog\n1 /f read 512 0\n2 /f read 0 512\n3 /f trim 0 512\n", 1, 1);
    let line = |rest: &str| format!("  8,0 3 2 0.000001000 697 Q {rest}\n");
    let text = ["R 200 + 8 [x]", "R 200 +8 [x]", "WS 300", "W 8 + 0 [x]", "FN [x]", "FN", "FWS 300 +8 [x]", "D 300 + 8 [x]", "N [x]"];
    skips(Format::Blkparse, text.map(line).concat().as_bytes(), 3, 4);
    let whole = Whole { skipped: 2, is_timed: true, cut_off_behind: Some(7) };
    assert!(whole.notes("x")[0].starts_with("x: 2 of its requests have no length"));
    assert!(whole.notes("x")[1].starts_with("x: it was cut off while it was written: its 7 whole records are used"));
    assert_eq!(Whole::default().notes("x"), [""; 0]);
}

/// So many bytes of a recording, and then nothing more, or an error of the device.
#[test]
fn what_the_system_does_not_give_is_no_wrong_trace_and_a_recording_that_was_cut_off_is_told() {
    struct Bad;
    impl Read for Bad {
        fn read(&mut self, _: &mut [u8]) -> std::io::Result<usize> {
            // EIO.
            Err(std::io::Error::from_raw_os_error(5))
        }
    }
    let record = recorder::Record { at_ns: 0, kind: Kind::Read, fua: false, span: Span::new(8, 8) };
    let whole = [&Header { volume_atoms: 16 }.encode()[..], &record.encode().repeat(3)].concat();
    let read = |format, bytes: &[u8], fails: bool| {
        let end: Box<dyn Read> = if fails { Box::new(Bad) } else { Box::new(std::io::empty()) };
        let opened = Opened::of(std::io::Cursor::new(bytes.to_vec()).chain(end)).unwrap();
        let mut count = 0;
        each_of("x", opened, format, 8, &mut |_| {
            count += 1;
            true
        })
        .map(|whole| (count, whole.cut_off_behind))
    };
    assert_eq!(read(Format::Tidegate, &whole, false), Ok((3, None)));
    assert_eq!(read(Format::Tidegate, &whole[..whole.len() - 1], false), Ok((2, Some(2))));
    // One that was cut off and packed afterwards is one too; a packed one that is cut off is none, wherever that is.
    let gzip = |bytes: &[u8]| {
        let mut packer = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::none());
        packer.write_all(bytes).and_then(|()| packer.finish()).unwrap()
    };
    assert_eq!(read(Format::Tidegate, &gzip(&whole[..whole.len() - 1]), false), Ok((2, Some(2))));
    let packed = gzip(&whole);
    for lacks in 1..packed.len() - HEADER_BYTES - 24 {
        let refused = read(Format::Tidegate, &packed[..packed.len() - lacks], false);
        assert!(
            matches!(&refused, Err(Refused::Wrong(why)) if why.contains("what gzip has packed is cut off or damaged here")),
            "{lacks}: {refused:?}"
        );
    }
    let unreadable = |format, bytes: &[u8], at: &str| {
        let why = format!("{at}: Input/output error (os error 5); see that it can be read, or cut it off before that");
        assert_eq!(read(format, bytes, true), Err(Refused::Unreadable(why)));
    };
    unreadable(Format::Tidegate, &whole, "x: record 4");
    unreadable(Format::Tidegate, &whole[..whole.len() - 1], "x: record 3");
    unreadable(Format::Tidegate, &whole[..HEADER_BYTES - 1], "x: record 0");
    unreadable(Format::Keys, b"1\n2\n3", "x:3");
    // Nobody unpacks what is not there.
    let zstd = include_bytes!("../samples/keys.zst");
    unreadable(Format::Keys, &zstd[..zstd.len() - 6], "x:1");
    assert!(matches!(read(Format::Keys, &zstd[..zstd.len() - 6], false), Err(Refused::Wrong(_))));
}

#[test]
fn whether_fios_log_says_when_is_seen_in_it() {
    let is_timed = |bytes: &[u8]| told(Format::Iolog, bytes).unwrap().1.is_timed;
    assert!(is_timed(b"fio version 3 iolog\n42 /f read 0 512\n") && is_timed(b"42 /f read 0 512\n"));
    assert!(!is_timed(b"fio version 2 iolog\n/f read 0 512\n") && !is_timed(b"fio version 2 iolog\n7 read 0 512\n7 wait 99 0\n"));
    let waits = b"fio version 2 iolog\n/f read 0 512\n/f wait 1000 0\n/f read 0 512\n/f wait 50 0\n/f wait 500 0\n/f write 0 512\n";
    check(Format::Iolog, waits, &[(0, 0, 1, false), (1_000, 0, 1, false), (1_500, 0, 1, true)]);
    assert!(is_timed(waits));
}

#[test]
fn a_file_of_flushes_alone_is_refused() {
    let path = std::env::temp_dir().join(format!("tidegate-flushes-{}.iolog", std::process::id()));
    std::fs::write(&path, "fio version 3 iolog\n1 /f sync 0 0\n2 /f sync 0 0\n").unwrap();
    let found = read(&path, Format::Iolog, 8, None);
    std::fs::remove_file(&path).unwrap();
    assert!(found.unwrap_err().to_string().ends_with(".iolog: no read or write in it, only FLUSHes"));
}
