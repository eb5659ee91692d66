//! PostgreSQL with checksums of its pages: three sessions move money between accounts and write a ledger. amcheck judges tables and
//! indexes, pg_checksums every page.

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use super::{Fuse, Session, VICTIMS, Victim};
use crate::common::chance::Chance;
use crate::common::stand::{Stand, rounds};
use crate::common::{text, tool};

const ACCOUNTS: u64 = 100;
const SESSIONS: u64 = 3;
/// How long a server may take to start or to be gone.
const PATIENCE: Duration = Duration::from_secs(120);
const SCHEMA: &str = "CREATE TABLE account (id int PRIMARY KEY, balance bigint NOT NULL); \
    INSERT INTO account SELECT id, 0 FROM generate_series(0, 99) AS id; \
    CREATE TABLE ledger (session int, number bigint, note text NOT NULL, PRIMARY KEY (session, number)); \
    CREATE EXTENSION amcheck;";

/// The programs, and who runs them: PostgreSQL refuses to be root.
struct Programs {
    folder: PathBuf,
    user: (u32, u32),
    /// Where the server's socket is.
    sockets: TempDir,
}

impl Programs {
    fn new() -> Programs {
        let versions = fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten().map(|entry| entry.path().join("bin"));
        let newest = versions.filter(|folder| folder.join("postgres").exists()).max();
        let folder = newest.expect("/usr/lib/postgresql/*/bin; scripts/setup.sh installs it");
        let id = |option: &str| tool::run("id", &[option, "postgres"]).succeeds().trim().parse().expect("a number");
        let user = (id("-u"), id("-g"));
        let sockets = tempfile::Builder::new().prefix("tidegate").tempdir().unwrap();
        std::os::unix::fs::chown(sockets.path(), Some(user.0), Some(user.1)).unwrap();
        Programs { folder, user, sockets }
    }

    fn command(&self, program: &str) -> Command {
        self.through(Command::new(self.folder.join(program)))
    }

    /// A psql that reads from its input, and passes each line on as soon as it has it.
    fn session(&self) -> Command {
        let mut command = self.through(Command::new("stdbuf"));
        command.arg("-oL").arg(self.folder.join("psql")).args(self.connection()).args(["-X", "-q", "-v", "ON_ERROR_STOP=1", "-f", "-"]);
        command
    }

    fn through(&self, mut command: Command) -> Command {
        command.uid(self.user.0).gid(self.user.1).current_dir("/").stdin(Stdio::null()).env("LC_ALL", "C");
        command
    }

    /// Runs one to its end; it must succeed.
    fn run(&self, program: &str, arguments: &[&str]) -> String {
        let output = self.command(program).args(arguments).output().expect("it is installed");
        let (said, error) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success(), "{program} {arguments:?}: {}\n{said}{error}", output.status);
        said.into_owned()
    }

    fn connection(&self) -> [&str; 4] {
        ["-h", text(self.sockets.path()), "-d", "postgres"]
    }

    fn ask(&self, what: &str) -> String {
        self.run("psql", &[&self.connection()[..], &["-X", "-A", "-t", "-q", "-v", "ON_ERROR_STOP=1", "-c", what]].concat())
            .trim()
            .to_owned()
    }
}

/// A running server. Its processes leave every group, and their parent may end before them: they are those who work in its folder.
struct Server {
    child: Child,
    data: PathBuf,
}

impl Server {
    /// Starts it, which recovers what a killed one left.
    fn start(programs: &Programs, data: &Path) -> Server {
        let mut command = programs.command("postgres");
        command.args(["-D", text(data), "-k", text(programs.sockets.path()), "-c", "listen_addresses="]);
        // Checkpoints in the middle of everything, and the log on the device, not in memory.
        command.args(["-c", "checkpoint_timeout=30s", "-c", "max_wal_size=32MB", "-c", "shared_buffers=16MB", "-c", "fsync=on"]);
        let mut child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("it is installed");
        let mut lines = BufReader::new(child.stderr.take().expect("piped")).lines();
        let mut said = Vec::new();
        let is_ready = lines.by_ref().map_while(Result::ok).any(|line| {
            said.push(line);
            said.last().is_some_and(|line| line.contains("ready to accept connections"))
        });
        // Read on, so that it never waits for us; this ends with the server.
        std::thread::spawn(move || lines.map_while(Result::ok).for_each(drop));
        let server = Server { child, data: data.to_owned() };
        assert!(is_ready, "the server does not start: {said:#?}");
        server
    }

    /// `kill -9` of all its processes. Returns how many there were.
    fn kill(&self) -> usize {
        let works_here = |process: &fs::DirEntry| fs::read_link(process.path().join("cwd")).is_ok_and(|folder| folder == self.data);
        let processes = fs::read_dir("/proc").expect("proc").flatten().filter(works_here);
        let numbers = processes.filter_map(|process| Pid::from_raw(process.file_name().to_str()?.parse().ok()?));
        let mut count = 0;
        for process in numbers {
            // One that has ended meanwhile is what was wanted.
            let _ = kill_process(process, Signal::KILL);
            count += 1;
        }
        count
    }

    /// Killed, and gone to the last process: nobody holds the file system.
    fn kill_and_wait(mut self) {
        let started = Instant::now();
        while self.kill() > 0 {
            assert!(started.elapsed() < PATIENCE, "a process of the server does not end");
        }
        self.child.wait().expect("our child");
    }

