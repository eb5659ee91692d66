//! What the lobby makes of volumes that start, fail and end: scripted ones, each in its own thread as the real ones.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender as Said, channel};

use serde_json::json;
use tidegate_engine::cache::format::{FormatId, Geometry};
use tidegate_engine::op::Limits;
use tidegate_engine::{Config, Engine};

use super::*;
use crate::back::run::Run;
use crate::back::signals::Receiving;
use crate::desk::{Desk, Rest};
use crate::front::nbd::Export;

const NBD: &str = "nbd.sock";

fn export(name: &str) -> Export {
    Export { name: name.into(), description: String::new(), bytes: 1 << 20, read_only: false, clients: Vec::new(), block_bytes: 4096 }
}

fn snapshot() -> Box<Snapshot> {
    let geometry = Geometry { block_atoms: 8, set_slots: 8, sets: 16, journal_pages: 64, volume_atoms: 512, range_entries: 252 };
    let limits = Limits { atoms: 1 << 20, depth: 8, op_atoms: 2048, discards: false };
    let engine: Engine<Run> = Engine::new(Config::new(geometry, FormatId([1; 16])), [limits; 2]);
    Box::new(engine.inspect(tidegate_engine::time::Instant::ZERO))
}

/// What an operator was told; when everything serves, the bad volume hears of it, and when it is lost, the rest is asked to stop.
struct Person {
    serves: Said<()>,
    control: PathBuf,
    asked: Option<UnixStream>,
    told: Vec<String>,
    /// It cannot do what is to be done when everything serves.
    refuses: bool,
}

impl Operator for Person {
    fn ready(&mut self, ready: &Ready) -> Result<(), Failure> {
        self.told.push(format!("ready: {}", ready.volumes.iter().map(|volume| volume.name.as_str()).collect::<Vec<_>>().join(", ")));
        if self.refuses {
            return Err(Failure::new(Failure::NOT_CREATED, "the configuration cannot be written"));
        }
        self.serves.send(()).expect("it waits for it");
        Ok(())
    }

    fn lost(&mut self, volume: &str, failure: &Failure) {
        self.told.push(format!("lost: {volume}: {}", failure.code));
        let mut stream = UnixStream::connect(&self.control).expect("the lobby listens");
        stream.write_all(b"{\"verb\":\"stop\"}\n").expect("it is sent");
        self.asked = Some(stream);
    }
}

/// A volume in order: what it is told goes to `said`, too.
fn good(desk: &mut Desk, said: &Said<&'static str>) {
    desk.tell(Tell::Opened);
    assert!(desk.is_started());
    desk.tell(Tell::Sound);
    let mut serves = false;
    loop {
        desk.open();
        if desk.may_write() && !serves {
            serves = true;
            said.send("write").unwrap();
            desk.tell(Tell::Serving(snapshot()));
        }
        let commands = desk.commands();
        for (number, _) in &commands {
            desk.answer(*number, json!({ "phase": "serving" }));
        }
        if desk.is_told_to_stop() || !commands.is_empty() {
            said.send("stop").unwrap();
            return;
        }
        std::thread::yield_now();
    }
}

/// Runs a good volume and one that does `bad`: how it ended, what the operator was told, what the good volume was told.
fn check(
    bad: impl FnOnce(Desk, Receiver<()>) -> Result<Rest, Failure> + Send + 'static,
) -> (Result<Ended, Failure>, Vec<String>, Vec<&'static str>) {
    let good = |mut desk: Desk, said: Said<&'static str>| {
        good(&mut desk, &said);
        Ok(Rest::default())
    };
    check_with(bad, good, false)
}

