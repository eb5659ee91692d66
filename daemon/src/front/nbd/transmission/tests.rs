//! The transmission phase, item by item of the protocol's document (S, X), fed as bytes and answered by hand.

use super::super::ahead::Ahead;
use super::*;
use crate::front::nbd::export::Contexts;
use crate::front::nbd::protocol::{CHUNK_MAGIC, EXTENDED_REPLY_MAGIC, SIMPLE_REPLY_MAGIC, allocation, chunk, command_flag};
use proptest::prelude::*;
use tidegate_engine::request::{Extent, Outcome, RequestError, Stretch, Tier};

const BYTES: u64 = 1 << 30;
const SIMPLE: Session = Session { headers: Headers::Simple, contexts: Contexts::NONE, sized: true, export: 0 };
const CHUNKS: Session = Session { headers: Headers::Structured, ..SIMPLE };
const STATUS: Session = Session { contexts: Contexts { allocation: true, tier: false }, ..CHUNKS };
const EXTENDED: Session = Session { headers: Headers::Extended, ..STATUS };
/// A client that was not told about block sizes.
const BYTES_OF: fn(Session) -> Session = |session| Session { sized: false, ..session };
const COOKIE: u64 = 0x0123_4567_89ab_cdef;
const AMPLE: Allowance<'_> = Allowance {
    connection: u64::MAX,
    loan: u64::MAX,
    payload: u64::MAX,
    room: u64::MAX,
    place: true,
    reads: Some(u64::MAX),
    busy: &[],
    ahead: None,
    job: true,
    caching_job: true,
};

fn export() -> Export {
    Export { name: String::new(), description: String::new(), bytes: BYTES, read_only: false, clients: Vec::new(), block_bytes: 4096 }
}

fn request(command: u16, flags: u16, offset: u64, length: u32) -> Vec<u8> {
    let mut bytes = REQUEST_MAGIC.to_be_bytes().to_vec();
    bytes.extend([flags.to_be_bytes(), command.to_be_bytes()].as_flattened());
    bytes.extend([COOKIE.to_be_bytes(), offset.to_be_bytes()].as_flattened());
    bytes.extend(length.to_be_bytes());
    bytes
}

fn write(flags: u16, offset: u64, payload: &[u8]) -> Vec<u8> {
    [request(command::WRITE, flags, offset, payload.len() as u32), payload.to_vec()].concat()
}

fn taken(out: &mut Output) -> Vec<u8> {
    let mut slices = vec![std::io::IoSlice::new(&[]); out.pieces()];
    let (count, total) = out.gather(&mut slices, usize::MAX);
    let bytes: Vec<u8> = slices[..count].iter().flat_map(|slice| slice.to_vec()).collect();
    out.advance(total);
    bytes
}

/// What became of a stream of bytes.
#[derive(Debug, Default, PartialEq)]
struct Got {
    requests: Vec<(Pending, Span, String, Vec<u8>)>,
    /// Those that take several requests.
    jobs: Vec<(Pending, String)>,
    replies: Vec<u8>,
    end: Option<&'static str>,
    /// Bytes that were not understood yet.
    left: usize,
}

/// Feeds `input`, `step` bytes at a time, as a connection does: a large payload goes directly into its run.
fn feed(export: &Export, session: Session, stopping: bool, input: &[u8], step: usize) -> Got {
    let (mut transmission, mut out, mut got) = (Transmission::new(session), Output::default(), Got::default());
    let mut buffer = Vec::new();
    for mut piece in input.chunks(step) {
        if let Some(hole) = transmission.hole() {
            assert!(buffer.is_empty());
            let direct = hole.len().min(piece.len());
            hole[..direct].copy_from_slice(&piece[..direct]);
            transmission.fill(direct);
            piece = &piece[direct..];
        }
        buffer.extend_from_slice(piece);
        while got.end.is_none() && (!buffer.is_empty() || transmission.is_filled()) {
            let (took, step) = transmission.step(export, stopping, AMPLE, &buffer, &mut out);
            buffer.drain(..took);
            match step {
                Step::Wait => break,
                Step::Next => {}
                Step::Full | Step::Busy | Step::Cramped(_) | Step::CrampedReads(_) | Step::Unlent(_) => panic!("the allowance is ample"),
                Step::Request(pending, span, command) => {
                    let data = if let Command::Write { data, .. } = &command { data.as_slice().to_vec() } else { vec![] };
                    got.requests.push((pending, span, format!("{command:?}"), data));
                }
                Step::Job(pending, job) => got.jobs.push((pending, format!("{job:?}"))),
                Step::Finish => got.end = Some("finish"),
                Step::Close => got.end = Some("close"),
            }
        }
    }
    got.replies = taken(&mut out);
    got.left = buffer.len();
    got
}

/// The error in the one reply to `input`, and nothing for the engine; the connection lives on.
fn check_error(session: Session, input: &[u8], expect: u32) {
    check_error_of(&export(), session, input, expect);
}

fn check_error_of(export: &Export, session: Session, input: &[u8], expect: u32) {
    let got = feed(export, session, false, input, usize::MAX);
    assert_eq!((got.requests.len(), got.jobs.len(), got.end, got.left), (0, 0, None, 0), "{got:?}");
    if session.headers == Headers::Simple {
        assert_eq!(got.replies, [&SIMPLE_REPLY_MAGIC.to_be_bytes()[..], &expect.to_be_bytes(), &COOKIE.to_be_bytes()].concat());
        return;
    }
    let (flags, kind, data) = if session.headers == Headers::Extended { one_reply(&got.replies) } else { one_chunk(&got.replies) };
    assert_eq!((flags, kind), (chunk::DONE, chunk::ERROR));
    assert_eq!(data[..4], expect.to_be_bytes());
    let text = usize::from(u16::from_be_bytes([data[4], data[5]]));
    assert!(text <= 4096 && data.len() == 6 + text);
}

