//! The command line: what can be asked, in words that teach. No work is done here.

mod policies;
mod probe;

use std::path::PathBuf;
use std::str::FromStr;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Args, Parser, Subcommand};
use tidegate_daemon::back::io::Carrier;
use tidegate_daemon::front::nbd::Address;
use tidegate_sim::plan::Profile;

use crate::units::parse_disk_size;

pub use policies::{Policies, TraceCurve};
pub use probe::{Probe, ProbeModel};

/// The folder that commands use when none is named.
pub const DIR: &str = "./tidegate-data";

const EXIT_CODES: &str = "\
Exit codes:
  0   done; of `check`: no damage; of `drain`: all is home that was dirty
  1   `check` found damage, `sim` found a violation or a row outside its band, `drain` was cancelled or met a volume that was stopped,
      or no daemon answered
  2   a flag or its value is wrong; nothing was created or changed
  65  what is stored is damaged, or a trace is not what it is said to be
  66  the cache, the origin or a trace is missing or cannot be read
  70  a bug of tidegate: an invariant does not hold; what was flushed is safe
  71  the system refused memory or io_uring
  73  a file or socket could not be created
  74  a device failed; of `drain` and `detach`: everything is home but blocks that the SSD does not give
  75  the cache or the origin is in use by somebody else
  77  permission denied
  78  the configuration or a plan is wrong (the message names path:line), or a device holds what tidegate must not touch:
      another file system, another volume's cache, a newer version, the wrong size
  128 and the number of a signal (129 SIGHUP, 130 SIGINT, 143 SIGTERM): that ended it at once. Of `up` and `serve` the second one:
      what was flushed is safe. Of `create`, `attach` and a first `up` the first one, before they formatted: what was made is gone again

Examples:
  tidegate up                               a volume of 8 GiB in ./tidegate-data, ready in a second
  tidegate up --origin /dev/sdb --cache /dev/nvme0n1p3 --dir /var/lib/tidegate
  tidegate status                           what the volume does
  tidegate drain && tidegate stop           everything home on the origin, then stop";

/// A disk as slow as it is large, and an SSD in front of it: writes are taken in at once and go home when the disk has time.
#[derive(Debug, Parser)]
#[command(name = "tidegate", version, after_help = EXIT_CODES, max_term_width = 110)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Serve the volume of a folder; the first run makes everything that is missing
    Up(Up),
    /// Make the files of a volume, or format a cache, without serving
    Create(Create),
    /// Serve the volume, or the volumes, that a configuration file describes; nothing is created
    Serve(Serve),
    /// Show what running volumes do
    Status(Status),
    /// What would running volumes miss with more memory or a larger cache, or less?
    Curve(Curve),
    /// Send everything dirty home to the origin, while the volume stays in use
    Drain(Drain),
    /// Stop a volume in order, or the whole daemon: everything that was acknowledged becomes durable
    Stop(Stop),
    /// Show or choose what a FLUSH promises: the cache (write-back) or the origin (write-through, read-only)
    Mode(Mode),
    /// Put a cache in front of a disk that has data, which keeps it
    Attach(Attach),
    /// Take the cache away: everything goes home, and the origin alone is the whole truth
    Detach(Detach),
    /// Make a volume as large as its origin has become
    Grow(Grow),
    /// Look for damage in caches that nobody serves; changes nothing
    Check(Check),
    /// Find out what an unknown device is like inside: its interleave, how many parts work side by side, where its latency begins to grow
    Probe(Probe),
    /// The simulated world: many runs with crashes and faults, one of them told as a story, and experiments in virtual time
    #[command(subcommand)]
    Sim(Sim),
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  tidegate up                                    everything in ./tidegate-data: origin.img of 8 GiB (sparse), cache.img of 1 GiB
  tidegate up --origin disk.img                  an existing image or device keeps its contents; only the cache is made
  tidegate up --nbd tcp:127.0.0.1:10809          NBD over TCP instead of a Unix socket
  tidegate up --nbd 0.0.0.0:10809 --tls-cert server.pem --tls-key server.key --tls-client-ca clients.pem

