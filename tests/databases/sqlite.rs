//! SQLite: money moves between accounts, and a ledger says so, in one transaction. `PRAGMA integrity_check` judges the file.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::{Fuse, Session, VICTIMS, Victim};
use crate::common::chance::Chance;
use crate::common::stand::{Stand, rounds};
use crate::common::{text, tool};

const ACCOUNTS: u64 = 50;
const SCHEMA: &str = "CREATE TABLE account (id INTEGER PRIMARY KEY, balance INTEGER NOT NULL); \
    CREATE TABLE ledger (number INTEGER PRIMARY KEY, note BLOB NOT NULL); CREATE INDEX notes ON ledger (note); \
    WITH RECURSIVE n (i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i < 49) INSERT INTO account SELECT i, 0 FROM n;";

fn ask(database: &Path, what: &str) -> String {
    tool::run("sqlite3", &[text(database), what]).succeeds().trim().to_owned()
}

/// One transaction, which prints its number when it is committed.
fn transfer(number: u64, chance: &mut Chance) -> String {
    let (from, to, amount) = (chance.below(ACCOUNTS), chance.below(ACCOUNTS), chance.below(1000));
    let note = 1 + chance.below(6000);
    format!(
        "BEGIN IMMEDIATE; UPDATE account SET balance = balance - {amount} WHERE id = {from}; \
         UPDATE account SET balance = balance + {amount} WHERE id = {to}; \
         INSERT INTO ledger VALUES ({number}, randomblob({note})); COMMIT;\nSELECT {number};\n"
    )
}

/// What must hold of the file, whoever was killed; returns the last transaction in it.
fn judge(database: &Path, acknowledged: u64) -> u64 {
    assert_eq!(ask(database, "PRAGMA integrity_check"), "ok");
    let found = ask(database, "SELECT coalesce(max(number), 0), count(*), (SELECT sum(balance) FROM account) FROM ledger");
    let found: Vec<u64> = found.split('|').map(|field| field.parse().unwrap()).collect();
    assert!(found[0] >= acknowledged, "transaction {acknowledged} was committed, the last that is there is {}", found[0]);
    assert!(found[0] <= acknowledged + 1, "only one was under way: {acknowledged} were committed, {} are there", found[0]);
    assert_eq!((found[1], found[2]), (found[0], 0), "each is there once, and no money is lost");
    found[0]
}

/// Transactions until somebody is killed; returns the last that was committed.
fn work(stand: &Stand, database: &Path, journal: &str, first: u64, victim: Victim, chance: &mut Chance) -> u64 {
    let mut command = Command::new("stdbuf");
    command.args(["-oL", "sqlite3", "-bail", text(database)]);
    let mut session = Session::start(command);
    assert!(session.commits(&format!("PRAGMA journal_mode = {journal}; PRAGMA synchronous = EXTRA; SELECT 0;\n"), 0));
    let fuse = Fuse((20 + chance.below(60)).into());
    let mut number = first;
    while session.commits(&transfer(number, chance), number) {
        number += 1;
        if fuse.burns_down() {
            // The next one is under way.
            let _ = std::io::Write::write_all(&mut session.input, transfer(number, chance).as_bytes());
            match victim {
                Victim::Server => break,
                Victim::Daemon => stand.kill_daemon(),
                Victim::Both => {
                    stand.kill_daemon();
                    break;
                }
            }
        }
    }
    // Dropped: the program is killed. What it said before that, it said.
    number - 1
}

#[test]
fn sqlite_keeps_every_committed_transaction_whoever_is_killed() {
    let mut stand = Stand::new(&["mkfs.ext4", "-q"], "noatime");
    let database = |at: PathBuf| at.join("ledger.db");
    ask(&database(stand.at()), SCHEMA);
    let mut last = 0;
    for round in 0..rounds(6) {
        let mut chance = Chance::new(round);
        let victim = VICTIMS[round as usize % 3];
        let journal = ["WAL", "DELETE"][round as usize / 3 % 2];
        let acknowledged = work(&stand, &database(stand.at()), journal, last + 1, victim, &mut chance);
        assert!(acknowledged >= last + 20, "round {round}: the work ended by itself");
        let at = if victim == Victim::Server { stand.at() } else { stand.take_up_again() };
        last = judge(&database(at), acknowledged);
        println!("round {round}: {victim:?}, {journal}: {last} transactions");
    }
    stand.finish(&["e2fsck", "-f", "-n"]);
}