/// The same with another second one, and an operator who may refuse.
fn check_with(
    bad: impl FnOnce(Desk, Receiver<()>) -> Result<Rest, Failure> + Send + 'static,
    good: impl FnOnce(Desk, Said<&'static str>) -> Result<Rest, Failure> + Send + 'static,
    refuses: bool,
) -> (Result<Ended, Failure>, Vec<String>, Vec<&'static str>) {
    check_in(tempfile::tempdir().unwrap().path(), bad, good, refuses)
}

/// The same in this folder, where clients find [`NBD`].
fn check_in(
    folder: &Path,
    bad: impl FnOnce(Desk, Receiver<()>) -> Result<Rest, Failure> + Send + 'static,
    good: impl FnOnce(Desk, Said<&'static str>) -> Result<Rest, Failure> + Send + 'static,
    refuses: bool,
) -> (Result<Ended, Failure>, Vec<String>, Vec<&'static str>) {
    // Before there are threads: they leave them alone.
    let signals = Signals::take().unwrap();
    let control = folder.join("control.sock");
    let (sender, mut news) = mailbox(64).unwrap();
    let ((said, heard), (serves, all_serve)) = (channel(), channel());
    let members = vec![
        Member::spawn(0, export("bad"), Vec::new(), &sender, false, move |desk| bad(desk, all_serve)).unwrap(),
        Member::spawn(1, export("good"), Vec::new(), &sender, false, move |desk| good(desk, said)).unwrap(),
    ];
    drop(sender);
    assert!((0..2).all(|_| matches!(news.wait(), Ok(News { tell: Tell::Opened, .. }))));
    let exports = Exports::new(vec![export("bad"), export("good")], None).unwrap();
    let addresses = vec![Address::Unix(folder.join(NBD))];
    let front = Front::lobby(nbd::Options { addresses, ..nbd::Options::new(exports) }).unwrap();
    let port = ControlPort::bind(Path::new(&control)).unwrap();
    let lobby = Lobby::new(front, port, signals, members, news, false).unwrap();
    let mut person = Person { serves, control, asked: None, told: Vec::new(), refuses };
    let ended = lobby.run(&mut person);
    (ended, person.told, heard.iter().collect())
}

#[test]
fn exit_codes_are_those_that_shells_expect() {
    assert_eq!((Ended::Stopped { lost_blocks: 0 }.code(), Ended::Interrupted(libc::SIGINT).code()), (0, 130));
}

#[test]
fn what_speaks_against_one_volume_stops_the_others_before_they_write() {
    let (ended, told, good) = check(|mut desk, _| {
        desk.tell(Tell::Opened);
        desk.is_started();
        Err(Failure::new(Failure::DAMAGED, "the origin was changed"))
    });
    assert_eq!(ended, Err(Failure::new(Failure::DAMAGED, "volume \"bad\": the origin was changed")));
    assert_eq!((told, good), (Vec::<String>::new(), vec!["stop"]));
}

#[test]
fn a_volume_whose_invariant_breaks_ends_alone_and_is_the_exit_code_in_the_end() {
    let (ended, told, good) = check(|mut desk, all_serve| {
        desk.tell(Tell::Opened);
        desk.is_started();
        desk.tell(Tell::Sound);
        while !desk.may_write() {
            desk.open();
            std::thread::yield_now();
        }
        desk.tell(Tell::Serving(snapshot()));
        all_serve.recv().expect("the operator hears of it");
        panic!("two live slots of one block");
    });
    let failure = ended.unwrap_err();
    assert_eq!(failure.code, Failure::BUG);
    assert!(failure.message.starts_with("volume \"bad\": an invariant does not hold"), "{failure}");
    assert_eq!(told, ["ready: bad, good", "lost: bad: 70"]);
    assert_eq!(good, ["write", "stop"]);
}

/// A volume that is told to stop while it recovers has not served, and does not any more.
#[test]
fn nothing_is_ready_where_everything_was_stopped_before_it_served() {
    let ends = |mut desk: Desk| {
        desk.tell(Tell::Opened);
        assert!(desk.is_started());
        Ok(Rest::default())
    };
    let (ended, told, _) = check_with(move |desk, _| ends(desk), move |desk, _| ends(desk), false);
    assert_eq!((ended, told), (Ok(Ended::Stopped { lost_blocks: 0 }), Vec::new()));
}

/// The operator cannot do what is to be done when everything serves, so it stops, and only then comes a signal: nobody has asked twice by that.
#[test]
fn the_first_signal_is_the_first_one_whatever_it_was_stopping_for_and_why_is_told() {
    const LONG: std::time::Duration = std::time::Duration::from_millis(400);
    for signals in [1, 2] {
        let lobby = Receiving::here();
        let has_ended = Arc::new(AtomicBool::new(false));
        let ends = has_ended.clone();
        let slow = move |mut desk: Desk, _: Receiver<()>| {
            desk.tell(Tell::Opened);
            assert!(desk.is_started());
            desk.tell(Tell::Sound);
            let mut serves = false;
            while !desk.is_told_to_stop() {
                desk.open();
                if desk.may_write() && !std::mem::replace(&mut serves, true) {
                    desk.tell(Tell::Serving(snapshot()));
                }
                std::thread::yield_now();
            }
            for _ in 0..signals {
                std::thread::sleep(LONG);
                lobby.send(libc::SIGTERM);
            }
            std::thread::sleep(LONG);
            ends.store(true, Ordering::SeqCst);
            Ok(Rest::default())
        };
        let good = |mut desk: Desk, said: Said<&'static str>| {
            good(&mut desk, &said);
            Ok(Rest::default())
        };
        let (ended, told, _) = check_with(slow, good, true);
        assert_eq!(has_ended.load(Ordering::SeqCst), signals == 1, "one signal waits for what is acknowledged, two do not");
        assert_eq!(ended.unwrap_err().message, "the configuration cannot be written");
        assert_eq!(told, ["ready: bad, good"]);
    }
}

/// A client that comes for an export and writes at once, with FUA.
fn write_at_once(socket: &Path, export: &str) -> UnixStream {
    let mut client = UnixStream::connect(socket).unwrap();
    client.set_read_timeout(Some(std::time::Duration::from_secs(60))).unwrap();
    client.read_exact(&mut [0; 18]).unwrap();
    let (name, bytes) = (export.as_bytes(), [7; 4096]);
    let go = [&(name.len() as u32).to_be_bytes()[..], name, &[0; 2]].concat();
    let option = [&3_u32.to_be_bytes()[..], b"IHAVEOPT", &7_u32.to_be_bytes(), &(go.len() as u32).to_be_bytes(), &go].concat();
    let write = [&0x2560_9513_u32.to_be_bytes()[..], &[0, 1, 0, 1], &[0; 16], &4096_u32.to_be_bytes(), &bytes].concat();
    client.write_all(&[option, write].concat()).unwrap();
    client
}

/// What a first run has made goes again if it cannot be kept, and so would what it has acknowledged.
#[test]
fn who_waits_for_a_start_that_is_undone_is_answered_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let (at, (tell, told)) = (folder.path().to_owned(), channel());
    let waited_for = move |mut desk: Desk, _: Receiver<()>| {
        desk.tell(Tell::Opened);
        assert!(desk.is_started());
        desk.tell(Tell::Sound);
        while !desk.may_write() {
            desk.open();
            std::thread::yield_now();
        }
        let mut client = write_at_once(&at.join(NBD), "bad");
        // What is asked after that comes here after it has arrived there.
        let mut asker = UnixStream::connect(at.join("control.sock")).unwrap();
        asker.write_all(b"{\"verb\":\"status\",\"volume\":\"bad\"}\n").unwrap();
        while desk.commands().is_empty() {
            desk.open();
            std::thread::yield_now();
        }
        desk.tell(Tell::Serving(snapshot()));
        while !desk.is_told_to_stop() {
            desk.open();
            std::thread::yield_now();
        }
        let guests = desk.guests().len();
        let answered = match client.read(&mut [0; 1]) {
            Ok(bytes) => bytes > 0,
            Err(error) => error.kind() != io::ErrorKind::ConnectionReset,
        };
        tell.send((guests, answered)).unwrap();
        Ok(Rest::default())
    };
    let good = |mut desk: Desk, said: Said<&'static str>| {
        good(&mut desk, &said);
        Ok(Rest::default())
    };
    let (ended, operator, _) = check_in(folder.path(), waited_for, good, true);
    assert_eq!(ended.unwrap_err().message, "the configuration cannot be written");
    assert_eq!((operator, told.recv()), (vec!["ready: bad, good".to_owned()], Ok((0, false))));
}
