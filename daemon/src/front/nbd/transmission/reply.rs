//! Replies: what the engine answered, in the form that was negotiated. Simple replies, structured chunks, extended chunks.

use tidegate_engine::block::ATOM_BYTES;
use tidegate_engine::payload::Pieces;
use tidegate_engine::request::{Extent, Outcome, RequestError, Stretch, Tier};

use super::super::export::{Headers, Session};
use super::super::output::Output;
use super::super::protocol::{CHUNK_MAGIC, EXTENDED_REPLY_MAGIC, SIMPLE_REPLY_MAGIC, allocation, chunk, error, tier};
use super::{EXTENTS_MAX, Pending, Refusal, STOPPING, Shape, atoms_around};
use crate::back::run::Run;

/// Appends the reply to a request that the engine has answered.
///
/// # Panics
/// If the answer does not fit the request: that is a bug of the engine.
pub fn reply(pending: &Pending, session: Session, result: Result<Outcome<Run>, RequestError>, out: &mut Output) {
    match (pending.shape, result) {
        (Shape::Plain, Ok(Outcome::Done)) => succeed(pending, session, out),
        (Shape::Read, Ok(Outcome::Data(runs))) => data(pending, session, runs, out),
        (Shape::Status { one }, Ok(Outcome::Status { allocation, tiers })) => status(pending, session, one, (&allocation, &tiers), out),
        (_, Err(RequestError::Io)) => refuse(pending, session, Refusal(error::IO, "a device failed"), out),
        (_, Err(RequestError::NoSpace)) => refuse(pending, session, Refusal(error::NO_SPACE, "no space left"), out),
        (_, Err(RequestError::NotFast)) => refuse(pending, session, Refusal(error::NOT_SUPPORTED, "this would not be fast"), out),
        (_, Err(RequestError::Shutdown)) => refuse(pending, session, STOPPING, out),
        (shape, Ok(outcome)) => panic!("{outcome:?} is no answer to {shape:?}"),
    }
}

fn data(pending: &Pending, session: Session, runs: Pieces<Run>, out: &mut Output) {
    let span = atoms_around(pending.offset, pending.length);
    let bytes: usize = runs.iter().map(Run::bytes).sum();
    assert_eq!(bytes as u64, span.bytes(), "a read of {} bytes was answered with {bytes}", span.bytes());
    out.write(|out| match session.headers {
        Headers::Simple => simple(out, pending.cookie, 0),
        Headers::Structured | Headers::Extended => {
            chunk_header(out, pending, session, chunk::DONE, chunk::OFFSET_DATA, 8 + pending.length as u32);
            out.extend(pending.offset.to_be_bytes());
        }
    });
    // Of whole atoms, the bytes that were asked for.
    let first = (pending.offset - span.offset()) as usize;
    let end = first + pending.length as usize;
    let mut at = 0;
    for run in runs {
        let part = first.max(at) - at..end.min(at + run.bytes()) - at;
        at += run.bytes();
        out.push(run, part);
    }
    out.end_reply();
}

fn status(pending: &Pending, session: Session, one: bool, (extents, tiers): (&[Extent], &[Stretch]), out: &mut Output) {
    let contexts = session.contexts;
    if contexts.allocation {
        let flags = |extent: &Extent| if extent.hole { allocation::HOLE } else { 0 } | if extent.zero { allocation::ZERO } else { 0 };
        let merged = merged(pending, one, extents.iter().map(|extent| (extent.atoms, flags(extent))));
        let done = if contexts.tier { 0 } else { chunk::DONE };
        out.write(|out| status_chunk(out, pending, session, done, allocation::ID, &merged));
    }
    if contexts.tier {
        let number = |tier| match tier {
            Tier::Origin => tier::ORIGIN,
            Tier::Clean => tier::CLEAN,
            Tier::Dirty => tier::DIRTY,
            Tier::Memory => tier::MEMORY,
        };
        let merged = merged(pending, one, tiers.iter().map(|stretch| (stretch.atoms, number(stretch.tier))));
        out.write(|out| status_chunk(out, pending, session, chunk::DONE, tier::ID, &merged));
    }
    out.end_reply();
}

