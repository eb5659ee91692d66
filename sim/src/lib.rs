//! The simulated world of tidegate: virtual time, devices that lose and damage what they hold, clients drawn from a seed, and an oracle
//! that knows what every atom may hold. The engine cannot tell it from the real one, and a run is the same every time.
//!
//! * [`swarm`]: many seeds, each a run with crashes and faults; and crash points: a crash after every single device write.
//! * [`replay`]: the story of one run.
//! * [`scenario`]: one situation, told step by step, for tests.
//! * [`experiment`]: plans of devices, loads and a paper's figures, measured in virtual time.

pub mod agenda;
pub mod back;
pub mod chance;
pub mod crash_points;
pub mod experiment;
pub mod forge;
pub mod front;
pub mod plan;
pub mod policies;
pub mod probe;
pub mod replay;
pub mod rot;
pub mod run;
pub mod scars;
pub mod scenario;
pub mod stamp;
pub mod strangers;
pub mod swarm;
pub mod trace;
pub mod world;