When it serves it prints one line `ready: URI` and how to connect. SIGTERM or Ctrl-C make every acknowledged write durable and stop;
a second one stops at once and loses nothing that was flushed.")]
pub struct Up {
    /// Folder of the volume: config.toml, the sockets, and the images that are not named elsewhere
    #[arg(long, value_name = "DIR", default_value = DIR)]
    pub dir: PathBuf,
    /// The slow device or file; keeps its contents [default: DIR/origin.img, made with 8 GiB if missing]
    #[arg(long, value_name = "PATH")]
    pub origin: Option<PathBuf>,
    /// The fast device or file that tidegate owns; formatted if blank, refused if it holds something else
    /// [default: DIR/cache.img, made with 1 GiB on the first run]
    #[arg(long, value_name = "PATH")]
    pub cache: Option<PathBuf>,
    /// Where NBD clients connect: unix:PATH or tcp:IP:PORT; beyond loopback with TLS only [default: unix:DIR/nbd.sock]
    #[arg(long, value_name = "ADDR", value_parser = Address::from_str)]
    pub nbd: Option<Address>,
    /// The export's name; clients that name none get it too
    #[arg(long, value_name = "NAME")]
    pub name: Option<String>,
    /// Clients may not change anything
    #[arg(long)]
    pub read_only: bool,
    /// Certificate of this server (PEM); with it, TCP clients must use TLS
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    pub tls_cert: Option<PathBuf>,
    /// Its private key (PEM)
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    pub tls_key: Option<PathBuf>,
    /// Authority that signs the certificates of clients (PEM); without one, here or configured, whoever reaches the port may connect
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    pub tls_client_ca: Option<PathBuf>,
    #[command(flatten)]
    pub running: Running,
}

