//! A load straight on a device's model, or through a scheduler: what the device can do, without an engine.

use super::block_layer::BlockLayer;
use super::foresight::{Hindsight, Optimum};
use super::instant::Weightless;
use super::{Front, Stillness};
use crate::back::model::{Cause, Command, Model, PowerState, What};
use crate::experiment::load::{Access, Ask, Load};
use crate::experiment::measure::{Measure, Measured, Watch};
use crate::experiment::options::{PredictorKind, SpinTable};
use crate::experiment::plan::{Device, Run};
use std::collections::BTreeMap;
use tidegate_engine::block::Span;
use tidegate_engine::op::{Action, Op, Power};
use tidegate_engine::queue::QueueKind;
use tidegate_engine::spin::{self, Motor, predictor::Predictor};
use tidegate_engine::time::{Duration, Instant};

struct Bare<'a> {
    model: Model,
    /// A scheduler, and what it has given to the device.
    layer: Option<(BlockLayer, BTreeMap<u64, Op<Weightless>>)>,
    depth: usize,
    /// What is read is written instead, so that it lies on the device.
    keeps_reads: bool,
    watch: Watch,
    front: Front<'a>,
    flight: BTreeMap<u64, Access>,
    measure: Measure,
    commands: u64,
    now: Instant,
    ended: Vec<u64>,
    /// What tells the disk to stand still; a word to it under way, by its number; and accesses that it has heard of.
    motor: Option<Motor>,
    word: Option<u64>,
    heard: usize,
}

pub(super) fn run(run: &Run, device: &Device, queue: Option<QueueKind>, seed: u64, told: &mut dyn FnMut(u64)) -> Result<Measured, String> {
    let model = device.spec.build(seed);
    let layer = |kind| (BlockLayer::new(kind, device.atoms(), device.spec.depth(), device.spec.lanes()), BTreeMap::new());
    let mut bare = Bare {
        watch: Watch::new(&device.name, &model, run.configuration.spin_down, Instant::ZERO),
        model,
        layer: queue.map(layer),
        depth: device.spec.depth(),
        keeps_reads: run.configuration.keeps_reads,
        front: Front::new(told),
        flight: BTreeMap::new(),
        measure: Measure::new(Instant::ZERO),
        commands: 0,
        now: Instant::ZERO,
        ended: Vec::new(),
        motor: run.configuration.spin.as_ref().map(|(table, config)| motor(table, config, &run.load.gaps(seed))),
        word: None,
        heard: 0,
    };
    for load in &run.before {
        bare.play(load, seed, device.atoms())?;
        bare.rest(bare.now + run.rest);
    }
    bare.keeps_reads = false;
    bare.measure = Measure::new(bare.now);
    bare.watch.restart(&bare.model, bare.now);
    bare.play(&run.load, seed, device.atoms())?;
    bare.measure.ran(bare.now, bare.front.operations());
    let Bare { measure, watch, model, .. } = bare;
    let end = measure.ended;
    Ok(Measured { measure, devices: vec![watch.report(&model, end)], gate: None, writes: None })
}

fn motor(table: &SpinTable, config: &spin::Config, gaps: &[Duration]) -> Motor {
    let predictor: Box<dyn Predictor> = match table.predictor {
        PredictorKind::Hindsight => Box::new(Hindsight::new(gaps, &config.price())),
        PredictorKind::Optimum => Box::new(Optimum::new(gaps, config.price())),
        PredictorKind::Fixed | PredictorKind::BreakEven | PredictorKind::Share | PredictorKind::History => {
            config.predictor.build(config.price())
        }
    };
    Motor::with_predictor(config.clone(), predictor, Instant::ZERO)
}