/// Splits the only chunk of a reply into flags, kind and data.
fn one_chunk(bytes: &[u8]) -> (u16, u16, Vec<u8>) {
    assert_eq!(bytes[..4], CHUNK_MAGIC.to_be_bytes());
    assert_eq!(bytes[8..16], COOKIE.to_be_bytes());
    assert_eq!(bytes[16..20], ((bytes.len() - 20) as u32).to_be_bytes());
    (u16::from_be_bytes([bytes[4], bytes[5]]), u16::from_be_bytes([bytes[6], bytes[7]]), bytes[20..].to_vec())
}

/// Splits the only chunk of an extended reply likewise; the offset in it is that of the request.
fn one_reply(bytes: &[u8]) -> (u16, u16, Vec<u8>) {
    assert_eq!(bytes[..4], EXTENDED_REPLY_MAGIC.to_be_bytes());
    assert_eq!(bytes[8..16], COOKIE.to_be_bytes());
    assert_eq!(bytes[24..32], ((bytes.len() - 32) as u64).to_be_bytes());
    (u16::from_be_bytes([bytes[4], bytes[5]]), u16::from_be_bytes([bytes[6], bytes[7]]), bytes[32..].to_vec())
}

fn extended(command: u16, flags: u16, offset: u64, length: u64) -> Vec<u8> {
    let mut bytes = EXTENDED_REQUEST_MAGIC.to_be_bytes().to_vec();
    bytes.extend([flags.to_be_bytes(), command.to_be_bytes()].as_flattened());
    bytes.extend([COOKIE.to_be_bytes(), offset.to_be_bytes(), length.to_be_bytes()].as_flattened());
    bytes
}

/// The only request that `input` is for the engine.
fn accepted(session: Session, input: &[u8]) -> (Pending, Span, String) {
    let mut got = feed(&export(), session, false, input, usize::MAX);
    assert_eq!((got.requests.len(), got.replies.len(), got.end, got.left), (1, 0, None, 0), "{got:?}");
    let (pending, span, command, _) = got.requests.remove(0);
    (pending, span, command)
}

fn answered(session: Session, input: &[u8], result: Result<Outcome<Run>, RequestError>) -> Vec<u8> {
    let (pending, _, _) = accepted(session, input);
    let mut out = Output::default();
    reply(&pending, session, result, &mut out);
    assert_eq!(out.replies(), 1);
    taken(&mut out)
}

fn run(atoms: u64, byte: u8) -> Run {
    let mut run = RunMut::new(atoms);
    run.as_mut_slice().fill(byte);
    run.freeze()
}

#[test]
fn s1_reads_are_chunked_once_negotiated_and_never_before() {
    let read = request(command::READ, 0, 4096, 1024);
    let data = || Ok(Outcome::Data(vec![run(1, 1), run(1, 2)].into()));
    let simple = answered(SIMPLE, &read, data());
    assert_eq!((&simple[..8], simple.len()), ([SIMPLE_REPLY_MAGIC.to_be_bytes(), [0; 4]].as_flattened(), 16 + 1024));
    let (flags, kind, chunked) = one_chunk(&answered(CHUNKS, &read, data()));
    assert_eq!((flags, kind), (chunk::DONE, chunk::OFFSET_DATA));
    assert_eq!(chunked[..8], 4096u64.to_be_bytes());
    assert_eq!(chunked[8..], simple[16..]);
    assert_eq!(chunked[8..], [[1; 512], [2; 512]].concat());
}

#[test]
fn s1_early_errors_of_a_read_are_chunked_too() {
    check_error(CHUNKS, &request(command::READ, 0, BYTES, 512), error::INVALID);
    check_error(SIMPLE, &request(command::READ, 0, BYTES, 512), error::INVALID);
}

#[test]
fn s3_a_read_of_nothing_is_one_empty_last_chunk() {
    let got = feed(&export(), CHUNKS, false, &request(command::READ, 0, 0, 0), usize::MAX);
    assert_eq!(one_chunk(&got.replies), (chunk::DONE, chunk::NONE, vec![]));
}

#[test]
fn s5_df_is_taken_only_where_it_was_offered_and_only_on_reads() {
    accepted(CHUNKS, &request(command::READ, command_flag::DF, 0, 512));
    check_error(SIMPLE, &request(command::READ, command_flag::DF, 0, 512), error::INVALID);
    check_error(CHUNKS, &request(command::TRIM, command_flag::DF, 0, 512), error::INVALID);
}

#[test]
fn s7_errors_of_the_engine_have_their_numbers() {
    let read = request(command::READ, 0, 0, 512);
    for (failure, number) in [(RequestError::Io, 5u32), (RequestError::NoSpace, 28), (RequestError::Shutdown, 108)] {
        let simple = answered(SIMPLE, &read, Err(failure));
        assert_eq!((simple.len(), &simple[4..8]), (16, &number.to_be_bytes()[..]));
        let (flags, kind, data) = one_chunk(&answered(CHUNKS, &read, Err(failure)));
        assert_eq!((flags, kind, &data[..4]), (chunk::DONE, chunk::ERROR, &number.to_be_bytes()[..]));
    }
}

#[test]
fn s8_not_one_byte_of_data_follows_a_simple_reply_that_is_an_error() {
    for session in [SIMPLE, BYTES_OF(SIMPLE)] {
        let reply = answered(session, &request(command::READ, 0, 0, 1 << 20), Err(RequestError::Io));
        assert_eq!(reply, [&SIMPLE_REPLY_MAGIC.to_be_bytes()[..], &5u32.to_be_bytes(), &COOKIE.to_be_bytes()].concat());
    }
}

