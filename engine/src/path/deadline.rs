//! Deadline: when the engine wants to be woken although nothing has happened. Each flow says when its own next time is.

use crate::payload::Payload;
use crate::probe::Phase;
use crate::time::Instant;

use super::Engine;

impl<P: Payload> Engine<P> {
    /// When the engine next wants a [`Event::Tick`](crate::Event::Tick) if nothing happens before.
    pub fn deadline(&self) -> Option<Instant> {
        if self.phase != Phase::Serving {
            let motor = if self.phase == Phase::Recovering { self.spin_deadline() } else { None };
            return [self.queue_deadline(), self.recovery_deadline(), motor].into_iter().flatten().filter(|&at| at > self.now).min();
        }
        if self.is_mapping() || self.looks_for_rescue() || self.turn.goes_on {
            return Some(self.now);
        }
        let flush_age = self.flushes.unflushed_since.map(|since| since + self.config.flush_age);
        let gate = if self.destage.is_idle() { self.gate.deadline(self.arrivals.last, self.dirty_since(), self.asleep()) } else { None };
        let home = if self.destage.is_idle() { self.home_deadline() } else { None };
        let wishes = [
            flush_age,
            self.gather_deadline(),
            gate,
            home,
            self.page_deadline(),
            self.flushes.back_off.at,
            self.destage.back_off.at,
            self.destage.courtesy.rest(self.looked),
            self.leaves_ssd_until(self.looked),
            self.checkpoint.back_off.at,
            self.retries.back_off.at,
            self.retries.pause.at,
            self.through.back_off.at,
            self.through.refused.at,
            self.marks.until,
            self.modes.stop_until(),
            self.flushes.page_back_off.at,
            self.degraded.back_off.at,
            self.stop_deadline(),
            self.clean_deadline(),
            self.stall_deadline(),
            self.scrub_deadline(),
            self.splitting.deadline(),
            self.detouring.deadline(),
            self.spin_deadline(),
            self.again_deadline(),
            self.queue_deadline(),
        ];
        // What was due when the flows were looked at has had its turn.
        let never = Instant(u64::MAX);
        let later = |wish: &Option<Instant>| wish.filter(|&at| at > self.looked).unwrap_or(never);
        Some(wishes.iter().map(later).fold(never, Instant::min)).filter(|&at| at < never)
    }
}