impl Bare<'_> {
    /// A whole load, to its last answer.
    fn play(&mut self, load: &Load, seed: u64, atoms: u64) -> Result<(), String> {
        self.front.start(load, seed, atoms, self.now);
        let mut stillness = Stillness::default();
        loop {
            self.front.arrive(self.now);
            self.submit();
            self.speak();
            let is_idle = self.flight.is_empty() && self.layer.as_ref().is_none_or(|(layer, _)| layer.is_idle());
            if is_idle && self.front.is_done() {
                return Ok(());
            }
            let deadline = self.layer.as_ref().and_then(|(layer, _)| layer.deadline()).filter(|&at| at > self.now);
            let times = [self.front.next_time(), self.model.next(), self.watch.next(), self.motor_time(), deadline];
            let next = times.into_iter().flatten().min();
            self.pass(next.ok_or("the device never ends a command")?);
            stillness.check(self.now)?;
        }
    }

    /// Nothing is asked until `until`.
    fn rest(&mut self, until: Instant) {
        while let Some(next) =
            [self.model.next(), self.watch.next(), self.motor_time()].into_iter().flatten().min().filter(|&next| next <= until)
        {
            self.pass(next);
            self.speak();
        }
        self.pass(until);
    }

    /// May the device be given something? One that stands still hears that it is wanted.
    fn takes(&mut self) -> bool {
        let Some(motor) = &mut self.motor else { return true };
        let all = self.flight.len() + self.front.waiting.len();
        (self.heard..all).for_each(|_| motor.demand(self.now, tidegate_engine::spin::Cause::Read, None));
        self.heard = all;
        motor.takes()
    }

    /// Says to the disk what the motor's master wants.
    fn speak(&mut self) {
        let Some(motor) = &mut self.motor else { return };
        if let Some(word) = motor.decide(self.now, self.flight.is_empty()) {
            self.commands += 1;
            self.word = Some(self.commands);
            self.model.submit(self.now, Command { id: self.commands, what: What::Spin(word), start: 0, atoms: 0, cause: Cause::HostRead });
        }
        self.watch.look(&mut self.model, self.now);
    }

    fn motor_time(&self) -> Option<Instant> {
        self.motor.as_ref()?.deadline(self.now).filter(|&at| at > self.now)
    }

    fn submit(&mut self) {
        let takes = self.takes();
        match &mut self.layer {
            None => {
                while takes
                    && self.flight.len() < self.depth
                    && let Some(access) = self.front.waiting.pop_front()
                {
                    let Access { ask, span, .. } = access;
                    self.commands += 1;
                    let (what, cause) = what(if self.keeps_reads && ask == Ask::Read { Ask::Write } else { ask });
                    self.model.submit(self.now, Command { id: self.commands, what, start: span.start, atoms: span.atoms, cause });
                    self.flight.insert(self.commands, access);
                }
            }
            Some((layer, given)) => {
                self.front.waiting.drain(..).for_each(|access| layer.take(self.now, access));
                while let Some(op) = layer.next(self.now) {
                    let (ask, span) = match &op.action {
                        Action::Read(_, span) => (Ask::Read, *span),
                        Action::Write(_, span, _) => (Ask::Write, *span),
                        _ => (Ask::Flush, Span::default()),
                    };
                    let (what, cause) = what(ask);
                    self.model.submit(self.now, Command { id: op.id.0, what, start: span.start, atoms: span.atoms, cause });
                    given.insert(op.id.0, op);
                }
            }
        }
        self.watch.look(&mut self.model, self.now);
    }

    /// Time passes until `when`, and what is due then happens.
    fn pass(&mut self, when: Instant) {
        self.now = when.max(self.now);
        self.model.advance(self.now, &mut self.ended);
        for command in self.ended.drain(..) {
            if self.word.take_if(|word| *word == command).is_some() {
                let turns = matches!(self.model.state(), PowerState::Active | PowerState::Idle);
                let power = if turns { Power::Turning } else { Power::Standby };
                self.motor.as_mut().expect("it has spoken").answered(self.now, Ok(power.into()));
                continue;
            }
            let accesses = match &mut self.layer {
                None => vec![self.flight.remove(&command).expect("only what was submitted ends")],
                Some((layer, given)) => layer.ended(self.now, &given.remove(&command).expect("only what was submitted ends")),
            };
            for access in accesses {
                match access.background {
                    true => self.measure.ended_in_background(self.now, access.span.bytes()),
                    false => self.measure.answered(self.now, access.due, access.ask, access.span.bytes()),
                }
                self.front.answered(self.now, &access);
                if let Some(motor) = &mut self.motor {
                    self.heard -= 1;
                    motor.served(self.now);
                }
            }
        }
        self.watch.look(&mut self.model, self.now);
    }
}

fn what(ask: Ask) -> (What, Cause) {
    match ask {
        Ask::Read => (What::Read, Cause::HostRead),
        Ask::Write => (What::Write, Cause::HostWrite),
        Ask::Flush => (What::Flush, Cause::HostWrite),
    }
}