fn extents(parts: &[(u64, bool)]) -> Result<Outcome<Run>, RequestError> {
    let allocation = parts.iter().map(|&(atoms, hole)| Extent { atoms, hole, zero: hole }).collect();
    Ok(Outcome::Status { allocation, tiers: vec![] })
}

fn check_status(flags: u16, atoms: u64, parts: &[(u64, bool)], expect: &[(u32, u32)]) {
    let query = request(command::BLOCK_STATUS, flags, 8192, (atoms * 512) as u32);
    let (flags, kind, data) = one_chunk(&answered(STATUS, &query, extents(parts)));
    assert_eq!((flags, kind, &data[..4]), (chunk::DONE, chunk::BLOCK_STATUS, &allocation::ID.to_be_bytes()[..]));
    let words: Vec<u32> = data[4..].chunks(4).map(|word| u32::from_be_bytes(word.try_into().expect("four bytes"))).collect();
    assert_eq!(words.chunks(2).map(|pair| (pair[0], pair[1])).collect::<Vec<_>>(), expect);
}

#[test]
fn s10_status_is_one_chunk_of_merged_extents() {
    check_status(0, 8, &[(2, false), (1, false), (0, true), (1, true), (4, true)], &[(1536, 0), (2560, 3)]);
    check_status(0, 4, &[(4, false)], &[(2048, 0)]);
}

#[test]
fn s10_req_one_gets_exactly_one_extent() {
    check_status(command_flag::REQ_ONE, 8, &[(1, true), (2, true), (5, false)], &[(1536, 3)]);
}

#[test]
fn s2_the_cookie_comes_back_as_it_was_in_every_form() {
    for cookie in [0, 1, u64::MAX, COOKIE] {
        for (session, at) in [(SIMPLE, 8), (CHUNKS, 8), (EXTENDED, 8)] {
            let mut input = if session == EXTENDED { extended(command::READ, 0, 0, 512) } else { request(command::READ, 0, 0, 512) };
            input[8..16].copy_from_slice(&cookie.to_be_bytes());
            let reply = answered(session, &input, Ok(Outcome::Data([run(1, 1)].into())));
            assert_eq!(reply[at..at + 8], cookie.to_be_bytes());
        }
    }
}

#[test]
fn s4_one_data_chunk_covers_the_whole_of_any_read() {
    for (offset, length) in [(0u64, 512u32), (4096, 32 << 20)] {
        let atoms = u64::from(length) / 512;
        let parts = vec![run(1, 1), run(atoms.max(2) - 1, 2)].into_iter().take(if atoms == 1 { 1 } else { 2 }).collect();
        let (flags, kind, data) = one_chunk(&answered(CHUNKS, &request(command::READ, 0, offset, length), Ok(Outcome::Data(parts))));
        assert_eq!((flags, kind, data.len()), (chunk::DONE, chunk::OFFSET_DATA, 8 + length as usize));
        assert_eq!(data[..8], offset.to_be_bytes());
    }
}

#[test]
fn s6_a_read_that_fails_is_an_error_chunk_and_never_a_cut_off_one() {
    // All parts of a read are there, or it has failed, before the first byte of its reply.
    for session in [CHUNKS, BYTES_OF(CHUNKS)] {
        let (flags, kind, data) = one_chunk(&answered(session, &request(command::READ, 0, 0, 1 << 20), Err(RequestError::Io)));
        assert_eq!((flags, kind, &data[..4]), (chunk::DONE, chunk::ERROR, &5u32.to_be_bytes()[..]));
    }
}

/// The chunks of a reply: flags, kind, data.
fn chunks(mut bytes: &[u8]) -> Vec<(u16, u16, Vec<u8>)> {
    let mut chunks = Vec::new();
    while !bytes.is_empty() {
        let length = u32::from_be_bytes(bytes[16..20].try_into().expect("four bytes")) as usize;
        chunks.push(one_chunk(&bytes[..20 + length]));
        bytes = &bytes[20 + length..];
    }
    chunks
}

fn both_contexts(tiers: &[(u64, Tier)]) -> Result<Outcome<Run>, RequestError> {
    let Ok(Outcome::Status { allocation, .. }) = extents(&[(tiers.iter().map(|(atoms, _)| atoms).sum(), false)]) else { panic!("extents") };
    let tiers = tiers.iter().map(|&(atoms, tier)| Stretch { atoms, tier }).collect();
    Ok(Outcome::Status { allocation, tiers })
}

#[test]
fn s10_each_selected_context_has_exactly_one_chunk_and_the_last_says_so() {
    let tiers = [(1, Tier::Origin), (2, Tier::Clean), (1, Tier::Dirty), (4, Tier::Memory)];
    let session = |allocation, tier| Session { contexts: Contexts { allocation, tier }, ..CHUNKS };
    let query = request(command::BLOCK_STATUS, 0, 0, 4096);
    let both = chunks(&answered(session(true, true), &query, both_contexts(&tiers)));
    let number = |(length, value): (u32, u32)| [length.to_be_bytes(), value.to_be_bytes()].concat();
    let expect = [vec![0, 0, 0, 2], number((512, 0)), number((1024, 1)), number((512, 2)), number((2048, 3))].concat();
    assert_eq!(both[0], (0, chunk::BLOCK_STATUS, [vec![0, 0, 0, 1], number((4096, 0))].concat()));
    assert_eq!(both[1], (chunk::DONE, chunk::BLOCK_STATUS, expect.clone()));
    assert_eq!(chunks(&answered(session(false, true), &query, both_contexts(&tiers))), [(chunk::DONE, chunk::BLOCK_STATUS, expect)]);
    assert_eq!(accepted(session(false, true), &query).2, "Status { tiers: true, one: false }");
    // Extents are of their context: one of each is asked for, and their lengths differ.
    let one = request(command::BLOCK_STATUS, command_flag::REQ_ONE, 0, 4096);
    let lengths: Vec<usize> =
        chunks(&answered(session(true, true), &one, both_contexts(&tiers))).iter().map(|(_, _, data)| data.len()).collect();
    assert_eq!(lengths, [12, 12]);
}

