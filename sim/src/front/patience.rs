//! Nobody waits for ever. Everything that an engine was asked for ends in time: requests of clients, and what its operator wants of it (a start, a
//! drain, a mode, a detach, a stop).
//!
//! *Calm*: no operation of a device has failed or been stuck, both devices have been there, and the host has not been told of a failure. What is
//! asked for ends within the time that the devices take for all that there can be to do ([`Bounds`]). Where something has been wrong, that time
//! begins when it has been calm for as long as the longest pauses that are documented (docs/durability.md). Where it is never calm for as long, a
//! request ends within [`STORMS`] times all of that.

use super::oracle::Broken;
use std::collections::BTreeMap;
use tidegate_engine::request::RequestId;
use tidegate_engine::time::{Duration, Instant};

/// How many bounds a request may take where something goes wrong again and again: each failure costs it one pause, and it may meet several.
const STORMS: u64 = 8;
/// Who waits is looked at so often.
const LOOK: Duration = Duration::from_secs(1);

/// What an engine does at its operator's word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Task {
    Start,
    Drain,
    Switch,
    Detach,
    Stop,
}

impl Task {
    pub const ALL: [Task; 5] = [Task::Start, Task::Drain, Task::Switch, Task::Detach, Task::Stop];
}

/// How long what may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// A request that only reads; any other, and what an operator wants.
    pub reads: Duration,
    pub work: Duration,
    /// Pauses before what has failed is tried again, and patience with what may be dead. A start and a stop have that in any case.
    pub pauses: Duration,
}

/// Who waits for one engine, and since when.
#[derive(Clone, Debug)]
pub struct Patience {
    /// Since when, and what it has to do.
    asked: BTreeMap<RequestId, (Instant, Duration)>,
    tasks: [Option<Instant>; Task::ALL.len()],
    /// When something was last wrong, if ever; and since when the engine has served.
    trouble: Option<Instant>,
    serving: Option<Instant>,
    bounds: Bounds,
    look: Instant,
}

impl Patience {
    pub fn new(bounds: Bounds, now: Instant) -> Patience {
        Patience { asked: BTreeMap::new(), tasks: [None; Task::ALL.len()], trouble: None, serving: None, bounds, look: now }
    }

    /// A client asks for something, and it may be that it only `reads`.
    pub fn ask(&mut self, id: RequestId, reads: bool, now: Instant) {
        self.asked.insert(id, (now, if reads { self.bounds.reads } else { self.bounds.work }));
    }

    /// Something is wrong until then.
    pub fn disturb(&mut self, until: Instant) {
        self.trouble = self.trouble.max(Some(until));
    }

    /// The engine serves: what waited for that has its time from now on.
    pub fn serve(&mut self, now: Instant) {
        self.serving.get_or_insert(now);
    }

    /// Is that under way? What is asked for `anew` has its time from now on.
    pub fn note(&mut self, task: Task, is_under_way: bool, anew: bool, now: Instant) {
        let since = &mut self.tasks[task as usize];
        *since = is_under_way.then(|| since.filter(|_| !anew).unwrap_or(now));
    }

    /// A client is told.
    ///
    /// # Errors
    /// Too late.
    pub fn answer(&mut self, id: RequestId, now: Instant) -> Result<(), Broken> {
        let Some((since, work)) = self.asked.remove(&id) else { return Ok(()) };
        self.check_request(id, since, work, now).map_err(|broken| Broken(format!("{}, and was answered only now", broken.0)))
    }

    /// Has nobody waited for too long?
    ///
    /// # Errors
    /// Who has.
    pub fn check(&mut self, now: Instant) -> Result<(), Broken> {
        if now < self.look {
            return Ok(());
        }
        self.look = now + LOOK;
        for (&id, &(since, work)) in &self.asked {
            self.check_request(id, since, work, now)?;
        }
        for task in Task::ALL {
            let Some(since) = self.tasks[task as usize] else { continue };
            let pauses = if matches!(task, Task::Start | Task::Stop) { self.bounds.pauses } else { Duration::ZERO };
            if now > self.calm(since) + self.bounds.work + pauses {
                let (all, work) = (now.since(since), self.bounds.work);
                return Err(Broken(format!("a {task:?} has taken {all:?}, of {work:?} after {pauses:?}; {}", self.story()).to_lowercase()));
            }
        }
        Ok(())
    }

