//! The program behind the command line: it reads what was asked, calls the two worlds, and says in one line what went wrong.
//! A library, so that what reads files can be looked at from outside (`fuzz/`).

#![deny(clippy::print_stderr, clippy::print_stdout)]

mod args;
mod attach;
mod check;
pub mod config;
mod create;
mod curve;
mod detach;
mod drain;
mod first_run;
mod grow;
mod make;
mod manager;
mod mode;
mod policies;
mod probe;
mod progress;
mod serve;
mod sim;
mod spin;
mod status;
mod stop;
mod units;
mod up;
mod wear;

use std::io::{self, Write};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};

use clap::Parser;
use clap::error::ErrorKind;
use tidegate_daemon::Failure;
use tidegate_daemon::back::signals::survive_file_size_limit;
use tidegate_daemon::tell;

use args::{Cli, Command, Sim};

/// Exit code of wrong flags.
const USAGE: u8 = 2;

/// All of the program.
pub fn main() -> ExitCode {
    survive_file_size_limit();
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        // Nothing was asked: what can be asked is more useful than a line of blame.
        Err(error) if error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            tell!("{}", error.render().to_string().trim_end());
            return ExitCode::from(USAGE);
        }
        Err(error) if error.use_stderr() => return fail(&Failure::new(USAGE, args::one_line(&error))),
        Err(help) => {
            say(&help.render().to_string());
            return ExitCode::SUCCESS;
        }
    };
    let done = match cli.command {
        Command::Up(args) => up::run(&args),
        Command::Create(args) => create::run(&args),
        Command::Serve(args) => serve::run(&args),
        Command::Attach(args) => attach::run(&args),
        Command::Detach(args) => detach::run(&args),
        Command::Mode(args) => mode::run(&args),
        Command::Grow(args) => grow::run(&args),
        Command::Status(args) => status::run(&args),
        Command::Curve(args) => curve::run(&args),
        Command::Drain(args) => drain::run(&args),
        Command::Stop(args) => stop::run(&args),
        Command::Check(args) => check::run(&args),
        Command::Probe(args) => probe::run(&args),
        Command::Sim(Sim::Swarm(args)) => sim::swarm(&args),
        Command::Sim(Sim::Replay(args)) => sim::replay(&args),
        Command::Sim(Sim::Rot(args)) => sim::rot(&args),
        Command::Sim(Sim::List) => sim::list(),
        Command::Sim(Sim::Show { plan }) => sim::show(&plan),
        Command::Sim(Sim::Run(args)) => sim::run_plan(&args),
        Command::Sim(Sim::Policies(args)) => policies::policies(&args),
        Command::Sim(Sim::Curve(args)) => policies::curve(&args),
        Command::Sim(Sim::Probe(args)) => probe::model(&args),
    };
    match done {
        Ok(code) if code == ExitCode::SUCCESS && IS_UNSAID.load(Ordering::Relaxed) => {
            fail(&Failure::new(Failure::IO, "standard output cannot be written; nothing else has failed"))
        }
        Ok(code) => code,
        Err(failure) => fail(&failure),
    }
}

fn fail(failure: &Failure) -> ExitCode {
    tell!("tidegate: {failure}");
    ExitCode::from(failure.code)
}

/// Something that was to be said is not where it was to go.
static IS_UNSAID: AtomicBool = AtomicBool::new(false);

/// Prints to standard output. A reader that has gone (`tidegate … | head`) is no failure of ours; a disk that is full is one, at the end.
fn say(text: &str) {
    if write_out(text).is_err_and(|error| error.kind() != io::ErrorKind::BrokenPipe) {
        IS_UNSAID.store(true, Ordering::Relaxed);
    }
}

fn write_out(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.write_all(if text.ends_with('\n') { b"" } else { b"\n" })?;
    out.flush()
}
