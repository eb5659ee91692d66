//! The device without an engine, through the same ring: 1 MiB after the other of a stretch of it, again and again.

use std::path::Path;

use tidegate_daemon::back::disk::{Access, Disk};
use tidegate_daemon::back::dock::Happening;
use tidegate_daemon::back::io::{Carrier, Io};
use tidegate_daemon::back::run::Run;
use tidegate_engine::block::{ATOM_BYTES, Span};
use tidegate_engine::op::{Action, Class, DeviceId, Op, OpId, Zone};

use crate::load::{FLUSH_BYTES, Limit, Load, MIB, SEQUENTIAL_DEPTH, Way};
use crate::noise::Noise;
use crate::ssd::Ssd;

pub struct Bare {
    stretch: Span,
    /// Of the stretch, in MiB.
    next: u64,
    noise: Noise,
}

impl Bare {
    pub fn new(stretch: Span, noise: Noise) -> Bare {
        Bare { stretch, next: 0, noise }
    }

    /// Seconds that a slice takes, on a device that nobody uses meanwhile.
    pub fn run(&mut self, ssd: &mut Ssd, load: &Load) -> f64 {
        ssd.set_limit(load.limit);
        let count = load.slice_bytes / MIB;
        let (mut begun, mut flushed, mut ended, mut in_flight) = (0, 0, 0, 0);
        let started = std::time::Instant::now();
        while ended < count || in_flight > 0 {
            while begun < count && in_flight < SEQUENTIAL_DEPTH {
                let is_due = load.way == Way::Write && (begun * MIB) / FLUSH_BYTES > flushed;
                flushed += u64::from(is_due);
                begun += u64::from(!is_due);
                in_flight += 1;
                let action = if is_due { Action::Flush } else { self.action(load.way) };
                start(ssd, if is_due { 0 } else { begun }, action);
            }
            for happening in ssd.wait(None) {
                let Happening::Done(done) = happening else { panic!("{happening:?}") };
                done.result.expect("the device works");
                ended += u64::from(done.id.0 > 0);
                in_flight -= 1;
            }
        }
        if load.way == Way::Write {
            start(ssd, 0, Action::Flush);
            while ssd.wait(None).next().is_none() {}
        }
        let seconds = started.elapsed().as_secs_f64();
        ssd.set_limit(Limit::None);
        seconds
    }

    fn action(&mut self, way: Way) -> Action<Run> {
        let atoms = MIB / ATOM_BYTES;
        let span = Span::new(self.stretch.start + self.next * atoms, atoms);
        self.next = (self.next + 1) % (self.stretch.atoms / atoms);
        match way {
            Way::Read => Action::Read(Zone::Data, span),
            Way::Write => Action::Write(Zone::Data, span, [self.noise.at(span.start / span.atoms, MIB)].into()),
        }
    }
}

/// A file as a device; `unused` stands where a volume has its origin.
pub fn open(file: &Path, unused: &Path) -> Ssd {
    let open = |path, role| Disk::open(path, role, Access::Alone).expect("a file of ours");
    Ssd::new(Io::new(open(file, DeviceId::Cache), open(unused, DeviceId::Origin), Carrier::Uring).expect("a ring"))
}

fn start(ssd: &mut Ssd, id: u64, action: Action<Run>) {
    let now = ssd.now();
    ssd.start(now, Op { id: OpId(id), device: DeviceId::Cache, class: Class::Client, action });
}
