//! A load straight on a device's model, or through a scheduler: what the device can do, without an engine.

use super::block_layer::BlockLayer;
use super::instant::Weightless;
use super::{Front, Stillness};
use crate::back::model::{Cause, Command, Model, What};
use crate::experiment::load::{Access, Ask, Load};
use crate::experiment::measure::{Measure, Measured, Watch};
use crate::experiment::plan::{Device, Run};
use std::collections::BTreeMap;
use tidegate_engine::block::Span;
use tidegate_engine::op::{Action, Op};
use tidegate_engine::queue::QueueKind;
use tidegate_engine::time::Instant;

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
    };
    for load in &run.before {
        bare.play(load, seed, device.atoms())?;
        bare.rest(bare.now + run.rest);
    }
    bare.keeps_reads = false;
    bare.measure = Measure::new(bare.now);
    bare.watch.restart(&bare.model, bare.now);
    bare.play(&run.load, seed, device.atoms())?;
    let Bare { measure, watch, model, .. } = bare;
    let end = measure.ended;
    Ok(Measured { measure, devices: vec![watch.report(&model, end)], gate: None, writes: None })
}

impl Bare<'_> {
    /// A whole load, to its last answer.
    fn play(&mut self, load: &Load, seed: u64, atoms: u64) -> Result<(), String> {
        self.front.start(load, seed, atoms, self.now);
        let mut stillness = Stillness::default();
        loop {
            self.front.arrive(self.now);
            self.submit();
            let is_idle = self.flight.is_empty() && self.layer.as_ref().is_none_or(|(layer, _)| layer.is_idle());
            if is_idle && self.front.is_done() {
                return Ok(());
            }
            let deadline = self.layer.as_ref().and_then(|(layer, _)| layer.deadline()).filter(|&at| at > self.now);
            let next = [self.front.next_time(), self.model.next(), self.watch.next(), deadline].into_iter().flatten().min();
            self.pass(next.ok_or("the device never ends a command")?);
            stillness.check(self.now)?;
        }
    }

    /// Nothing is asked until `until`.
    fn rest(&mut self, until: Instant) {
        while let Some(next) = [self.model.next(), self.watch.next()].into_iter().flatten().min().filter(|&next| next <= until) {
            self.pass(next);
        }
        self.pass(until);
    }

    fn submit(&mut self) {
        match &mut self.layer {
            None => {
                while self.flight.len() < self.depth
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
