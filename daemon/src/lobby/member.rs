//! A volume as the lobby knows it, and its thread.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::thread::JoinHandle;

use tidegate_engine::probe::Snapshot;

use super::{CLIENTS_MAX, system};
use crate::Failure;
use crate::back::mail::{Sender, mailbox};
use crate::control::INQUIRIES_MAX;
use crate::desk::{Desk, News, Rest, Tell, Word};
use crate::front::nbd::Export;

/// Words under way to a volume that are neither clients nor commands: start, write, stop; and news that answer nothing.
pub const WORDS_MAX: usize = 8;
/// Of a volume's thread: what a main thread has.
const STACK_BYTES: usize = 8 << 20;

pub struct Member {
    pub name: String,
    pub bytes: u64,
    /// For the operator.
    pub notes: Vec<String>,
    pub words: Sender<Word>,
    pub phase: Phase,
    thread: Option<JoinHandle<()>>,
}

pub enum Phase {
    Starting,
    Sound,
    Serving(Box<Snapshot>),
    Ended(Result<Rest, Failure>),
}

impl Member {
    /// A thread for a volume: `serve` builds what it needs, and waits at its desk for the word to start. `counts`: it tells when its last
    /// client has gone.
    pub fn spawn(
        place: usize,
        export: Export,
        notes: Vec<String>,
        news: &Sender<News>,
        counts: bool,
        serve: impl FnOnce(Desk) -> Result<Rest, Failure> + Send + 'static,
    ) -> Result<Member, Failure> {
        let (words, inbox) = mailbox(CLIENTS_MAX + INQUIRIES_MAX + WORDS_MAX).map_err(|error| system("no eventfd", &error))?;
        let desk = Desk::new(place, inbox, news.clone(), counts);
        let news = news.clone();
        let serve = move || {
            // One volume's broken invariant is not the others' end. Nothing of it is used again.
            let ended = catch_unwind(AssertUnwindSafe(|| serve(desk))).unwrap_or_else(|_| Err(bug()));
            news.send(News { volume: place, tell: Tell::Ended(ended) });
        };
        let name = if export.name.is_empty() { "volume".to_owned() } else { export.name.clone() };
        let thread = std::thread::Builder::new().name(name).stack_size(STACK_BYTES).spawn(serve);
        let thread = thread.map_err(|error| system("no thread can be started", &error))?;
        Ok(Member { name: export.name, bytes: export.bytes, notes, words, phase: Phase::Starting, thread: Some(thread) })
    }

    pub fn has_ended(&self) -> bool {
        matches!(self.phase, Phase::Ended(_))
    }

    /// It has said that it has ended, which it does last.
    pub fn join(&mut self) {
        if let Some(thread) = self.thread.take() {
            // What it could say of a panic, it said.
            let _ = thread.join();
        }
    }
}

fn bug() -> Failure {
    let message = "an invariant does not hold (what it said is above): a bug of tidegate; what was flushed is safe, start it again";
    Failure::new(Failure::BUG, message)
}
