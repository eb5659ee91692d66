//! Who waits for the engine, and whether anything is wrong: what `front/patience.rs` has to know.

use super::{Scene, Simulation};
use crate::front::patience::Task;
use tidegate_engine::probe::{Health, Phase};
use tidegate_engine::time::Instant;
use tidegate_engine::{Control, Event};

/// What an operator has asked for in this turn.
#[derive(Clone, Copy, Default)]
pub(super) struct Asked {
    drain: bool,
    mode: bool,
    detach: bool,
    /// A detach, or a stop.
    end: bool,
}

impl Asked {
    pub fn hear<P>(&mut self, event: &Event<P>) {
        let Event::Control(control) = event else { return };
        match control {
            Control::Drain | Control::CancelDrain => self.drain = true,
            Control::Mode(_) => self.mode = true,
            Control::Detach | Control::CancelDetach => (self.detach, self.drain) = (true, true),
            Control::Stop => {}
        }
        self.end |= matches!(control, Control::Detach | Control::Stop);
    }

    /// Somebody may be refused for it, whatever is called off in the same moment.
    pub fn may_refuse(self) -> bool {
        self.end
    }
}

impl Simulation {
    /// Has anybody waited for too long?
    pub(super) fn check_patience(&mut self, asked: Asked) {
        let (now, phase) = (self.now(), self.engine.phase().clone());
        let scene = &mut self.scene;
        scene.hear_of_trouble(now);
        let is_serving = phase == Phase::Serving;
        if is_serving {
            scene.patience.serve(now);
        }
        let is_stopping = self.engine.is_stopping() && !matches!(phase, Phase::Stopped | Phase::Refused);
        // A stop ends the others.
        let waits = |is_under_way: bool| is_under_way && is_serving && !is_stopping;
        for (task, is_under_way, anew) in [
            (Task::Start, phase == Phase::Recovering && !is_stopping, false),
            (Task::Drain, waits(self.engine.drain().is_some()), asked.drain),
            // (Without the SSD it does not end, and nobody is promised anything by it.)
            (Task::Switch, waits(self.engine.mode().is_switching && self.engine.health() == Health::Whole), asked.mode),
            (Task::Detach, waits(self.engine.is_detaching()), asked.detach),
            (Task::Stop, is_stopping, false),
        ] {
            scene.patience.note(task, is_under_way, anew, now);
        }
        if let Err(broken) = scene.patience.check(now) {
            scene.broken.get_or_insert(broken);
        }
    }
}

impl Scene {
    /// Whatever is wrong with a device or the host by now.
    fn hear_of_trouble(&mut self, now: Instant) {
        if let Some(until) = self.cache.trouble(now).max(self.origin.trouble(now)) {
            self.patience.disturb(until);
        }
        if self.host.is_writing() || self.oracle.unfenced {
            self.patience.disturb(now);
        }
    }
}
