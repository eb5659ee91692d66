//! The engine in its simulated world: what happens, step by step, and what must hold whatever happens.

mod common;

mod admission;
mod clean;
mod commands;
mod complete;
mod convert;
mod devices;
mod differential;
mod discard;
mod drain;
mod fault_points;
mod faults;
mod fence;
mod fronts;
mod full;
mod gate;
mod gather;
mod large;
mod lost;
mod memory;
mod modes;
mod origin;
mod placed;
mod plans;
mod policies;
mod processes;
mod recovery;
mod rot;
mod space;
mod split;
mod strangers;
mod swarm;
mod through;
mod wear;