#[test]
fn s10_a_status_may_describe_less_than_was_asked_for() {
    let export = Export { bytes: 1 << 40, ..export() };
    let tier = Session { contexts: Contexts { allocation: true, tier: true }, ..EXTENDED };
    for (session, most) in [(EXTENDED, STATUS_BYTES_MAX), (tier, TIER_BYTES_MAX)] {
        let got = feed(&export, session, false, &extended(command::BLOCK_STATUS, 0, 1 << 30, 1 << 39), usize::MAX);
        assert_eq!((got.requests[0].1, got.requests[0].0.length), (Span::new(1 << 21, most / 512), most));
    }
}

#[test]
fn s10_what_the_engine_tells_of_may_end_before_the_request_does() {
    // Bytes 500 to 3000: the atoms 0 to 5, of which it tells three.
    let query = request(command::BLOCK_STATUS, 0, 500, 2500);
    let (_, kind, data) = one_chunk(&answered(BYTES_OF(STATUS), &query, extents(&[(1, true), (2, false)])));
    let expect = [[0, 0, 0, 1], 12u32.to_be_bytes(), 3u32.to_be_bytes(), 1024u32.to_be_bytes(), [0; 4]].concat();
    assert_eq!((kind, data), (chunk::BLOCK_STATUS, expect));
    let one = request(command::BLOCK_STATUS, command_flag::REQ_ONE, 0, 4096);
    assert_eq!(accepted(STATUS, &one).2, "Status { tiers: false, one: true }");
}

#[test]
fn s10_the_longest_request_has_extents_that_fit_their_field() {
    let whole = (u64::from(u32::MAX) + 1) / 512 - 1;
    let query = request(command::BLOCK_STATUS, 0, 0, (whole * 512) as u32);
    let got = feed(&Export { bytes: 1 << 40, ..export() }, STATUS, false, &query, usize::MAX);
    let mut out = Output::default();
    reply(&got.requests[0].0, STATUS, extents(&[(whole - 1, false), (1, false)]), &mut out);
    assert_eq!(one_chunk(&taken(&mut out)).2[4..8], (u32::MAX - 511).to_be_bytes());
}

#[test]
fn s10_status_without_a_context_or_of_nothing_is_invalid() {
    check_error(SIMPLE, &request(command::BLOCK_STATUS, 0, 0, 512), error::INVALID);
    check_error(CHUNKS, &request(command::BLOCK_STATUS, 0, 0, 512), error::INVALID);
    check_error(STATUS, &request(command::BLOCK_STATUS, 0, 0, 0), error::INVALID);
}

#[test]
fn x2_a_read_only_export_refuses_every_change_and_takes_reads_and_flushes() {
    let export = Export { read_only: true, ..export() };
    for input in [write(0, 0, &[1; 512]), request(command::TRIM, 0, 0, 512), request(command::WRITE_ZEROES, 0, 0, 512)] {
        check_error_of(&export, SIMPLE, &input, error::PERM);
    }
    let input = [request(command::READ, 0, 0, 512), request(command::FLUSH, 0, 0, 0)].concat();
    assert_eq!(feed(&export, SIMPLE, false, &input, usize::MAX).requests.len(), 2);
}

#[test]
fn x3_a_flush_goes_to_the_engine_whatever_its_range_says() {
    for (offset, length) in [(0, 0), (BYTES * 2, 7)] {
        let (pending, span, command) = accepted(SIMPLE, &request(command::FLUSH, 0, offset, length));
        assert_eq!((span, command.as_str(), pending.held), (Span::new(0, 0), "Flush", 0));
    }
}

#[test]
fn x4_fua_is_taken_on_every_command_and_reaches_the_engine_where_it_matters() {
    let fua = command_flag::FUA;
    for (command, expect) in [
        (command::READ, "Read"),
        (command::FLUSH, "Flush"),
        (command::TRIM, "Trim { fua: true }"),
        (command::WRITE_ZEROES, "Zero { no_hole: false, fua: true, fast: false }"),
        (command::BLOCK_STATUS, "Status { tiers: false, one: false }"),
    ] {
        assert_eq!(accepted(STATUS, &request(command, fua, 512, 512)).2, expect);
    }
    assert!(accepted(SIMPLE, &write(fua, 0, &[1; 512])).2.contains("fua: true"));
    assert!(accepted(SIMPLE, &write(0, 0, &[1; 512])).2.contains("fua: false"));
}

#[test]
fn x6_no_hole_reaches_the_engine_and_belongs_to_write_zeroes_alone() {
    let no_hole = command_flag::NO_HOLE;
    assert_eq!(accepted(SIMPLE, &request(command::WRITE_ZEROES, no_hole, 0, 512)).2, "Zero { no_hole: true, fua: false, fast: false }");
    check_error(SIMPLE, &request(command::TRIM, no_hole, 0, 512), error::INVALID);
    check_error(SIMPLE, &request(command::WRITE_ZEROES, 1 << 5, 0, 512), error::INVALID);
}

#[test]
fn x7_a_trim_is_a_hint_about_whole_atoms_and_its_fua_is_honoured() {
    let fua = command_flag::FUA;
    assert_eq!(accepted(SIMPLE, &request(command::TRIM, fua, 0, 1024)).2, "Trim { fua: true }");
    let (pending, span, command) = accepted(BYTES_OF(SIMPLE), &request(command::TRIM, fua, 1, 1535));
    assert_eq!((span, command.as_str(), pending.change), (Span::new(1, 2), "Trim { fua: true }", Span::new(1, 2)));
}