    fn check_request(&self, id: RequestId, since: Instant, work: Duration, now: Instant) -> Result<(), Broken> {
        // Before that it waits for the start.
        let Some(serving) = self.serving else { return Ok(()) };
        let since = since.max(serving);
        let longest = Duration((self.bounds.work.0 + self.bounds.pauses.0) * STORMS);
        if now > self.calm(since) + work || now > since + longest {
            return Err(Broken(format!("{id:?} has waited for {:?}, of {work:?} in calm; {}", now.since(since), self.story())));
        }
        Ok(())
    }

    /// From when on nothing keeps waiting what was asked for then, but what there is to do.
    fn calm(&self, since: Instant) -> Instant {
        self.trouble.map_or(since, |trouble| since.max(trouble + self.bounds.pauses))
    }

    fn story(&self) -> String {
        self.trouble.map_or("nothing was ever wrong".to_string(), |trouble| format!("something was last wrong at {trouble:?}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOUNDS: Bounds = Bounds { reads: Duration::from_secs(10), work: Duration::from_secs(100), pauses: Duration::from_secs(60) };

    fn at(seconds: u64) -> Instant {
        Instant(seconds * 1_000_000_000)
    }

    /// Somebody waits from the first second on: until then that is well, and a moment later it is not.
    #[track_caller]
    fn check(until: u64, begin: impl Fn(&mut Patience)) {
        for (when, is_well) in [(until, true), (until + 1, false)] {
            let mut patience = Patience::new(BOUNDS, at(0));
            begin(&mut patience);
            assert_eq!(patience.check(at(when)).is_ok(), is_well, "at {when}");
        }
    }

    fn serve_and_ask(patience: &mut Patience) {
        patience.serve(at(0));
        patience.ask(RequestId(7), false, at(1));
    }

    #[test]
    fn a_request_has_its_time_of_calm() {
        check(101, serve_and_ask);
        check(11, |patience| {
            patience.serve(at(0));
            patience.ask(RequestId(7), true, at(1));
        });
        // From the start of service on.
        check(130, |patience| {
            patience.ask(RequestId(7), false, at(1));
            patience.serve(at(30));
        });
    }

    #[test]
    fn what_was_wrong_costs_its_pauses() {
        let troubled = |times: &'static [u64]| {
            move |patience: &mut Patience| {
                serve_and_ask(patience);
                times.iter().for_each(|&until| patience.disturb(at(until)));
            }
        };
        check(210, troubled(&[50]));
        // What is stuck is no calm before it ends.
        check(250, troubled(&[90, 60]));
        // Those are over before it asks.
        check(161, |patience| {
            patience.disturb(at(0));
            patience.serve(at(0));
            patience.ask(RequestId(7), false, at(61));
        });
    }

    #[test]
    fn where_it_is_never_calm_a_request_ends_all_the_same() {
        check(1_281, |patience| {
            serve_and_ask(patience);
            patience.disturb(at(5_000));
        });
    }

    #[test]
    fn an_answer_that_comes_too_late_is_none() {
        for (when, is_well) in [(101, true), (102, false)] {
            let mut patience = Patience::new(BOUNDS, at(0));
            serve_and_ask(&mut patience);
            assert_eq!(patience.answer(RequestId(7), at(when)).is_ok(), is_well, "at {when}");
            assert_eq!(patience.check(at(1_000)), Ok(()), "nobody waits any more");
        }
    }

    #[test]
    fn what_an_operator_wants_has_its_time_from_when_it_was_last_wanted() {
        for task in Task::ALL {
            let pauses = if matches!(task, Task::Start | Task::Stop) { 60 } else { 0 };
            let wanted = |times: &'static [(u64, bool)]| {
                move |patience: &mut Patience| times.iter().for_each(|&(when, anew)| patience.note(task, true, anew, at(when)))
            };
            check(pauses + 101, wanted(&[(1, false)]));
            check(pauses + 101, wanted(&[(1, false), (60, false)]));
            check(pauses + 160, wanted(&[(1, false), (60, true)]));
            let mut patience = Patience::new(BOUNDS, at(0));
            patience.note(task, true, false, at(1));
            patience.note(task, false, false, at(60));
            assert_eq!(patience.check(at(10_000)), Ok(()), "it has ended");
        }
    }
}
