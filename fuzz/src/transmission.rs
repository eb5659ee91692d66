//! An NBD client that sends commands: whatever it sends, however it is cut, the engine is asked the same, and only what the volume has.

use std::io::IoSlice;

use tidegate_daemon::back::run::{Run, RunMut};
use tidegate_daemon::front::nbd::export::{Contexts, Export, Headers, Session};
use tidegate_daemon::front::nbd::output::Output;
use tidegate_daemon::front::nbd::transmission::{Allowance, Pending, Shape, Step, Transmission, reply};
use tidegate_engine::block::Span;
use tidegate_engine::payload::{Checksum, Payload};
use tidegate_engine::request::{Command, Extent, Outcome, RequestError, Stretch, Tier};

use crate::input::Input;

/// Small, so that a payload that never comes is no large piece of memory: 32 MiB for each input is all that would be tried.
const VOLUME_BYTES: u64 = (1 << 20) + 512;
/// Reads up to here are answered with data, longer ones with an error: it is the requests that are looked at.
const ANSWERED_ATOMS_MAX: u64 = 16;

/// What came of a stream of bytes.
#[derive(Debug, Default, PartialEq)]
struct Got {
    /// Span, command (with the checksum of what is written), and the jobs.
    asked: Vec<(Span, String)>,
    replies: Vec<u8>,
    end: Option<&'static str>,
}

pub fn run(data: &[u8]) {
    let mut input = Input(data);
    let (how, agreed) = (input.byte(), input.byte());
    let headers = [Headers::Simple, Headers::Structured, Headers::Extended][usize::from(agreed % 3)];
    let contexts = Contexts { allocation: agreed & 4 != 0, tier: agreed & 8 != 0 };
    let contexts = if headers == Headers::Simple { Contexts::NONE } else { contexts };
    let session = Session { headers, contexts, sized: agreed & 16 != 0, export: 0 };
    let export = Export {
        name: String::new(),
        description: String::new(),
        bytes: VOLUME_BYTES,
        read_only: agreed & 32 != 0,
        block_bytes: 4096,
        clients: Vec::new(),
    };
    let stopping = how & 1 != 0;
    let piece = 1 + usize::from(how >> 1);
    let whole = feed(&export, session, stopping, input.0, usize::MAX);
    assert_eq!(feed(&export, session, stopping, input.0, piece), whole, "cut into pieces of {piece} bytes");
}

fn feed(export: &Export, session: Session, stopping: bool, bytes: &[u8], piece: usize) -> Got {
    let (mut transmission, mut out, mut got) = (Transmission::new(session), Output::default(), Got::default());
    let mut buffer = Vec::new();
    for mut piece in bytes.chunks(piece) {
        if let Some(hole) = transmission.hole() {
            assert!(buffer.is_empty(), "bytes were left before a payload");
            let direct = hole.len().min(piece.len());
            hole[..direct].copy_from_slice(&piece[..direct]);
            transmission.fill(direct);
            piece = &piece[direct..];
        }
        buffer.extend_from_slice(piece);
        // The engine is full at first, and has room when it is asked again.
        let (mut full, mut waits) = (true, None);
        while got.end.is_none() && (!buffer.is_empty() || transmission.is_filled()) {
            let room = if full { 0 } else { u64::MAX };
            let allowance = Allowance {
                connection: u64::MAX,
                loan: u64::MAX,
                payload: u64::MAX,
                room,
                place: !full,
                reads: (!full).then_some(room),
                busy: &[],
                ahead: None,
                job: !full,
                caching_job: !full,
            };
            let was_filled = transmission.is_filled();
            let (took, step) = transmission.step(export, stopping, allowance, &buffer, &mut out);
            assert!(took <= buffer.len());
            assert!(
                took > 0 || was_filled || matches!(step, Step::Wait | Step::Full | Step::Busy | Step::Cramped(_) | Step::CrampedReads(_)),
                "{step:?} after nothing"
            );
            buffer.drain(..took);
            let change = match &step {
                Step::Request(pending, ..) => pending.change,
                Step::Job(_, job) => job.change(),
                _ => Span::default(),
            };
            if !change.is_empty() {
                assert!(waits.is_none_or(|span: Span| span.contains(change)), "{change:?} came behind {waits:?}");
            }
            waits = None;
            match step {
                Step::Wait => break,
                Step::Next => {}
                Step::Full | Step::Busy | Step::Cramped(_) | Step::CrampedReads(_) => {
                    assert!(full, "there is room for everything");
                    full = false;
                    waits = transmission.changes(export, &buffer).next();
                    continue;
                }
                Step::Unlent(_) => panic!("everything is lent"),
                Step::Request(pending, span, command) => ask(export, session, pending, span, command, &mut got, &mut out),
                Step::Job(pending, job) => {
                    assert!(!export.read_only || matches!(pending.shape, Shape::Plain));
                    got.asked.push((pending.change, format!("{pending:?} {job:?}")));
                }
                Step::Finish => got.end = Some("finish"),
                Step::Close => got.end = Some("close"),
            }
            full = true;
        }
    }
    got.replies = taken(&mut out);
    got
}

/// A request comes to the engine, which answers it.
fn ask(export: &Export, session: Session, pending: Pending, span: Span, command: Command<Run>, got: &mut Got, out: &mut Output) {
    assert!(span.offset().checked_add(span.bytes()).is_some_and(|end| end <= export.bytes), "{span:?} is not on the volume");
    let flush = matches!(command, Command::Flush);
    assert!(flush == span.is_empty(), "{command:?} of {span:?}");
    assert!(
        !export.read_only || matches!(command, Command::Read | Command::Flush | Command::Status { .. }),
        "{command:?} on a read-only export"
    );
    let told = match &command {
        Command::Write { data, fua } => {
            assert_eq!(data.atoms(), span.atoms);
            assert!(span.bytes() <= 33 << 20, "a payload beyond the limit");
            format!("write {fua} {:08x}", data.checksum(Checksum::Crc))
        }
        other => format!("{other:?}"),
    };
    got.asked.push((span, told));
    let result = match command {
        Command::Read if span.atoms <= ANSWERED_ATOMS_MAX => {
            // Memory is used again: what it holds is whatever it held.
            let mut run = RunMut::new(span.atoms);
            run.as_mut_slice().fill(0x5a);
            Ok(Outcome::Data([run.freeze()].into()))
        }
        Command::Read => Err(RequestError::Io),
        Command::Status { tiers, .. } => {
            let extents = [Extent { atoms: 1, hole: true, zero: true }, Extent { atoms: span.atoms - 1, hole: false, zero: false }];
            let tiers = if tiers { vec![Stretch { atoms: span.atoms, tier: Tier::Dirty }] } else { Vec::new() };
            Ok(Outcome::Status { allocation: extents.into_iter().filter(|extent| extent.atoms > 0).collect(), tiers })
        }
        Command::Write { .. } | Command::Trim { .. } | Command::Zero { .. } | Command::Flush | Command::Cache => Ok(Outcome::Done),
    };
    reply(&pending, session, result, out);
}

/// Everything that would be sent.
fn taken(out: &mut Output) -> Vec<u8> {
    let mut slices = vec![IoSlice::new(&[]); out.pieces()];
    let (count, total) = out.gather(&mut slices, usize::MAX);
    let bytes: Vec<u8> = slices[..count].iter().flat_map(|slice| slice.to_vec()).collect();
    out.advance(total);
    assert!(out.is_empty() && out.replies() == 0);
    bytes
}
