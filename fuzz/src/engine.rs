//! What clients and devices do to an engine, in any order, beside an array of atoms: every answer is one that the array could have
//! given. Commands that overlap are sent one after the other: what they leave when they race is the simulator's question.

use std::collections::{BTreeMap, HashSet};

use tidegate_engine::Control;
use tidegate_engine::block::Span;
use tidegate_engine::config::{Allocation, Convert, Fill, WhenFull};
use tidegate_engine::probe::{Health, Phase};
use tidegate_engine::request::{Command, Outcome, RequestError, RequestId};
use tidegate_engine::time::Duration;
use tidegate_sim::back::volatile::Survive;
use tidegate_sim::chance::Chance;
use tidegate_sim::stamp::{Stamps, stamp};
use tidegate_sim::world::stamps_of;

use crate::input::Input;
use crate::model::Model;
use crate::rig::{Rig, formatted, small};

/// A command under way.
enum Sent {
    Read(Span),
    Change(u64, Span),
    Flush(HashSet<u64>),
}

struct Run {
    rig: Rig,
    model: Model,
    sent: BTreeMap<RequestId, (Span, Sent)>,
    /// Commands that wrote, counted.
    writes: u64,
    /// A device has failed: errors are answers too.
    faults: bool,
}

pub fn run(data: &[u8]) {
    let mut input = Input(data);
    let how = input.byte();
    let mut config = small(if how & 1 == 0 { 8 } else { 2 }, 48);
    config.fill = if how & 2 == 0 { Fill::Behind } else { Fill::BeforeReply };
    config.when_full = if how & 4 == 0 { WhenFull::Wait } else { WhenFull::Through };
    config.allocation = match how & 12 {
        12 => Allocation::ReadOnly,
        8 => Allocation::SmallWrites,
        _ => Allocation::ReadWrite,
    };
    config.convert = if how & 32 == 0 { Convert::Size } else { Convert::Randomness };
    config.wait = Duration::from_millis(if how & 16 == 0 { 1 } else { 2_000 });
    let memory = formatted(&config);
    let model = Model::new(config.geometry.volume_atoms, |atom| stamp(0, atom));
    let mut rig = Rig::new(config, memory);
    assert!(rig.recover(), "a cache that was just formatted is refused");
    let mut run = Run { rig, model, sent: BTreeMap::new(), writes: 0, faults: false };
    while !input.is_empty() {
        run.happen(&mut input);
    }
    run.settle();
    run.read(run.whole());
    run.settle();
}

impl Run {
    fn whole(&self) -> Span {
        Span::new(0, self.rig.config.geometry.volume_atoms)
    }

    fn happen(&mut self, input: &mut Input) {
        match input.below(16) {
            0..4 => self.write(input),
            4 | 5 => {
                let span = self.span(input);
                self.read(span);
            }
            6 => {
                self.make_room(Span::default());
                let promised = self.model.acknowledged();
                self.send(Span::default(), Command::Flush, Sent::Flush(promised));
            }
            7 => self.clear(input),
            8..11 => {
                for _ in 0..input.below(8) + 1 {
                    self.rig.step(usize::from(input.byte()));
                    self.hear();
                }
            }
            11 => {
                self.rig.pass(Duration::from_millis(input.below(4_000)));
                self.hear();
            }
            12 => self.rig.control(if input.below(4) == 0 { Control::CancelDrain } else { Control::Drain }),
            13 => self.crash(input),
            14 => self.stop(),
            _ => {
                self.rig.memory.next_fails = true;
                self.faults = true;
            }
        }
    }

    fn span(&self, input: &mut Input) -> Span {
        let volume = self.rig.config.geometry.volume_atoms;
        let start = input.below(volume);
        Span::new(start, (input.below(64) + 1).min(volume - start))
    }

    fn write(&mut self, input: &mut Input) {
        let (mut span, how) = (self.span(input), input.byte());
        if how & 1 == 0 {
            // Whole blocks more often than by chance.
            let block = u64::from(self.rig.config.geometry.block_atoms);
            let start = span.start / block * block;
            span = Span::new(start, span.end().next_multiple_of(block).min(self.whole().end()) - start);
        }
        self.writes += 1;
        let (by, fua) = (self.writes, how & 6 == 6);
        let data = Stamps::written(by, span.start, span.atoms);
        self.make_room(span);
        self.model.write(by, span, |atom| stamp(by, atom));
        self.send(span, Command::Write { data, fua }, Sent::Change(by, span));
    }

