//! Where a volume's thread and the lobby meet: clients, commands and the word to stop come in; answers and news go out.

use std::os::fd::RawFd;

use serde_json::Value;
use tidegate_engine::probe::Snapshot;

use crate::Failure;
use crate::back::mail::{Mailbox, Sender};
use crate::control::Verb;
use crate::front::nbd::Guest;

/// What the lobby has to say to a volume.
pub enum Word {
    /// Every volume is there: begin to recover.
    Start,
    /// Every volume is sound: from now on its disks may be written.
    Write,
    /// A client for this volume.
    Guest(Guest),
    /// To be answered under this number.
    Command(u64, Verb),
    /// Make everything that was acknowledged durable, and end.
    Stop,
}

/// What a volume has to say to the lobby.
pub struct News {
    /// Its place.
    pub volume: usize,
    pub tell: Tell,
}

pub enum Tell {
    /// Everything it needs is there; nothing was written.
    Opened,
    /// Its recovery has found nothing against serving. Nothing was written yet.
    Sound,
    /// It has recovered and is in this state.
    Serving(Box<Snapshot>),
    /// To a command.
    Answer(u64, Value),
    /// Its last client has gone. Told only where that matters.
    Alone,
    /// It has ended: everything of it is closed.
    Ended(Result<Rest, Failure>),
}

/// What a volume that was stopped in order leaves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rest {
    /// Blocks that were acknowledged and cannot be had any more.
    pub lost_blocks: u64,
}

/// The volume's side.
pub struct Desk {
    /// The volume's place.
    volume: usize,
    words: Mailbox<Word>,
    lobby: Sender<News>,
    /// The lobby wants to know when the last client has gone.
    counts: bool,
    clients: usize,
    guests: Vec<Guest>,
    commands: Vec<(u64, Verb)>,
    write: bool,
    stop: bool,
}

impl Desk {
    pub fn new(volume: usize, words: Mailbox<Word>, lobby: Sender<News>, counts: bool) -> Desk {
        Desk { volume, words, lobby, counts, clients: 0, guests: Vec::new(), commands: Vec::new(), write: false, stop: false }
    }

    /// Readable when there is something to be [opened](Desk::open).
    pub fn fd(&self) -> RawFd {
        self.words.fd()
    }

    /// Waits for the word to begin. False: it never comes.
    pub fn is_started(&mut self) -> bool {
        matches!(self.words.wait(), Ok(Word::Start))
    }

    /// Takes what has come.
    pub fn open(&mut self) {
        for word in self.words.take() {
            match word {
                Word::Start => {}
                Word::Write => self.write = true,
                Word::Guest(guest) => self.guests.push(guest),
                Word::Command(number, verb) => self.commands.push((number, verb)),
                Word::Stop => self.stop = true,
            }
        }
    }

    pub fn guests(&mut self) -> Vec<Guest> {
        std::mem::take(&mut self.guests)
    }

    /// What was asked since the last call, in order. Each is to be answered.
    pub fn commands(&mut self) -> Vec<(u64, Verb)> {
        std::mem::take(&mut self.commands)
    }

    pub fn answer(&self, number: u64, answer: Value) {
        self.tell(Tell::Answer(number, answer));
    }

    pub fn may_write(&self) -> bool {
        self.write
    }

    pub fn is_told_to_stop(&self) -> bool {
        self.stop
    }

    /// So many clients are there now.
    pub fn count_clients(&mut self, count: usize) {
        let before = std::mem::replace(&mut self.clients, count);
        if self.counts && count == 0 && before > 0 {
            self.tell(Tell::Alone);
        }
    }

    pub fn tell(&self, tell: Tell) {
        // A lobby that is gone needs no news: the process ends.
        self.lobby.send(News { volume: self.volume, tell });
    }
}