#[test]
fn x6_fast_zeroes_reach_the_engine_and_are_refused_with_enotsup() {
    let fast = request(command::WRITE_ZEROES, command_flag::FAST_ZERO, 0, 512);
    assert_eq!(accepted(SIMPLE, &fast).2, "Zero { no_hole: false, fua: false, fast: true }");
    assert_eq!(answered(SIMPLE, &fast, Err(RequestError::NotFast))[4..8], error::NOT_SUPPORTED.to_be_bytes());
    for command in [command::TRIM, command::READ, command::CACHE, command::FLUSH] {
        check_error(SIMPLE, &request(command, command_flag::FAST_ZERO, 0, 512), error::INVALID);
    }
}

#[test]
fn x12_cache_is_a_job_of_whole_blocks_and_takes_no_flag_but_fua() {
    let job = |session, offset, length| {
        let mut got = feed(&export(), session, false, &request(command::CACHE, 0, offset, length), usize::MAX);
        assert_eq!((got.requests.len(), got.replies.len(), got.jobs.len()), (0, 0, 1));
        got.jobs.remove(0).1
    };
    assert!(job(SIMPLE, 512, 512).contains("cache: Span { start: 0, atoms: 8 }"));
    assert!(job(BYTES_OF(SIMPLE), 4095, 2).contains("cache: Span { start: 0, atoms: 16 }"));
    assert!(job(SIMPLE, 0, BYTES as u32).contains(&format!("atoms: {} }}", BYTES / 512)));
    for bit in 1..16 {
        check_error(CHUNKS, &request(command::CACHE, 1 << bit, 0, 512), error::INVALID);
    }
    check_error(SIMPLE, &request(command::CACHE, 0, BYTES, 512), error::INVALID);
    check_error(SIMPLE, &request(command::CACHE, 0, 1, 512), error::INVALID);
}

#[test]
fn x8_beyond_the_end_has_the_error_of_its_command() {
    for (offset, length) in [(BYTES, 512), (BYTES - 512, 1024), (u64::MAX - 511, 512), (u64::MAX - 511, u32::MAX - 511)] {
        for command in [command::TRIM, command::BLOCK_STATUS] {
            check_error(STATUS, &request(command, 0, offset, length), error::INVALID);
        }
        check_error(STATUS, &request(command::READ, 0, offset, length.min(1024)), error::INVALID);
        check_error(SIMPLE, &request(command::WRITE_ZEROES, 0, offset, length), error::NO_SPACE);
    }
    check_error(SIMPLE, &write(0, BYTES, &[1; 512]), error::NO_SPACE);
    check_error(SIMPLE, &write(0, BYTES - 512, &[1; 1024]), error::NO_SPACE);
    accepted(SIMPLE, &write(0, BYTES - 512, &[1; 512]));
}

#[test]
fn x9_what_is_not_whole_atoms_is_invalid() {
    for (offset, length) in [(1, 512), (512, 1), (511, 513), (0, u32::MAX)] {
        for command in [command::TRIM, command::WRITE_ZEROES, command::BLOCK_STATUS] {
            check_error(STATUS, &request(command, 0, offset, length), error::INVALID);
        }
        check_error(CHUNKS, &request(command::READ, 0, offset, length), error::INVALID);
    }
    check_error(SIMPLE, &write(0, 1, &[1; 512]), error::INVALID);
    check_error(SIMPLE, &write(0, 0, &[1; 700]), error::INVALID);
}

#[test]
fn x9_who_was_not_told_about_block_sizes_is_served_to_the_byte() {
    let bytes = BYTES_OF(SIMPLE);
    let (pending, span, command) = accepted(bytes, &request(command::READ, 0, 1000, 30));
    assert_eq!((span, command.as_str(), pending.held), (Span::new(1, 2), "Read", 1024));
    let reply = answered(bytes, &request(command::READ, 0, 1000, 30), Ok(Outcome::Data(vec![run(1, 1), run(1, 2)].into())));
    assert_eq!(reply[16..], [vec![1; 24], vec![2; 6]].concat());
    let (_, _, chunk) = one_chunk(&answered(BYTES_OF(CHUNKS), &request(command::READ, 0, 1023, 1), Ok(Outcome::Data([run(1, 9)].into()))));
    assert_eq!(chunk, [&1023u64.to_be_bytes()[..], &[9]].concat());

    // Changes of parts of atoms take several requests; a trim is a hint, and takes whole atoms only.
    for input in [
        write(0, 1, &[1; 512]),
        write(0, 0, &[1; 511]),
        write(0, 7, &vec![1; 2 * DIRECT_BYTES]),
        request(command::WRITE_ZEROES, 0, 5, 2000),
    ] {
        let got = feed(&export(), bytes, false, &input, usize::MAX);
        assert_eq!((got.jobs.len(), got.requests.len(), got.replies.len(), got.left), (1, 0, 0, 0));
    }
    assert_eq!(accepted(bytes, &write(0, 512, &[1; 512])).1, Span::new(1, 1), "whole atoms are one request for them too");
    assert_eq!(accepted(bytes, &request(command::TRIM, 0, 500, 2000)).1, Span::new(1, 3));
    let nothing = feed(&export(), bytes, false, &request(command::TRIM, 0, 500, 500), usize::MAX);
    assert_eq!((nothing.requests.len(), nothing.replies[4..8].to_vec()), (0, vec![0; 4]));

    let status = BYTES_OF(STATUS);
    let (_, span, _) = accepted(status, &request(command::BLOCK_STATUS, 0, 100, 1500));
    assert_eq!(span, Span::new(0, 4));
    let (_, _, data) =
        one_chunk(&answered(status, &request(command::BLOCK_STATUS, 0, 100, 1500), extents(&[(1, true), (2, false), (1, true)])));
    let lengths: Vec<u8> = data[4..].chunks(8).flat_map(|pair| [pair[2], pair[3], pair[7]]).collect();
    assert_eq!(lengths, [1, 156, 3, 4, 0, 0, 0, 64, 3], "412, 1024 and 64 bytes");

    check_error(bytes, &request(command::READ, 0, BYTES - 1, 2), error::INVALID);
    check_error(bytes, &write(0, BYTES - 1, &[1; 2]), error::NO_SPACE);
}

