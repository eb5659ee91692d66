//! A volume becomes as large as its origin has become, while no daemon serves it: it is looked at as a start would look at it, up to what that
//! would write first, and only then its superblocks tell the new size.

use tidegate_engine::block::{ATOM_BYTES, Span};
use tidegate_engine::cache::format::Superblock;
use tidegate_engine::op::{Action, DeviceId, Op};
use tidegate_engine::probe::Phase;
use tidegate_engine::request::Reply;
use tidegate_engine::time::{Duration, Instant};
use tidegate_engine::{Engine, World, turn};

use crate::Failure;
use crate::back::attach::Attached;
use crate::back::dock::Happening;
use crate::back::io::{Carrier, Io};
use crate::back::run::Run;
use crate::back::update::rewrite;
use crate::state;
use crate::volume::{Options, refusal};

/// Between two looks at what has come.
const INTERVAL: Duration = Duration::from_millis(100);

/// What became of the size of a volume, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grown {
    pub before: u64,
    pub now: u64,
}

/// A volume of which nothing speaks against its growing; its disks are held.
pub struct Ready {
    grown: Grown,
    /// What is to be written, if the origin has another size than the volume.
    change: Option<(Io, Superblock)>,
}

impl Ready {
    /// Makes the volume as large as its origin has become. Clients see it when they connect next.
    ///
    /// # Errors
    /// One line: the cache cannot be written.
    pub fn grow(self) -> Result<Grown, Failure> {
        if let Some((io, superblock)) = self.change {
            rewrite(io.disk(DeviceId::Cache), &superblock)?;
        }
        Ok(self.grown)
    }
}

/// Looks whether the volume can become as large as its origin has become; changes nothing.
///
/// # Errors
/// One line.
pub fn look(volume: &Options) -> Result<Ready, Failure> {
    let Attached { cache, origin, superblock, .. } = volume.attach()?;
    let mut geometry = superblock.geometry;
    let before = geometry.volume_atoms;
    geometry.volume_atoms = origin.atoms();
    let grown = Grown { before: before * ATOM_BYTES, now: geometry.volume_atoms * ATOM_BYTES };
    if geometry.volume_atoms == before {
        return Ok(Ready { grown, change: None });
    }
    let refused = |what: String| Failure::new(Failure::REFUSED, format!("cache {}: {what}", volume.cache.display()));
    if !before.is_multiple_of(u64::from(geometry.block_atoms)) {
        // What is cached or zeroed of a short block says nothing of its new end.
        let block = u64::from(geometry.block_atoms) * ATOM_BYTES;
        return Err(refused(format!("the volume ends inside a block of {block} bytes; run `tidegate detach`, then `tidegate attach`")));
    }
    geometry.validate().map_err(|what| refused(format!("it cannot serve {} bytes: {what}", grown.now)))?;
    state::compare(&state::Place::open(&volume.state)?, &superblock, volume.accept_loss)?;
    let io = compared(volume, Io::new(cache, origin, Carrier::Auto)?, &superblock)?;
    Ok(Ready { grown, change: Some((io, Superblock { geometry, ..superblock })) })
}

/// The disks again, if a start would find nothing against serving: the cache is whole, and the origin as it was, but for its size.
fn compared(volume: &Options, io: Io, superblock: &Superblock) -> Result<Io, Failure> {
    let mut engine = Engine::new(volume.knobs.config(superblock), io.limits());
    let mut back = Reader { io, has_read_all: false };
    let start = std::time::Instant::now();
    let (mut events, mut happenings) = (Vec::new(), Vec::new());
    loop {
        let now = Instant(start.elapsed().as_nanos() as u64);
        turn(&mut engine, &mut back, now, &mut events);
        if *engine.phase() == Phase::Refused {
            return Err(refusal(&engine, &volume.cache.display().to_string()));
        }
        if back.has_read_all {
            return Ok(back.io);
        }
        let failed =
            |error| Failure::new(Failure::SYSTEM, format!("the disks cannot be waited for: {error}; nothing was changed, try again"));
        back.io.wait(now, Some(now + INTERVAL), &mut happenings).map_err(failed)?;
        events.extend(happenings.drain(..).filter_map(Happening::of_disks));
    }
}

/// Two disks that are only read, and no client.
struct Reader {
    io: Io,
    /// The engine wants to write.
    has_read_all: bool,
}

impl World<Run> for Reader {
    fn start(&mut self, now: Instant, op: Op<Run>) {
        match op.action {
            Action::Read(..) | Action::Allocation(..) => self.io.start(now, op),
            Action::Write(..) | Action::Zero(..) | Action::Discard(..) | Action::Flush | Action::Spin(_) => self.has_read_all = true,
        }
    }

    fn reply(&mut self, _now: Instant, _reply: Reply<Run>) {
        unreachable!("nobody asks for anything");
    }

    fn fence(&mut self, _now: Instant, _at_risk: &mut dyn Iterator<Item = Span>) {
        unreachable!("nothing is written that could fail");
    }
}
