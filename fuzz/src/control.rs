//! Clients of the control socket: whatever they send, each line is answered by one JSON object, and the port is as empty as before
//! when they have gone.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::io::{ErrorKind, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;

use tidegate_daemon::control::{ANSWERS_MAX, ControlPort};
use tidegate_daemon::port::Port;
use tidegate_engine::request::Room;

/// The port's own token, of all the ones it tells.
const LISTENER: u64 = 0;

/// The port of this process: its socket is made once, and every input is a client of its own.
struct Bench {
    port: ControlPort,
    path: PathBuf,
    /// Clients that the port has told the loop of.
    clients: BTreeSet<u64>,
}

thread_local! {
    static BENCH: RefCell<Option<Bench>> = const { RefCell::new(None) };
}

impl Bench {
    fn new() -> Bench {
        let path = std::env::temp_dir().join(format!("tidegate-fuzz-{}-{:?}", std::process::id(), std::thread::current().id()));
        Bench { port: ControlPort::bind(&path).expect("a socket in the folder for temporary files"), path, clients: BTreeSet::new() }
    }

    /// One turn of a volume's loop. True: no client is left.
    fn turn(&mut self) -> bool {
        self.listen();
        let (mut room, mut events) = (Room::whole(8, 1 << 20), Vec::new());
        self.port.ready(LISTENER, true, false, &mut room, &mut events);
        self.listen();
        for token in self.clients.clone() {
            self.port.ready(token, true, true, &mut room, &mut events);
        }
        for (asker, command) in self.port.commands() {
            self.port.answer(asker, &format!("{:?}", command.verb).into());
        }
        self.port.send();
        self.listen();
        self.clients.is_empty()
    }

    fn listen(&mut self) {
        let mut interests = Vec::new();
        self.port.interests(&mut interests);
        for interest in interests.into_iter().filter(|interest| interest.token != LISTENER) {
            if interest.readable || interest.writable {
                self.clients.insert(interest.token);
            } else {
                self.clients.remove(&interest.token);
            }
        }
    }
}

pub fn run(data: &[u8]) {
    BENCH.with_borrow_mut(|bench| {
        let bench = bench.get_or_insert_with(Bench::new);
        let mut client = UnixStream::connect(&bench.path).expect("it listens");
        client.set_nonblocking(true).expect("a socket");
        // Its first byte says how its bytes are cut.
        let (piece, bytes) = data.split_first().unwrap_or((&0, &[]));
        let mut answers = Vec::new();
        for piece in bytes.chunks(1 + usize::from(*piece) * 8) {
            if client.write_all(piece).is_err() {
                break; // closed upon us
            }
            bench.turn();
            hear(&mut client, &mut answers);
        }
        let _ = client.shutdown(Shutdown::Write);
        // Who does not read is waited for; this one does.
        let mut turn = || {
            let is_gone = bench.turn();
            hear(&mut client, &mut answers);
            is_gone
        };
        assert!((0..8).any(|_| turn()), "a client that has gone is still held");
        check_answers(&answers, bytes);
    });
}

/// Takes what has been answered so far.
fn hear(client: &mut UnixStream, answers: &mut Vec<u8>) {
    let mut piece = [0; 4096];
    loop {
        match client.read(&mut piece) {
            Ok(0) => return,
            Ok(count) => answers.extend_from_slice(&piece[..count]),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(_) => return,
        }
    }
}

/// One answer for each line, one more at most for what ended the conversation.
fn check_answers(answers: &[u8], asked: &[u8]) {
    let text = std::str::from_utf8(answers).expect("answers are UTF-8");
    let lines = asked.iter().filter(|&&byte| byte == b'\n').count();
    let told = text.lines().count();
    assert!(told <= lines.max(ANSWERS_MAX) + 1, "{told} answers to {lines} lines");
    for line in text.lines() {
        serde_json::from_str::<serde_json::Value>(line).unwrap_or_else(|why| panic!("{line:?}: {why}"));
    }
}
