//! The trace of a run: a hash over everything that was said between engine and world, so that two runs can be compared in one
//! number; and, for a replay, the same as lines to read.

use crate::chance::mix;
use crate::front::oracle::show;
use crate::stamp::{Stamps, meaning};
use tidegate_engine::Event;
use tidegate_engine::block::Span;
use tidegate_engine::op::{Action, Answer, Op, Said, Spin};
use tidegate_engine::request::{Command, Outcome, Reply, Request};
use tidegate_engine::time::Instant;

#[derive(Clone, Debug, Default)]
pub struct Trace {
    hash: u64,
    /// Lines for a reader; none unless somebody reads.
    pub lines: Option<Vec<String>>,
}

impl Trace {
    /// The hash of everything so far.
    pub fn hash(&self) -> u64 {
        mix(self.hash)
    }

    fn add(&mut self, words: &[u64]) {
        for word in words {
            self.hash = (self.hash.rotate_left(5) ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        }
    }

    /// Notes something of the kind `tag`, in words for a reader.
    pub fn note(&mut self, now: Instant, tag: u64, words: impl FnOnce() -> String) {
        self.add(&[tag, now.0]);
        if let Some(lines) = &mut self.lines {
            lines.push(format!("{:>14.6}  {}", now.0 as f64 / 1e9, words()));
        }
    }

    /// Something happened to the engine.
    pub fn event(&mut self, now: Instant, event: &Event<Stamps>) {
        match event {
            Event::Arrived(request) => {
                let command = &request.command;
                self.add(&[10, request.id.0, request.span.start, request.span.atoms]);
                self.note(now, 11, || format!("→ request {} {} {}", request.id.0, name(command), at(request.span)));
            }
            Event::Completed(done) => {
                let (word, text) = match &done.result {
                    Ok(Answer::Data(parts)) => (parts.iter().fold(1, |hash, part| mix(hash ^ part.digest())), "data".to_string()),
                    Ok(Answer::Power(Said { power, .. })) => (*power as u64, format!("{power:?}")),
                    Ok(Answer::Allocation(extents)) => (extents.len() as u64, "allocation".to_string()),
                    Ok(Answer::Done) => (2, "done".to_string()),
                    Err(error) => (3, format!("{error:?}")),
                };
                self.add(&[12, done.id.0, word]);
                self.note(now, 13, || format!("    op {:#x} ends: {text}", done.id.0));
            }
            Event::Late(op) => self.note(now, 14, || format!("    op {:#x} is late", op.0)),
            Event::Device(device, change) => self.note(now, 15, || format!("{device:?} is {change:?}")),
            Event::Control(control) => self.note(now, 16, || format!("→ {control:?}")),
            Event::Fenced { durable } => self.note(now, 18, || format!("the fence is {}durable", if *durable { "" } else { "not " })),
            Event::Tick => self.note(now, 17, || "    tick".to_string()),
        }
    }

    /// A front answers a request.
    pub fn front(&mut self, now: Instant, request: &Request<Stamps>) {
        self.add(&[19, request.id.0, request.span.start, request.span.atoms]);
        self.note(now, 19, || format!("→ request {} {} {}, to a front", request.id.0, name(&request.command), at(request.span)));
    }

    /// The engine starts an operation.
    pub fn op(&mut self, now: Instant, op: &Op<Stamps>) {
        let (kind, zone, span) = match &op.action {
            Action::Read(zone, span) => ("reads", Some(*zone), *span),
            Action::Write(zone, span, _) => ("writes", Some(*zone), *span),
            Action::Zero(zone, span, _) => ("zeroes", Some(*zone), *span),
            Action::Discard(zone, span) => ("discards", Some(*zone), *span),
            Action::Allocation(zone, span) => ("asks for the allocation of", Some(*zone), *span),
            Action::Flush => ("flushes", None, Span::default()),
            Action::Spin(Spin::Stop) => ("stops", None, Span::default()),
            Action::Spin(Spin::Wake) => ("wakes", None, Span::default()),
            Action::Spin(Spin::Look) => ("looks at", None, Span::default()),
        };
        self.add(&[20, op.id.0, op.class as u64, kind.len() as u64, span.start, span.atoms]);
        self.note(now, 21, || {
            let what = match (&op.action, zone) {
                (Action::Write(_, _, parts), Some(zone)) => format!("{zone:?} {}: {}", at(span), summary(parts)),
                (_, Some(zone)) => format!("{zone:?} {}", at(span)),
                (_, None) => String::new(),
            };
            format!("    op {:#x} {:?} {kind} {what}", op.id.0, op.device)
        });
    }

    /// A client gets its reply.
    pub fn reply(&mut self, now: Instant, reply: &Reply<Stamps>) {
        let (word, text) = match &reply.result {
            Ok(Outcome::Done) => (1, "done".to_string()),
            Ok(Outcome::Data(parts)) => {
                let hash = parts.iter().fold(1, |hash, part| mix(hash ^ part.digest()));
                (hash, if self.lines.is_some() { summary(parts) } else { String::new() })
            }
            Ok(Outcome::Status { allocation, .. }) => (allocation.len() as u64, format!("{} extents", allocation.len())),
            Err(error) => (3, format!("{error:?}")),
        };
        self.add(&[30, reply.id.0, word]);
        self.note(now, 31, || format!("← reply {} {text}", reply.id.0));
    }
}

fn name(command: &Command<Stamps>) -> String {
    match command {
        Command::Read => "read".to_string(),
        Command::Cache => "cache".to_string(),
        Command::Write { data, fua } => format!("write{} {}", fua_word(*fua), summary(std::slice::from_ref(data))),
        Command::Trim { fua } => format!("trim{}", fua_word(*fua)),
        Command::Zero { fua, no_hole, fast } => {
            let words = [(*no_hole, " (no hole)"), (*fast, " (fast)")].into_iter().filter(|(set, _)| *set).map(|(_, word)| word);
            format!("zero{}{}", fua_word(*fua), words.collect::<String>())
        }
        Command::Flush => "FLUSH".to_string(),
        Command::Status { .. } => "status".to_string(),
    }
}

fn fua_word(fua: bool) -> &'static str {
    if fua { " FUA" } else { "" }
}

fn at(span: Span) -> String {
    if span.is_empty() { String::new() } else { format!("[{}, {})", span.start, span.end()) }
}

/// The first stamps of payloads, in words.
fn summary(parts: &[Stamps]) -> String {
    const SHOWN: usize = 2;
    let mut runs: Vec<String> = Vec::new();
    let mut last = None;
    for stamp in parts.iter().flat_map(|part| part.stamps().collect::<Vec<_>>()) {
        let run = meaning(stamp).map_or(stamp, |(write, _)| write);
        if last != Some(run) {
            last = Some(run);
            runs.push(show(stamp));
        }
    }
    let more = runs.len().saturating_sub(SHOWN);
    runs.truncate(SHOWN);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    format!("{}{more}", runs.join(", "))
}