    /// In order, with a last checkpoint.
    fn stop(mut self) {
        tool::run("kill", &["-INT", &self.child.id().to_string()]).succeeds();
        assert!(self.child.wait().expect("our child").success(), "the server stops in order");
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if self.child.try_wait().is_ok_and(|ended| ended.is_none()) {
            self.kill();
            let _ = self.child.wait();
        }
    }
}

/// One transaction, which prints its number when it is committed.
fn transfer(session: u64, number: u64, chance: &mut Chance) -> String {
    let (from, to, amount) = (chance.below(ACCOUNTS), chance.below(ACCOUNTS), chance.below(1000));
    // In the order of accounts, so that sessions never wait for each other in a circle.
    let mut moves = [(from, -(amount as i64)), (to, amount as i64)];
    moves.sort_unstable();
    let [one, other] = moves.map(|(id, amount)| format!("UPDATE account SET balance = balance + {amount} WHERE id = {id};"));
    let note = 1 + chance.below(3000);
    format!("BEGIN; {one} {other} INSERT INTO ledger VALUES ({session}, {number}, repeat('t', {note})); COMMIT;\n\\echo {number}\n")
}

/// Transactions in all sessions until somebody is killed; the last that was committed in each.
fn work(stand: &Stand, programs: &Programs, server: &Server, firsts: &[u64], victim: Victim, round: u64) -> Vec<u64> {
    let fuse = Fuse((60 + Chance::new(round).below(200)).into());
    let kill = || match victim {
        Victim::Server => drop(server.kill()),
        Victim::Daemon => stand.kill_daemon(),
        Victim::Both => {
            stand.kill_daemon();
            server.kill();
        }
    };
    let session = |session: u64, first: u64| {
        let mut chance = Chance::new(round * SESSIONS + session);
        let mut client = Session::start(programs.session());
        let mut number = first;
        while client.commits(&transfer(session, number, &mut chance), number) {
            number += 1;
            if fuse.burns_down() {
                kill();
            }
        }
        // A server whose disk has gone may end with processes left that wait for each other: then those are killed, too.
        server.kill();
        number - 1
    };
    std::thread::scope(|threads| {
        let session = &session;
        let running: Vec<_> = (0..).zip(firsts).map(|(number, first)| threads.spawn(move || session(number, *first))).collect();
        running.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

/// What must hold of the database, whoever was killed; the last transaction of each session.
fn judge(programs: &Programs, acknowledged: &[u64]) -> Vec<u64> {
    let numbers = |query: &str| programs.ask(query).split_whitespace().map(|number| number.parse::<u64>().unwrap()).collect::<Vec<_>>();
    let sum = "SELECT sum(balance)::bigint FROM account";
    assert_eq!(numbers(sum), [0], "no money is lost");
    let last: Vec<u64> = (0..)
        .zip(acknowledged)
        .map(|(session, acknowledged)| {
            let found = numbers(&format!("SELECT coalesce(max(number), 0) || ' ' || count(*) FROM ledger WHERE session = {session}"));
            let (last, count) = (found[0], found[1]);
            assert!(last >= *acknowledged, "session {session}: {acknowledged} were committed, the last that is there is {last}");
            assert!(
                last <= acknowledged + 1 && count == last,
                "session {session}: {acknowledged} committed, {count} there, {last} is the last"
            );
            last
        })
        .collect();
    programs.run("pg_amcheck", &[&programs.connection()[..], &["--heapallindexed"]].concat());
    last
}

#[test]
fn postgres_keeps_every_committed_transaction_whoever_is_killed() {
    let programs = Programs::new();
    let mut stand = Stand::new(&["mkfs.ext4", "-q"], "noatime");
    let data = |at: PathBuf| at.join("data");
    let folder = data(stand.at());
    fs::create_dir(&folder).unwrap();
    std::os::unix::fs::chown(&folder, Some(programs.user.0), Some(programs.user.1)).unwrap();
    programs.run("initdb", &["-D", text(&folder), "-U", "postgres", "-A", "trust", "--data-checksums", "--no-sync", "--no-instructions"]);
    let mut server = Server::start(&programs, &folder);
    programs.ask(SCHEMA);
    programs.ask("CHECKPOINT");
    tool::run("sync", &["-f", text(&folder)]).succeeds();

    let mut last = vec![0; SESSIONS as usize];
    for round in 0..rounds(3) {
        let victim = VICTIMS[round as usize % 3];
        let firsts: Vec<u64> = last.iter().map(|last| last + 1).collect();
        let acknowledged = work(&stand, &programs, &server, &firsts, victim, round);
        let committed: u64 = acknowledged.iter().zip(&last).map(|(now, before)| now - before).sum();
        assert!(committed >= 60, "round {round}: the work ended by itself");
        server.kill_and_wait();
        let at = if victim == Victim::Server { stand.at() } else { stand.take_up_again() };
        server = Server::start(&programs, &data(at));
        last = judge(&programs, &acknowledged);
        println!("round {round}: {victim:?}: {last:?} transactions");
    }
    server.stop();
    programs.run("pg_checksums", &["--check", "-D", text(&data(stand.at()))]);
    stand.finish(&["e2fsck", "-f", "-n"]);
}
