//! What a crash leaves of a device: its power goes, or only its user does.

use super::super::contents::Contents;
use super::super::volatile::{Survive, Unflushed, Volatile, write_some};
use super::{Device, Running};
use crate::chance::Chance;
use crate::stamp::Stamps;
use std::collections::BTreeSet;
use tidegate_engine::cache::format::FormatId;
use tidegate_engine::op::Zone;
use tidegate_engine::payload::Payload;
use tidegate_engine::time::Instant;

impl Device {
    /// The same device after its power was cut now: what survives is drawn from `chance`.
    pub fn after_power_cut(&self, now: Instant, survive: &Survive, chance: &mut Chance) -> Device {
        let running: Vec<Unflushed> = self.running.iter().filter_map(Running::unflushed).collect();
        let mut device = self.restarted(Volatile::new(self.disk.power_cut(&running, survive, chance)));
        device.model.power_cut(now);
        device
    }

    /// Its user has ended in order.
    pub fn put_down(&mut self) {
        if self.drops_doomed {
            self.disk.drop_doomed();
        }
    }

    /// The same device after its user was killed: any subset of what was in flight has ended behind its back, nothing else is lost.
    pub fn after_kill(&self, survive: &Survive, chance: &mut Chance) -> Device {
        let mut device = self.restarted(self.disk.clone());
        if device.drops_doomed {
            device.disk.drop_doomed();
        }
        for write in self.running.iter().filter_map(Running::unflushed) {
            match survive {
                Survive::None => {}
                Survive::All => device.land(write),
                Survive::Random if chance.one_in(2) => {}
                Survive::Random => device.land(write),
                Survive::Torn => device.land_some(&write),
                Survive::Only(which) => {
                    let mut contents = device.disk.visible().clone();
                    write_some(&mut contents, &write, |atom| which(write.zone, atom, 0));
                    let data = Stamps::concat(&contents.read(write.span()));
                    device.land(Unflushed { data, ..write });
                }
            }
        }
        device
    }

    /// Another device in the place of this one, blank but for `contents`.
    pub fn replaced(&self, contents: Contents, format: FormatId) -> Device {
        let mut device = self.restarted(Volatile::new(contents));
        device.bad.clear();
        device.refusing.clear();
        device.script.clear();
        if device.settled.is_some() {
            device.watch_settling(format);
        }
        device
    }

    fn restarted(&self, disk: Volatile) -> Device {
        let mut settled = self.settled.clone();
        if let Some(settled) = &mut settled {
            settled.forget();
            // What was in flight may have landed.
            let in_flight = self.running.iter().filter_map(Running::access).filter(|(zone, _, writes)| *writes && *zone == Zone::Data);
            in_flight.for_each(|(_, span, _)| settled.touch(span));
        }
        Device {
            id: self.id,
            geometry: self.geometry,
            limits: self.limits,
            model: self.model.clone(),
            rates: self.rates,
            disk,
            running: Vec::new(),
            commands: self.commands,
            due: Vec::new(),
            chance: self.chance.clone(),
            bad: self.bad.clone(),
            refusing: self.refusing.clone(),
            gone: false,
            is_noticed: false,
            read_only: false,
            flushed: false,
            drops_doomed: self.drops_doomed,
            held: BTreeSet::new(),
            script: self.script.clone(),
            spin_script: self.spin_script.clone(),
            used: self.used,
            untaken: Vec::new(),
            harm: self.harm.clone(),
            settled,
            ended: self.ended,
            last_success: self.last_success,
            failed_writes: self.failed_writes,
            faults: self.faults,
            troubled: None,
        }
    }
}
