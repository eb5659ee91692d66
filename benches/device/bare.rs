//! The file without an engine, through the same ring: 1 MiB at a time, from its start to its end.

use std::path::Path;

use tidegate_daemon::back::disk::{Access, Disk};
use tidegate_daemon::back::dock::Happening;
use tidegate_daemon::back::io::{Carrier, Io};
use tidegate_daemon::back::run::Run;
use tidegate_engine::block::{ATOM_BYTES, Span};
use tidegate_engine::op::{Action, Class, DeviceId, Op, OpId, Zone};

use crate::load::{FLUSH_BYTES, Load, MIB, SEQUENTIAL_DEPTH, Way};
use crate::noise::Noise;
use crate::ssd::Ssd;

pub struct Bare {
    ssd: Ssd,
    places: u64,
    next: u64,
    noise: Noise,
}

impl Bare {
    /// `unused` stands where a volume has its origin.
    pub fn open(file: &Path, unused: &Path, noise: Noise) -> Bare {
        let open = |path, role| Disk::open(path, role, Access::Alone).expect("a file of ours");
        let disk = open(file, DeviceId::Cache);
        let places = disk.bytes() / MIB;
        let io = Io::new(disk, open(unused, DeviceId::Origin), Carrier::Uring).expect("a ring");
        Bare { ssd: Ssd::new(io), places, next: 0, noise }
    }

    /// Seconds that a slice takes.
    pub fn run(&mut self, load: &Load) -> f64 {
        self.ssd.set_limit(load.limit);
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
                self.start(if is_due { 0 } else { begun }, action);
            }
            for happening in self.ssd.wait(None) {
                let Happening::Done(done) = happening else { panic!("{happening:?}") };
                done.result.expect("the device works");
                ended += u64::from(done.id.0 > 0);
                in_flight -= 1;
            }
        }
        if load.way == Way::Write {
            self.start(0, Action::Flush);
            while self.ssd.wait(None).next().is_none() {}
        }
        started.elapsed().as_secs_f64()
    }

    fn start(&mut self, id: u64, action: Action<Run>) {
        let now = self.ssd.now();
        self.ssd.start(now, Op { id: OpId(id), device: DeviceId::Cache, class: Class::Client, action });
    }

    fn action(&mut self, way: Way) -> Action<Run> {
        let atoms = MIB / ATOM_BYTES;
        let span = Span::new(self.next * atoms, atoms);
        self.next = (self.next + 1) % self.places;
        match way {
            Way::Read => Action::Read(Zone::Data, span),
            Way::Write => Action::Write(Zone::Data, span, vec![self.noise.at(span.start / span.atoms, MIB)]),
        }
    }
}
