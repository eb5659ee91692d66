//! A cache is taken from its origin while no daemon serves it: it is recovered, everything goes home, and its superblocks say so.

use std::path::PathBuf;

use tidegate_engine::block::Span;
use tidegate_engine::op::{DeviceId, Op};
use tidegate_engine::probe::Phase;
use tidegate_engine::request::Reply;
use tidegate_engine::time::{Duration, Instant};
use tidegate_engine::{Control, Engine, Event, World, turn};

use crate::Failure;
use crate::back::attach::{Attached, attach, await_release};
use crate::back::dock::Happening;
use crate::back::io::{Carrier, Io};
use crate::back::run::Run;
use crate::state::{self, State};
use crate::volume::{Knobs, refusal};

/// How often the caller hears how far it is.
const INTERVAL: Duration = Duration::from_millis(100);

#[derive(Clone, Debug)]
pub struct Options {
    pub cache: PathBuf,
    pub origin: PathBuf,
    /// What the host knows of the cache.
    pub state: PathBuf,
    pub knobs: Knobs,
}

/// How far it is: blocks that are not on the origin yet, of how many, how long they take, about, and writes to the origin that failed.
#[derive(Clone, Copy, Debug)]
pub struct Progress {
    pub left: u64,
    pub of: u64,
    pub seconds_left: Option<f64>,
    pub failures: u64,
}

/// Takes the cache from its origin. As soon as both are held, `goes_on` hears how far it is (nothing: it recovers) and may end it: then everything is
/// as before, but for what has gone home. Answers whether it is detached.
///
/// # Errors
/// One line, or what `goes_on` returns. Nothing was written to what is not a cache of ours.
pub fn detach(options: &Options, goes_on: impl FnMut(Option<Progress>) -> Result<bool, Failure>) -> Result<bool, Failure> {
    let detached = take(options, goes_on);
    await_release(&[(&options.cache, DeviceId::Cache), (&options.origin, DeviceId::Origin)]);
    detached
}

fn take(options: &Options, mut goes_on: impl FnMut(Option<Progress>) -> Result<bool, Failure>) -> Result<bool, Failure> {
    let attached = attach(&options.cache, &options.origin)?;
    let mut place = state::Place::open(&options.state)?;
    place.serves(&attached.cache, &attached.origin)?;
    state::recognise(&place, &attached, false)?;
    let Attached { cache, origin, superblock, .. } = attached;
    let io = Io::new(cache, origin, Carrier::Auto)?;
    let mut engine = Engine::new(options.knobs.config(&superblock), io.limits());
    let mut back = Back { io, has_failed: false };
    let start = std::time::Instant::now();
    let (mut events, mut happenings) = (Vec::new(), Vec::new());
    let (mut asked, mut detached, mut of, mut held_up) = (false, true, 0, None);
    loop {
        let now = Instant(start.elapsed().as_nanos() as u64);
        turn(&mut engine, &mut back, now, &mut events);
        if back.has_failed {
            let what = format!("cache {} failed while it was being detached; it stays attached, start the volume", options.cache.display());
            return Err(Failure::new(Failure::IO, what));
        }
        match engine.phase() {
            Phase::Recovering => {
                if !goes_on(None)? {
                    // As after a crash here: what was written is what was there.
                    return Ok(false);
                }
            }
            Phase::Serving if !asked => {
                asked = true;
                let snapshot = engine.inspect(now);
                State::of(&superblock, snapshot.epoch, None, &snapshot.mode).write(&place)?;
                events.push(Event::Control(Control::Detach));
            }
            Phase::Serving if detached => {
                let snapshot = engine.inspect(now);
                let left = snapshot.drain.map_or(0, |drain| drain.blocks_left).max(snapshot.dirty_slots);
                of = left.max(of);
                if !snapshot.is_detaching {
                    // The engine has ended it.
                    (detached, held_up) = (false, Some(stays_behind(snapshot.unreadable_blocks, snapshot.lost_blocks)));
                    events.push(Event::Control(Control::Stop));
                    continue;
                }
                let seconds_left = snapshot.drain_left.map(|left| left.as_secs_f64());
                if !goes_on(Some(Progress { left, of, seconds_left, failures: snapshot.counters.destage_failures }))? {
                    detached = false;
                    events.extend([Event::Control(Control::CancelDetach), Event::Control(Control::Stop)]);
                }
            }
            Phase::Serving => {}
            Phase::Refused => return Err(refusal(&engine, &options.cache.display().to_string())),
            Phase::Stopped => {
                let snapshot = engine.inspect(now);
                if let Err(failure) = State::of(&superblock, snapshot.epoch, Some(snapshot.newer()), &snapshot.mode).write(&place) {
                    crate::tell!("tidegate: how it has ended, only the cache knows: {failure}");
                }
                if detached && !snapshot.is_detaching {
                    let what = format!(
                        "cache {} takes no writes, and does not say that it is detached: everything has gone home, but do not use the origin \
                         without it; run `tidegate detach` again",
                        options.cache.display()
                    );
                    return Err(Failure::new(Failure::IO, what));
                }
                // One that was cancelled too late is one.
                return held_up.map_or(Ok(snapshot.is_detaching), Err);
            }
        }
        let deadline = if events.is_empty() { (now + INTERVAL).min(engine.deadline().unwrap_or(now + INTERVAL)) } else { now };
        let failed =
            |error| Failure::new(Failure::SYSTEM, format!("the disks cannot be waited for: {error}; what was flushed is safe, try again"));
        back.io.wait(now, Some(deadline), &mut happenings).map_err(failed)?;
        events.extend(happenings.drain(..).filter_map(Happening::of_disks));
    }
}

/// Why neither a drain nor a detach brings everything home: so many dirty blocks that cannot be read stay behind, so many are lost.
pub fn stays_behind(unreadable: u64, lost: u64) -> Failure {
    let (count, why) = match unreadable {
        0 => (lost, String::new()),
        _ => (
            lost + unreadable,
            format!(", {unreadable} of them without room in its range table to note them as lost: they stay dirty there"),
        ),
    };
    let what = format!(
        "the SSD does not give {count} blocks that are newer than the origin's{why}; reading them is an error, everything else has gone home; \
         write them anew as wholes (from a backup), or give them up with `tidegate detach --discard-dirty ID`"
    );
    Failure::new(Failure::IO, what)
}

/// Two disks and no client.
struct Back {
    io: Io,
    has_failed: bool,
}

impl World<Run> for Back {
    fn start(&mut self, now: Instant, op: Op<Run>) {
        self.io.start(now, op);
    }

    fn reply(&mut self, _now: Instant, _reply: Reply<Run>) {
        unreachable!("nobody asks for anything");
    }

    /// It is not done without the cache: what only that has is to go home.
    fn fence(&mut self, _now: Instant, _at_risk: &mut dyn Iterator<Item = Span>) {
        self.has_failed = true;
    }
}
