//! The real program under test: the built binary, real files, real clients, real file systems (scripts/setup.sh installs them).
//! Nothing here looks inside: what is checked is what an operator and a client can see.

mod common;

mod abuse;
mod bad_input;
mod bytes;
mod cause;
mod chain;
mod cli;
mod clients;
mod curve;
mod databases;
mod degraded;
mod documents;
mod exerciser;
mod fence;
mod file_systems;
mod first_run;
mod full;
mod kill;
mod linearizable;
mod main_job;
mod modes;
mod plans;
mod policies;
mod power;
mod pressure;
mod probe;
mod restart;
mod rot;
mod security;
mod serving;
mod slow_origin;
mod stop;
mod threads;
mod through;
mod volumes;
mod wear;