/// The extents of one context in bytes: of the atoms that were looked at, what was asked for.
fn merged(pending: &Pending, one: bool, extents: impl Iterator<Item = (u64, u32)>) -> Vec<(u64, u32)> {
    let span = atoms_around(pending.offset, pending.length);
    let (mut at, end) = (span.offset(), pending.offset + pending.length);
    let mut merged: Vec<(u64, u32)> = Vec::new();
    let mut is_full = false;
    for (atoms, status) in extents {
        let part = at.max(pending.offset)..(at + atoms * ATOM_BYTES).min(end);
        at += atoms * ATOM_BYTES;
        if part.is_empty() || is_full {
            continue;
        }
        let length = part.end - part.start;
        let count = merged.len();
        match merged.last_mut() {
            Some((before, same)) if *same == status => *before += length,
            _ if count == EXTENTS_MAX => is_full = true,
            _ => merged.push((length, status)),
        }
    }
    assert!(!merged.is_empty() && at <= span.end() * ATOM_BYTES, "the extents of a status are of its span, from its beginning");
    merged.truncate(if one { 1 } else { EXTENTS_MAX });
    merged
}

fn status_chunk(out: &mut Vec<u8>, pending: &Pending, session: Session, flags: u16, context: u32, extents: &[(u64, u32)]) {
    let count = extents.len() as u32;
    match session.headers {
        Headers::Extended => {
            chunk_header(out, pending, session, flags, chunk::BLOCK_STATUS_EXT, 8 + 16 * count);
            out.extend([context.to_be_bytes(), count.to_be_bytes()].as_flattened());
            extents.iter().for_each(|(length, status)| out.extend([length.to_be_bytes(), u64::from(*status).to_be_bytes()].as_flattened()));
        }
        Headers::Simple | Headers::Structured => {
            chunk_header(out, pending, session, flags, chunk::BLOCK_STATUS, 4 + 8 * count);
            out.extend(context.to_be_bytes());
            for (length, status) in extents {
                let length = u32::try_from(*length).expect("no longer than the request");
                out.extend([length.to_be_bytes(), status.to_be_bytes()].as_flattened());
            }
        }
    }
}

/// Success without data. A READ (of nothing) is answered in chunks once they were negotiated, everything else simply (S1); with extended
/// headers everything is a chunk.
pub(super) fn succeed(pending: &Pending, session: Session, out: &mut Output) {
    let is_chunk = match session.headers {
        Headers::Simple => false,
        Headers::Structured => pending.shape == Shape::Read,
        Headers::Extended => true,
    };
    out.write(|out| match is_chunk {
        true => chunk_header(out, pending, session, chunk::DONE, chunk::NONE, 0),
        false => simple(out, pending.cookie, 0),
    });
    out.end_reply();
}

pub(super) fn refuse(pending: &Pending, session: Session, Refusal(error, text): Refusal, out: &mut Output) {
    out.write(|out| {
        if session.headers == Headers::Simple {
            return simple(out, pending.cookie, error);
        }
        chunk_header(out, pending, session, chunk::DONE, chunk::ERROR, 6 + text.len() as u32);
        out.extend(error.to_be_bytes());
        out.extend((text.len() as u16).to_be_bytes());
        out.extend(text.as_bytes());
    });
    out.end_reply();
}

fn simple(out: &mut Vec<u8>, cookie: u64, error: u32) {
    let mut header = [0; 16];
    header[..4].copy_from_slice(&SIMPLE_REPLY_MAGIC.to_be_bytes());
    header[4..8].copy_from_slice(&error.to_be_bytes());
    header[8..].copy_from_slice(&cookie.to_be_bytes());
    out.extend_from_slice(&header);
}

fn chunk_header(out: &mut Vec<u8>, pending: &Pending, session: Session, flags: u16, kind: u16, length: u32) {
    let mut header = [0; 32];
    header[4..6].copy_from_slice(&flags.to_be_bytes());
    header[6..8].copy_from_slice(&kind.to_be_bytes());
    header[8..16].copy_from_slice(&pending.cookie.to_be_bytes());
    if session.headers == Headers::Extended {
        header[..4].copy_from_slice(&EXTENDED_REPLY_MAGIC.to_be_bytes());
        header[16..24].copy_from_slice(&pending.offset.to_be_bytes());
        header[24..].copy_from_slice(&u64::from(length).to_be_bytes());
        out.extend_from_slice(&header);
    } else {
        header[..4].copy_from_slice(&CHUNK_MAGIC.to_be_bytes());
        header[16..20].copy_from_slice(&length.to_be_bytes());
        out.extend_from_slice(&header[..20]);
    }
}