/// How the daemon runs, whatever it serves.
#[derive(Debug, Args)]
pub struct Running {
    /// Start with another cache than last time, because that one is gone: what only it held is lost. Of several volumes, name the one
    #[arg(long, value_name = "NAME", num_args = 0..=1, require_equals = true)]
    pub accept_loss: Option<Option<String>>,
    /// Take in what the origins have grown by
    #[arg(long)]
    pub grow: bool,
    /// Write the process id to this file when it serves; the file goes when it stops. One that exists is replaced only if it holds a process id
    #[arg(long, value_name = "FILE")]
    pub pid_file: Option<PathBuf>,
    /// Write down what clients ask, and when, in a new file for the simulator (the format "tidegate"); for a single volume
    #[arg(long, value_name = "FILE")]
    pub record: Option<PathBuf>,
    /// What carries operations to the disks: io_uring where this system has and allows it, else threads
    #[arg(long, value_name = "HOW", default_value = Carrier::Auto.name(), value_parser = carrier())]
    pub io: Carrier,
    /// Serve one client on standard input, which is a connected socket (inetd, libnbd's connect_command), and stop when it has gone
    #[arg(long)]
    pub stdio: bool,
    /// Keep all privileges and system calls, for debuggers and tracers; by default the daemon gives up what it does not need
    #[arg(long)]
    pub unconfined: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  tidegate create --dir vm7 --origin-size 100GiB --cache-size 4GiB
  tidegate create --dir nas --volume media                            one of those that nas/config.toml describes
  tidegate create --origin /dev/sdb --cache /dev/nvme0n1p3 --force    overwrites what is on the cache, never the origin

An origin that exists is never changed. A cache that holds anything is refused without --force; what was dirty in it is lost with it,
and one line says how much that was.")]
pub struct Create {
    /// Folder of the volume
    #[arg(long, value_name = "DIR", default_value = DIR)]
    pub dir: PathBuf,
    /// The slow device or file; made as a sparse file if missing [default: DIR/origin.img]
    #[arg(long, value_name = "PATH")]
    pub origin: Option<PathBuf>,
    /// Size of an origin file that is made [default: 8GiB; to be said if config.toml names a missing one elsewhere: a disk may not be mounted]
    #[arg(long, value_name = "SIZE", allow_hyphen_values = true, value_parser = parse_disk_size)]
    pub origin_size: Option<u64>,
    /// The fast device or file; made as a file if missing [default: DIR/cache.img]
    #[arg(long, value_name = "PATH")]
    pub cache: Option<PathBuf>,
    /// Size of a cache file that is made [default: 1GiB; to be said if config.toml names a missing one elsewhere: a disk may not be mounted]
    #[arg(long, value_name = "SIZE", allow_hyphen_values = true, value_parser = parse_disk_size)]
    pub cache_size: Option<u64>,
    /// Which of several volumes that the folder's config.toml describes
    #[arg(long, value_name = "NAME", conflicts_with_all = ["origin", "cache"])]
    pub volume: Option<String>,
    /// Format the cache even if it holds something; everything on it is lost
    #[arg(long)]
    pub force: bool,
}

#[derive(Debug, Args)]
#[command(
    after_help = "Example:\n  tidegate serve --config /var/lib/tidegate/config.toml\n\nPrints the same `ready:` line as `tidegate up`. Under systemd: \
Type=notify, and sockets of a socket\nunit (LISTEN_FDS) stand in for the configured address."
)]
pub struct Serve {
    /// The configuration; paths it leaves out are files beside it
    #[arg(long, value_name = "FILE")]
    pub config: PathBuf,
    #[command(flatten)]
    pub running: Running,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  tidegate status
  tidegate status --json | jq .dirty_blocks
  tidegate status --json --dir /etc/nas | jq '.volumes[] | {name, dirty_blocks}'    of a daemon with several volumes")]
pub struct Status {
    #[command(flatten)]
    pub of: Of,
    /// One JSON object: sizes in bytes or 4 KiB blocks, latencies in nanoseconds, counters since the start; of several volumes in "volumes". What is
    /// not known is null: while a volume recovers, all that its cache has
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  tidegate curve
  tidegate curve --dir nas --volume media
  tidegate curve --json | jq -r '.memory.points[] | [.bytes, .miss_ratio] | @csv'

What would twice the memory bring, and what would half of it cost? Of all blocks that clients read a sample is followed, all the time, and what
is long ago counts for less. The miss ratios are those of LRU without admission, as shares of all blocks read: a read that the cache misses goes to
the origin. Each is that of a size which is off by no more than the per cent beside it, within the points that are stated. Beside them stands
what this volume has missed since its start. `tidegate sim curve` tells the same of a trace.")]
pub struct Curve {
    #[command(flatten)]
    pub of: Of,
    /// One JSON object: {"memory", "cache"}, each with "bytes" now, "error", "missed" and "points": [{"bytes", "miss_ratio", "size_error"}]; of
    /// several volumes in "volumes"
    #[arg(long)]
    pub json: bool,
}

/// Which daemon is asked, and about what.
#[derive(Debug, Args)]
pub struct Of {
    /// Folder of the volume, or of the config.toml with several
    #[arg(long, value_name = "DIR", default_value = DIR)]
    pub dir: PathBuf,
    /// Which one of several volumes; a command that is about one needs it
    #[arg(long, value_name = "NAME")]
    pub volume: Option<String>,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  tidegate drain && tidegate stop               the origin alone now holds everything
  tidegate drain --dir nas --volume media       one of several volumes; without its name, all of them

On a terminal it shows how long it still takes: what seeks and bandwidth have cost at this origin of late, times what is left.
A volume that is still starting is waited for. Ctrl-C cancels the drain; what has gone home stays there. Clients may go on writing: drain ends
when everything is home that was dirty when it was asked for, and says how much is dirty since. Exit code 74: but for blocks that the SSD
does not give (docs/durability.md, D7).
Of several volumes those that are served are drained; of one that was stopped nothing can go home, which is said, with exit code 1.")]
pub struct Drain {
    #[command(flatten)]
    pub of: Of,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  tidegate stop                                 as SIGTERM, and waits for the end
  tidegate stop --dir nas --volume media        its clients are told that it shuts down; the other volumes go on

A volume that was stopped is served again by the next start of the daemon.")]
pub struct Stop {
    #[command(flatten)]
    pub of: Of,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  tidegate mode                       what is promised now
  tidegate mode write-through         from now on the loss of the cache loses nothing that was flushed

write-back     a FLUSH is answered by the cache; dirty blocks go home later, and are lost with the cache until then
write-through  a FLUSH is answered by the origin; what was written stays in the cache, clean
read-only      the same, and writes go past the cache, which keeps only what was read

A switch that promises the origin is done when everything is home. The volume stays in use meanwhile; Ctrl-C stops the waiting, not the
switch. The mode outlives a restart, unless config.toml names one.")]
pub struct Mode {
    /// The mode to switch to; without it, the present one is shown
    #[arg(value_name = "MODE", value_parser = tidegate_engine::Mode::from_str)]
    pub mode: Option<tidegate_engine::Mode>,
    #[command(flatten)]
    pub of: Of,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  tidegate attach --origin /dev/sdb --cache /dev/nvme0n1p3 --dir /var/lib/tidegate
  tidegate attach                     a cache that was detached comes back, empty

Nothing on the origin is written. A cache that holds anything but a detached cache of ours is refused. `tidegate detach` undoes it.")]
pub struct Attach {
    /// Which of several volumes
    #[arg(long, value_name = "NAME")]
    pub volume: Option<String>,
    /// Folder of the volume
    #[arg(long, value_name = "DIR", default_value = DIR)]
    pub dir: PathBuf,
    /// The slow device or file; keeps its contents [default: DIR/origin.img]
    #[arg(long, value_name = "PATH")]
    pub origin: Option<PathBuf>,
    /// The fast device or file; made as a file if it is missing and not named, or with --cache-size [default: DIR/cache.img]
    #[arg(long, value_name = "PATH")]
    pub cache: Option<PathBuf>,
    /// Size of a cache file that is made [default: 1GiB if it is not named, here or elsewhere in config.toml]
    #[arg(long, value_name = "SIZE", allow_hyphen_values = true, value_parser = parse_disk_size)]
    pub cache_size: Option<u64>,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  tidegate detach                              everything home; the daemon ends; origin.img is all there is
  tidegate detach --discard-dirty=5a3c90f1     the origin is gone for good, or what is dirty is not wanted

With a daemon: refused while clients use the volume. Without one: the cache is recovered and sent home here. Ctrl-C leaves it attached.
A detached cache is refused until `tidegate attach`, which empties it: the origin may have changed by then.")]
pub struct Detach {
    #[command(flatten)]
    pub of: Of,
    /// Give up what the origin does not have; ID is the format id of the cache (8 digits or more, as messages show it)
    #[arg(long, value_name = "ID")]
    pub discard_dirty: Option<String>,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  truncate --size 200G disk.img && tidegate grow && tidegate up

The cache stays as it is, dirty blocks too. Volumes do not shrink.")]
pub struct Grow {
    #[command(flatten)]
    pub of: Of,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  tidegate check --cache ./tidegate-data/cache.img
  tidegate check --cache /dev/nvme0n1p3 --json
  tidegate check --dir nas                             the caches of all volumes that nas/config.toml describes
  tidegate check --dir nas --data                      and every block in them

Finds every damage that a start would find, and starts nothing. What blocks hold it reads with --data only; without it the scrubber of a daemon
does, and every read verifies it. Exit code 0: none; 1: damage, or blocks that are lost. Of several volumes each is reported, one that
cannot be looked at with its \"error\", and the exit code is the largest of theirs.")]
pub struct Check {
    /// The cache
    #[arg(long, value_name = "PATH", conflicts_with_all = ["dir", "volume"])]
    pub cache: Option<PathBuf>,
    /// Folder of the volumes: the caches that its config.toml names, unless one is named [default: ./tidegate-data]
    #[arg(long, value_name = "DIR")]
    pub dir: Option<PathBuf>,
    /// Only this one of several volumes
    #[arg(long, value_name = "NAME")]
    pub volume: Option<String>,
    /// Read every block too, and compare it with its checksum: as long as it takes to read what the cache holds
    #[arg(long)]
    pub data: bool,
    /// One JSON object; of several volumes in "volumes"
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Subcommand)]
pub enum Sim {
    /// Run many seeds with crashes and device faults, and compare every answer with an oracle
    Swarm(Swarm),
    /// Run one seed again and tell what happened, step by step
    Replay(Replay),
    /// Corrupt caches in every way and place, and see that nothing false is ever served
    Rot(Rot),
    /// List the plans of experiments that come with the program
    #[command(after_help = "Example:\n  tidegate sim list")]
    List,
    /// Print a plan that comes with the program: a pattern for one of your own
    #[command(after_help = "Example:\n  tidegate sim show courtesy > mine.toml && tidegate sim run ./mine.toml")]
    Show {
        /// Name of a plan; `tidegate sim list` shows them
        plan: String,
    },
    /// Run the experiments of a plan in virtual time, and hold what they measure against a paper's figures
    Run(RunPlan),
    /// What share of a block trace's accesses each replacement policy misses, at several sizes of the cache
    Policies(Policies),
    /// What share of a block trace's accesses LRU misses, at every size of the cache at once
    Curve(TraceCurve),
    /// What `tidegate probe` would find on a model of a device
    Probe(ProbeModel),
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  tidegate sim run devices
  tidegate sim run 001-gaps --out report && xdg-open report/index.html
  tidegate sim run ./mine.toml --json | jq '.rows[] | select(.within == false)'

A plan names devices, how they are put together, loads, and rows to report; `tidegate sim list` shows those that come with the program,
and `tidegate sim show NAME` prints one, as a pattern for your own. The same plan and seed give the same bytes of report on every machine.
Exit code 1 if a row lies outside its band; 78 for a plan that is wrong (the message names file:line).")]
pub struct RunPlan {
    /// Name of a plan, or a file
    pub plan: String,
    /// Addresses, mixes and arrivals are drawn from it
    #[arg(long, value_name = "S", default_value_t = 0)]
    pub seed: u64,
    /// One JSON object: {"plan", "seed", "rows": [{"name", "metric", "value", "paper", "low", "high", "within"}]}, and "left_out": [{"load",
    /// "rows", "why"}] if traces are missing
    #[arg(long)]
    pub json: bool,
    /// Also write table, JSON, CSV of every series, pictures, and a page with all of it (index.html) into this folder
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  tidegate sim swarm --seeds 2000 --ops 5000
  tidegate sim swarm --profile wide --seeds 100 --ops 25000    requests of 1 to 2,048 sectors, larger volumes

The same seed gives the same run on every machine. Exit code 1 on a violation, with its seed and the command that replays it.")]
pub struct Swarm {
    /// How many seeds
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub seeds: u64,
    /// Client operations of each seed
    #[arg(long, value_name = "M", value_parser = clap::value_parser!(u64).range(1..))]
    pub ops: u64,
    /// The first of them
    #[arg(long, value_name = "S", default_value_t = 0)]
    pub first_seed: u64,
    /// What the runs are like: small is tiny volumes, and a crash after every write of some; wide is long and ragged requests on larger
    /// ones; refusing is an origin that refuses much before a log that is soon full; failing is an SSD that soon fails for good, again and again
    #[arg(long, value_name = "PROFILE", default_value = Profile::Small.name(), value_parser = profile())]
    pub profile: Profile,
    /// One JSON object: {"seeds", "ops", "recoveries", "violations", "trace", "fault_points", "first"}, `first` the first violation or null
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  tidegate sim rot --corruptions 100000
  tidegate sim rot --corruptions 1000000 --first-seed 7 --json | jq .harmless

Bit flips, torn sectors, misdirected writes, replayed old contents and zeros, in data, headers, journal, state maps and superblocks. Each
is noticed, or makes no difference for a reason that is counted; exit code 1 if one does not, with its seed.")]
pub struct Rot {
    /// How many corruptions, at least
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub corruptions: u64,
    /// The first seed; some 120 corruptions belong to each
    #[arg(long, value_name = "S", default_value_t = 0)]
    pub first_seed: u64,
    /// One JSON object: {"corruptions", "starts", "noticed", "harmless", "injected", "violations"}
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "Example:\n  tidegate sim replay 1742 --ops 5000")]
pub struct Replay {
    /// The seed
    pub seed: u64,
    /// Client operations; as in the swarm that named the seed
    #[arg(long, value_name = "M", default_value_t = 5000, value_parser = clap::value_parser!(u64).range(1..))]
    pub ops: u64,
    /// The swarm's profile
    #[arg(long, value_name = "PROFILE", default_value = Profile::Small.name(), value_parser = profile())]
    pub profile: Profile,
}

fn profile() -> impl TypedValueParser<Value = Profile> {
    PossibleValuesParser::new(Profile::ALL.map(Profile::name))
        .map(|name| Profile::ALL.into_iter().find(|profile| profile.name() == name).expect("one of these names"))
}

fn carrier() -> impl TypedValueParser<Value = Carrier> {
    PossibleValuesParser::new(Carrier::ALL.map(Carrier::name))
        .map(|name| Carrier::ALL.into_iter().find(|carrier| carrier.name() == name).expect("one of these names"))
}

/// What is wrong with the flags, in one line however long the argument was.
pub fn one_line(error: &clap::Error) -> String {
    const CHARS_MAX: usize = 400;
    let rendered = error.to_string();
    // clap writes the matter first, then an empty line, then usage and hints.
    let matter: Vec<&str> = rendered.lines().take_while(|line| !line.trim().is_empty()).map(str::trim).collect();
    let matter = matter.join(" ");
    let chars = matter.chars().count();
    let matter = if chars <= CHARS_MAX {
        matter
    } else {
        let head: String = matter.chars().take(CHARS_MAX / 2).collect();
        let tail: String = matter.chars().skip(chars - CHARS_MAX / 2).collect();
        format!("{head}…{tail}")
    };
    format!("{}; see `tidegate --help`", matter.strip_prefix("error: ").unwrap_or(&matter))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_well_formed() {
        Cli::command().debug_assert();
    }

    #[test]
    fn a_wrong_flag_is_one_line_that_names_it() {
        let long = "9".repeat(1 << 20);
        for (line, expected) in [
            (vec!["up", "--orgin", "x"], "unexpected argument '--orgin' found"),
            (vec!["up", "--nbd", "nowhere"], "invalid value 'nowhere' for '--nbd <ADDR>': NBD address: `nowhere` is neither"),
            (vec!["create", "--cache-size", "8"], "invalid value '8' for '--cache-size <SIZE>': \"8\" has no unit"),
            (vec!["create", "--cache-size", &long], "invalid value '999"),
            (vec!["up", "--tls-cert", "x"], "the following required arguments were not provided: --tls-key <FILE>"),
            (vec!["up", "--dir"], "a value is required for '--dir <DIR>' but none was supplied"),
            (vec!["up", "--dir", "a", "--dir", "b"], "the argument '--dir <DIR>' cannot be used multiple times"),
            (vec!["sim", "swarm", "--seeds", "0", "--ops", "1"], "invalid value '0' for '--seeds <N>'"),
            (
                vec!["sim", "swarm", "--seeds", "18446744073709551616", "--ops", "1"],
                "invalid value '18446744073709551616' for '--seeds <N>'",
            ),
            (vec!["mode", "write-around"], "invalid value 'write-around' for '[MODE]': \"write-around\" is no mode"),
            (vec!["fly"], "unrecognized subcommand 'fly'"),
        ] {
            let arguments = ["tidegate"].into_iter().chain(line.iter().copied());
            let message = one_line(&Cli::try_parse_from(arguments).unwrap_err());
            assert!(message.starts_with(expected), "{message}");
            assert!(message.len() < 1000 && !message.contains('\n'), "{message}");
        }
    }
}