#[test]
fn what_somebody_has_to_itself_is_not_changed_by_others_meanwhile() {
    let (place, mut ahead) = (Span::new(8, 1), Ahead::default());
    ahead.set(&mut None, true, std::iter::once(place));
    for busy in [Allowance { busy: &[place], ..AMPLE }, Allowance { ahead: Some(ahead.before(None)), ..AMPLE }] {
        let mut out = Output::default();
        let mut step = |session, input: &[u8]| Transmission::new(session).step(&export(), false, busy, input, &mut out).1;
        for input in [write(0, 4096, &[1; 512]), request(command::TRIM, 0, 0, 8192), request(command::WRITE_ZEROES, 0, 4096, 512)] {
            assert!(matches!(step(SIMPLE, &input), Step::Busy));
        }
        assert!(matches!(step(BYTES_OF(SIMPLE), &write(0, 4607, &[1])), Step::Busy));
        assert!(matches!(step(SIMPLE, &write(0, 4608, &[1; 512])), Step::Request(..)), "beside it");
        for command in [command::READ, command::FLUSH] {
            assert!(matches!(step(SIMPLE, &request(command, 0, 4096, 512)), Step::Request(..)), "only changes wait");
        }
        assert!(matches!(step(SIMPLE, &request(command::CACHE, 0, 4096, 512)), Step::Job(..)));
    }
}

#[test]
fn what_is_here_as_a_whole_is_known_before_there_is_room_for_it() {
    let mut out = Output::default();
    let none = Allowance { room: 0, ..AMPLE };
    let changes = |transmission: &Transmission, input: &[u8]| -> Vec<(u64, u64)> {
        transmission.changes(&export(), input).map(|span| (span.start, span.atoms)).collect()
    };
    let behind = [
        request(command::READ, 0, 0, 4096),
        write(0, 700, &[1; 512]),
        request(command::TRIM, 0, 8192, 1024),
        request(command::WRITE_ZEROES, 0, BYTES, 512),
        request(command::CACHE, 0, 0, 4096),
        request(command::WRITE_ZEROES, 0, 4096, 512),
    ]
    .concat();
    let mut transmission = Transmission::new(BYTES_OF(SIMPLE));
    assert_eq!(changes(&transmission, &behind), [(1, 2), (16, 2), (8, 1)]);
    assert_eq!(changes(&transmission, &behind[..behind.len() - 1]), [(1, 2), (16, 2)], "the last one is not whole");
    assert!(changes(&transmission, &[request(command::DISC, 0, 0, 0), behind.clone()].concat()).is_empty());
    let large = write(0, 512, &[1; DIRECT_BYTES]);
    assert!(matches!(transmission.step(&export(), false, none, &large, &mut out), (HEADER_BYTES, Step::Next)));
    assert!(matches!(transmission.step(&export(), false, none, &large[HEADER_BYTES..DIRECT_BYTES], &mut out).1, Step::Wait));
    assert!(changes(&transmission, &behind).is_empty(), "it is not whole, nor is anything behind it");
    assert!(matches!(transmission.step(&export(), false, none, &large[DIRECT_BYTES..], &mut out).1, Step::Cramped(_)));
    assert_eq!(changes(&transmission, &behind)[..2], [(1, DIRECT_BYTES as u64 / 512), (1, 2)]);
    let endless =
        [extended(command::READ, 0, 0, 4096), extended(command::WRITE, 0, 0, u64::MAX), extended(command::TRIM, 0, 0, 512)].concat();
    assert!(changes(&Transmission::new(EXTENDED), &endless).is_empty());
    let many: Vec<u8> = (0..1000).flat_map(|_| request(command::TRIM, 0, 0, 512)).collect();
    assert_eq!(changes(&Transmission::new(SIMPLE), &many).len(), LOOKED_AT_MAX);
}

#[test]
fn without_place_for_a_job_only_what_is_one_waits() {
    let mut out = Output::default();
    let mut step = |allowance, input: &[u8]| Transmission::new(BYTES_OF(SIMPLE)).step(&export(), false, allowance, input, &mut out).1;
    let changes = [write(0, 1, &[1; 512]), request(command::WRITE_ZEROES, 0, 1, 512)];
    let caching = request(command::CACHE, 0, 0, 512);
    let (no_change, no_caching) = (Allowance { job: false, ..AMPLE }, Allowance { caching_job: false, ..AMPLE });
    assert!(changes.iter().all(|input| matches!(step(no_change, input), Step::Busy)));
    assert!(changes.iter().all(|input| matches!(step(no_caching, input), Step::Job(..))));
    assert!(matches!((step(no_caching, &caching), step(no_change, &caching)), (Step::Full, Step::Job(..))));
    let none = Allowance { job: false, caching_job: false, ..AMPLE };
    for input in [write(0, 0, &[1; 512]), request(command::WRITE_ZEROES, 0, 0, 512), request(command::READ, 0, 1, 5)] {
        assert!(matches!(step(none, &input), Step::Request(..)));
    }
}