    /// TRIM or WRITE_ZEROES.
    fn clear(&mut self, input: &mut Input) {
        let (span, how) = (self.span(input), input.byte());
        self.writes += 1;
        let by = self.writes;
        let (fua, trims) = (how & 2 != 0, how & 1 == 0);
        let block = u64::from(self.rig.config.geometry.block_atoms);
        // A TRIM leaves the edges as they are; the last block of the volume is whole though it is short.
        let end = if span.end() == self.whole().end() { span.end() } else { span.end() / block * block };
        let start = span.start.next_multiple_of(block).min(end);
        let zeroed = if trims { Span::new(start, end - start) } else { span };
        let command = if trims { Command::Trim { fua } } else { Command::Zero { no_hole: how & 4 != 0, fua, fast: false } };
        self.make_room(span);
        self.model.write(by, zeroed, |_| 0);
        self.send(span, command, Sent::Change(by, zeroed));
    }

    fn read(&mut self, span: Span) {
        self.make_room(span);
        self.send(span, Command::Read, Sent::Read(span));
    }

    /// Waits until nothing that overlaps is under way any more, and the engine takes another command.
    fn make_room(&mut self, span: Span) {
        if !self.rig.has_room(span.atoms) || self.sent.values().any(|(other, _)| other.overlaps(span)) {
            self.settle();
        }
        assert!(*self.rig.phase() == Phase::Serving, "it serves whenever something is asked");
    }

    fn send(&mut self, span: Span, command: Command<Stamps>, sent: Sent) {
        let id = self.rig.send(span, command);
        self.sent.insert(id, (span, sent));
        self.hear();
    }

    /// Takes what was answered.
    fn hear(&mut self) {
        for reply in self.rig.replies() {
            let (span, sent) = self.sent.remove(&reply.id).expect("an answer to what was asked");
            if let Err(error) = reply.result {
                assert!(
                    (self.faults || self.rig.stands_still()) && error == RequestError::Io,
                    "{span:?}: {error:?} though nothing has failed"
                );
            }
            match (sent, reply.result) {
                (Sent::Read(span), Ok(Outcome::Data(parts))) => self.model.read(span, &stamps_of(&parts)),
                (Sent::Change(by, _), Ok(_)) => self.model.acknowledge(by),
                (Sent::Change(_, span), Err(_)) => self.model.fail(span),
                (Sent::Flush(promised), Ok(_)) => self.model.flushed(&promised),
                (Sent::Read(_) | Sent::Flush(_), _) => {}
            }
        }
    }

    /// Waits for every answer.
    fn settle(&mut self) {
        while !self.sent.is_empty() {
            self.rig.until("an answer", |rig| !rig.memory.replies.is_empty());
            self.hear();
        }
    }

    fn crash(&mut self, input: &mut Input) {
        let survive = [Survive::None, Survive::All, Survive::Random, Survive::Torn][input.below(4) as usize].clone();
        let chance = &mut Chance::new(u64::from(input.byte()), "crash");
        self.sent.clear();
        self.model.crash();
        self.rig.memory.next_fails = false;
        self.rig.power_cut(&survive, chance);
        assert!(self.rig.recover(), "a crash is refused: {:?}", self.rig.engine.damage());
        self.faults = false;
    }

    fn stop(&mut self) {
        self.settle();
        self.rig.memory.next_fails = false;
        if !self.rig.stop() {
            // The SSD has failed in service, and no host could note it: what it had not made durable may be gone.
            assert!(self.faults && self.rig.engine.health() == Health::Unfenced, "a stop is refused: {:?}", self.rig.engine.damage());
            self.model.crash();
        }
        self.hear();
        self.rig.restart();
        assert!(self.rig.recover(), "a stop in order is refused: {:?}", self.rig.engine.damage());
    }
}
