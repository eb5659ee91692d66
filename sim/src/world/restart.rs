//! One engine ends and the next one begins, on the devices as they are, and now and then with other options.

use super::Simulation;
use super::books::Books;
use crate::back::fault::Rates;
use crate::front::patience::Patience;
use tidegate_engine::config::Placement;
use tidegate_engine::{Engine, Mode};

impl Simulation {
    /// The engine has stopped in order; a new one may be started. The devices keep everything.
    pub fn abandon(&mut self) {
        let scene = &mut self.scene;
        scene.load.cut_off();
        scene.agenda.clear();
        scene.entrance.clear();
        scene.closed = false;
        self.events.clear();
    }

    /// A new engine, whose devices do not fail before it serves.
    pub fn restart_without_faults(&mut self) {
        self.scene.cache.rates = Rates::default();
        self.scene.origin.rates = Rates::default();
        self.restart();
        self.gentle = true;
    }

    /// The next start is with other options. What may have happened once, may still matter.
    fn change_options(&mut self) {
        self.plan.change(&mut self.change_chance);
        let (plan, scene) = (&self.plan, &mut self.scene);
        for (device, limits) in [&mut scene.cache, &mut scene.origin].into_iter().zip(plan.limits) {
            device.limits = limits;
        }
        scene.stall_timeout = plan.config.stall_timeout;
        scene.oracle.patience = plan.config.stall_timeout;
        scene.oracle.may_bypass |= plan.passes_log();
        scene.origin.drops_doomed |= plan.passes_log();
        self.promised_origin |= plan.promises_origin();
        // That a FLUSH is to promise less is written down before.
        self.is_home &= plan.config.mode.is_none_or(Mode::is_home);
        let now = scene.agenda.now();
        scene.trace.note(now, 11, || "other options".to_string());
    }

    /// A new engine on the devices as they are.
    pub fn restart(&mut self) {
        let now = self.now();
        self.scene.cache.reseat();
        if self.scene.host.is_fenced() {
            self.replace_cache();
        }
        self.may_grow();
        if self.plan.changes && self.change_chance.one_in(3) {
            self.change_options();
        }
        let oracle = &mut self.scene.oracle;
        oracle.waives_order = self.plan.config.placement == Placement::Set;
        oracle.promises_origin = self.promised_origin;
        oracle.serving_since = None;
        oracle.parts_beyond = self.plan.parts_beyond();
        oracle.flush_bound = self.plan.flush_bound().filter(|_| !self.promised_origin);
        (oracle.unfenced, oracle.alone, oracle.closing) = (false, false, false);
        self.scene.patience = Patience::new(self.plan.patience(), now);
        (self.losses_told, self.losses_told_twice) = (0, false);
        self.scene.host.fails = false;
        self.scene.trace.note(now, 5, || "a new engine recovers".to_string());
        self.faults = self.faults();
        self.engine = Engine::new(self.plan.config.clone(), self.plan.limits);
        self.scene.books = Books::open(self.scene.cache.failed_writes, self.scene.origin.model.counters().spin_ups.iter().sum());
        self.seat_fronts();
        self.recoveries += 1;
        (self.was_serving, self.was_clean) = (false, false);
        self.last_reply = now;
        self.idle = false;
        self.faults_before = self.scene.cache.faults + self.scene.origin.faults;
        self.wake_all();
        self.take_turn();
    }
}