#[test]
fn e_lengths_have_64_bits_and_every_reply_is_an_extended_chunk() {
    let export = Export { bytes: 1 << 40, ..export() };
    for command in [command::TRIM, command::WRITE_ZEROES] {
        let got = feed(&export, EXTENDED, false, &extended(command, 0, 4096, 1 << 39), usize::MAX);
        assert_eq!(got.requests[0].1, Span::new(8, 1 << 30));
        let mut out = Output::default();
        reply(&got.requests[0].0, EXTENDED, Ok(Outcome::Done), &mut out);
        let bytes = taken(&mut out);
        assert_eq!(bytes[16..24], 4096u64.to_be_bytes(), "the request's offset");
        assert_eq!(one_reply(&bytes), (chunk::DONE, chunk::NONE, vec![]));
    }
    let read = answered(EXTENDED, &extended(command::READ, 0, 512, 512), Ok(Outcome::Data([run(1, 3)].into())));
    assert_eq!(one_reply(&read), (chunk::DONE, chunk::OFFSET_DATA, [&512u64.to_be_bytes()[..], &[3; 512]].concat()));
    let status = answered(EXTENDED, &extended(command::BLOCK_STATUS, 0, 0, 1024), extents(&[(1, true), (1, false)]));
    let words = |words: &[u64]| words.iter().flat_map(|word| word.to_be_bytes()).collect::<Vec<u8>>();
    let expect = [vec![0, 0, 0, 1, 0, 0, 0, 2], words(&[512, 3, 512, 0])].concat();
    assert_eq!(one_reply(&status), (chunk::DONE, chunk::BLOCK_STATUS_EXT, expect));
    check_error(EXTENDED, &extended(command::READ, 0, 0, 1 << 33), error::INVALID);
    check_error(EXTENDED, &extended(command::TRIM, 0, u64::MAX - 511, 1 << 40), error::INVALID);
    check_error(EXTENDED, &extended(command::WRITE_ZEROES, 0, 512, u64::MAX - 511), error::NO_SPACE);
    assert_eq!(
        feed(&export, EXTENDED, false, &request(command::READ, 0, 0, 512).repeat(2), usize::MAX).end,
        Some("close"),
        "the other magic"
    );
}

#[test]
fn e_a_write_and_what_says_so_has_a_payload_and_it_is_read_even_when_it_is_refused() {
    let payload = command_flag::PAYLOAD_LEN;
    for flags in [payload, 0] {
        let input = [extended(command::WRITE, flags, 0, 512), vec![7; 512]].concat();
        assert_eq!(accepted(EXTENDED, &input).1, Span::new(0, 1), "some clients forget to say it of a WRITE");
    }
    for command in [command::BLOCK_STATUS, command::READ, command::TRIM, 4711] {
        check_error(EXTENDED, &[extended(command, payload, 0, 100), vec![7; 100]].concat(), error::INVALID);
    }
    check_error(CHUNKS, &request(command::TRIM, payload, 0, 512), error::INVALID);
    let bomb = extended(command::TRIM, payload, 0, u64::MAX);
    assert_eq!(feed(&export(), EXTENDED, false, &bomb, usize::MAX).end, Some("close"));
}

#[test]
fn x10_payloads_up_to_32_mib_are_served_and_longer_ones_dropped_or_not_borne() {
    let limit = PAYLOAD_BYTES_MAX;
    assert_eq!(accepted(SIMPLE, &write(0, 0, &vec![7; limit as usize])).1, Span::new(0, u64::from(limit) / 512));
    check_error(SIMPLE, &write(0, 0, &vec![7; limit as usize + 512]), error::INVALID);
    check_error(SIMPLE, &write(0, 0, &vec![7; DRAIN_BYTES_MAX as usize]), error::INVALID);
    let bomb = request(command::WRITE, 0, 0, u32::MAX - 511);
    assert_eq!(feed(&export(), SIMPLE, false, &bomb, usize::MAX).end, Some("close"));
    accepted(SIMPLE, &request(command::READ, 0, 0, limit));
    check_error(SIMPLE, &request(command::READ, 0, 0, limit + 512), error::INVALID);
}

#[test]
fn x10_trim_and_zeroes_may_be_longer_than_any_payload() {
    for command in [command::TRIM, command::WRITE_ZEROES] {
        let (pending, span, _) = accepted(SIMPLE, &request(command, 0, 0, BYTES as u32));
        assert_eq!((span.bytes(), pending.held), (BYTES, 0), "one request, and no memory for it");
    }
}

#[test]
fn x11_length_zero_succeeds_at_once() {
    for command in [command::READ, command::WRITE, command::TRIM, command::WRITE_ZEROES] {
        let got = feed(&export(), SIMPLE, false, &request(command, 0, 0, 0), usize::MAX);
        assert_eq!((got.requests.len(), got.replies.len(), &got.replies[4..8]), (0, 16, &[0; 4][..]));
    }
}

#[test]
fn x12_unknown_commands_and_flags_are_invalid_and_only_a_write_has_a_payload() {
    for command in [8, 9, 4711, u16::MAX] {
        check_error(CHUNKS, &request(command, 0, 0, 512), error::INVALID);
    }
    for bit in 1..16 {
        check_error(SIMPLE, &request(command::FLUSH, 1 << bit, 0, 0), error::INVALID);
        check_error(SIMPLE, &write(1 << bit, 0, &[1; 512]), error::INVALID);
    }
    let got = feed(&export(), SIMPLE, false, &[request(4711, 0, 0, 28), request(command::FLUSH, 0, 0, 0)].concat(), usize::MAX);
    assert_eq!((got.requests.len(), got.replies.len()), (1, 16));
}

#[test]
fn x13_disc_is_not_answered_and_what_follows_is_not_read() {
    let input = [request(command::FLUSH, 0, 0, 0), request(command::DISC, 0, 0, 0), request(command::FLUSH, 0, 0, 0)].concat();
    let got = feed(&export(), SIMPLE, false, &input, usize::MAX);
    assert_eq!((got.requests.len(), got.replies.len(), got.end, got.left), (1, 0, Some("finish"), HEADER_BYTES));
}

#[test]
fn x15_a_stopping_server_refuses_whatever_comes() {
    let input = [request(command::READ, 0, 0, 512), write(0, 0, &[1; 512]), write(0, 0, &vec![1; 2 * DIRECT_BYTES])].concat();
    let got = feed(&export(), SIMPLE, true, &input, usize::MAX);
    assert_eq!((got.requests.len(), got.replies.len(), got.end), (0, 48, None));
    assert!(got.replies.chunks(16).all(|reply| reply[4..8] == error::SHUTDOWN.to_be_bytes()));
}

#[test]
fn x17_a_wrong_magic_ends_the_connection() {
    let mut input = request(command::FLUSH, 0, 0, 0);
    input[3] ^= 1;
    assert_eq!(feed(&export(), SIMPLE, false, &input, usize::MAX).end, Some("close"));
}

#[test]
fn nothing_is_taken_beyond_the_allowance_and_everything_after_it_has_grown() {
    let (mut out, tight) = (Output::default(), |connection, room| Allowance { connection, room, ..AMPLE });
    for input in [write(0, 0, &[1; 4096]), request(command::READ, 0, 0, 4096)] {
        let mut transmission = Transmission::new(SIMPLE);
        for (allowance, is_cramped) in [(tight(4095, 4096), false), (tight(4096, 4095), true)] {
            let (took, step) = transmission.step(&export(), false, allowance, &input, &mut out);
            assert!(took == 0 && matches!((&step, is_cramped), (Step::Full, false) | (Step::Cramped(_), true)), "{step:?}");
        }
        let (took, step) = transmission.step(&export(), false, tight(4096, 4096), &input, &mut out);
        assert!(took == input.len() && matches!(step, Step::Request(..)), "{step:?}");
    }
    // A large payload is received before the engine has room for it, and waits in its run.
    let mut transmission = Transmission::new(SIMPLE);
    let input = write(0, 0, &[1; DIRECT_BYTES]);
    let none = tight(DIRECT_BYTES as u64, 0);
    assert!(matches!(transmission.step(&export(), false, none, &input, &mut out), (HEADER_BYTES, Step::Next)));
    assert!(matches!(transmission.step(&export(), false, none, &input[HEADER_BYTES..], &mut out), (DIRECT_BYTES, Step::Cramped(_))));
    assert!(transmission.is_filled() && transmission.hole().is_none());
    assert!(matches!(transmission.step(&export(), false, AMPLE, &[], &mut out), (0, Step::Request(..))));
}

/// Mostly commands that make sense, sometimes noise.
fn any_input() -> impl Strategy<Value = Vec<u8>> {
    let near = prop_oneof![4 => (0u64..1 << 20).prop_map(|atom| atom * 512), 1 => any::<u64>()];
    let length = prop_oneof![4 => (0u32..40).prop_map(|atoms| atoms * 512), 1 => any::<u32>(), 1 => 0u32..2000];
    let flags = prop_oneof![4 => 0u16..4, 1 => any::<u16>()];
    let plain = (0u16..9, flags.clone(), near.clone(), length.clone()).prop_map(|(kind, flags, offset, length)| {
        let command = if kind == command::WRITE { command::READ } else { kind };
        request(if command == command::DISC { command::FLUSH } else { command }, flags, offset, length)
    });
    let payload = prop_oneof![4 => (0usize..9).prop_map(|atoms| atoms * 512), 1 => Just(DIRECT_BYTES + 512), 1 => 0usize..600];
    let writes = (flags, near, payload, any::<u8>()).prop_map(|(flags, offset, length, byte)| write(flags, offset, &vec![byte; length]));
    let noise = prop::collection::vec(any::<u8>(), 0..60);
    let parts = prop::collection::vec(prop_oneof![6 => plain, 4 => writes], 0..12);
    (parts, noise).prop_map(|(parts, noise)| [parts.concat(), noise].concat())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn one_byte_at_a_time_and_all_at_once_come_to_the_same(input in any_input(), step in 1usize..5000, stopping: bool) {
        for session in [SIMPLE, STATUS, BYTES_OF(SIMPLE), BYTES_OF(STATUS)] {
            let whole = feed(&export(), session, stopping, &input, usize::MAX).settled();
            prop_assert_eq!(&feed(&export(), session, stopping, &input, 1).settled(), &whole);
            prop_assert_eq!(&feed(&export(), session, stopping, &input, step).settled(), &whole);
        }
    }

    #[test]
    fn random_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..2000), magic: bool) {
        let input = if magic { [REQUEST_MAGIC.to_be_bytes().to_vec(), bytes].concat() } else { bytes };
        for session in [STATUS, BYTES_OF(STATUS)] {
            let got = feed(&export(), session, false, &input, 64);
            prop_assert!(got.replies.len() <= input.len() * 4);
        }
    }

    #[test]
    fn random_bytes_behind_an_extended_header_never_panic(
        (command, flags, offset, length) in (0u16..9, 0u16..64, 0u64..2 * BYTES, 0u64..2 * BYTES),
        noise in prop::collection::vec(any::<u8>(), 0..200),
        sized: bool,
    ) {
        let input = [extended(command, flags, offset, length), noise].concat();
        let session = Session { sized, ..EXTENDED };
        let whole = feed(&export(), session, false, &input, usize::MAX).settled();
        prop_assert_eq!(feed(&export(), session, false, &input, 7).settled(), whole);
    }
}

impl Got {
    /// After the end, how much was left unread depends on how it came.
    fn settled(mut self) -> Got {
        if self.end.is_some() {
            self.left = 0;
        }
        self
    }
}
