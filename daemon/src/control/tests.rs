//! What is asked on the control socket, and who is served.

use super::*;

/// A port in a folder of its own, served by hand: what the loop would do, step by step.
struct Bench {
    port: ControlPort,
    folder: tempfile::TempDir,
}

impl Bench {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        Bench { port: ControlPort::bind(&folder.path().join("control.sock")).unwrap(), folder }
    }

    fn connect(&self) -> UnixStream {
        UnixStream::connect(self.folder.path().join("control.sock")).unwrap()
    }

    /// One turn of the loop with every descriptor ready; each command is answered with its own name.
    fn turn(&mut self) {
        let mut room = Room::whole(8, 1 << 20);
        let (mut interests, mut events) = (Vec::new(), Vec::new());
        self.port.ready(LISTENER, true, false, &mut room, &mut events);
        let tokens: Vec<u64> = self.port.clients.keys().copied().collect();
        for token in tokens {
            self.port.ready(token, true, true, &mut room, &mut events);
        }
        for (asker, command) in self.port.commands() {
            let did = command.verb.question()["verb"].clone();
            let answer = match command.volume {
                Some(volume) => json!({ "did": did, "to": volume }),
                None => json!({ "did": did }),
            };
            self.port.answer(asker, &answer);
        }
        self.port.send();
        self.port.interests(&mut interests);
    }
}

/// Sends `input`, ends it, and compares everything that comes back, line by line, by how each line starts.
fn check(input: &[u8], expected: &[&str]) {
    let mut bench = Bench::new();
    let mut client = bench.connect();
    client.set_nonblocking(true).unwrap();
    let mut sent = 0;
    let mut answers = String::new();
    for _ in 0..200 {
        if sent < input.len() {
            match client.write(&input[sent..]) {
                Ok(count) => sent += count,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(_) => sent = input.len(), // closed upon us: that is an answer too
            }
        } else {
            let _ = client.shutdown(std::net::Shutdown::Write);
        }
        bench.turn();
    }
    client.set_nonblocking(false).unwrap();
    let mut piece = Vec::new();
    let _ = client.read_to_end(&mut piece); // a reset after the answers is fine: what arrived before counts
    answers.push_str(std::str::from_utf8(&piece).unwrap());
    let lines: Vec<&str> = answers.lines().collect();
    assert_eq!(lines.len(), expected.len(), "{answers}");
    for (line, start) in lines.iter().zip(expected) {
        assert!(line.starts_with(start), "{line:?} does not start with {start:?}");
    }
    assert!(bench.port.clients.is_empty(), "the client has gone and is still held");
}

#[test]
fn every_verb_is_answered_in_order() {
    check(
        b"{\"verb\":\"status\"}\n{\"verb\":\"curve\"}\n{\"verb\":\"drain\"}\n{\"verb\":\"cancel-drain\"}\n",
        &["{\"did\":\"status\"}", "{\"did\":\"curve\"}", "{\"did\":\"drain\"}", "{\"did\":\"cancel-drain\"}"],
    );
}

#[test]
fn a_command_may_name_the_volume_that_is_meant() {
    check(
        b"{\"verb\":\"drain\",\"volume\":\"home\"}\n{\"verb\":\"drain\",\"volume\":null}\n{\"verb\":\"drain\",\"volume\":7}\n",
        &["{\"did\":\"drain\",\"to\":\"home\"}", "{\"did\":\"drain\"}", "{\"error\":\"\\\"volume\\\" is no name"],
    );
}

#[test]
fn what_is_not_understood_is_refused_and_the_next_line_served() {
    check(
        b"{\"verb\":\"format\"}\nhello\n{\"verb\":3}\n[]\n\xff\xfe\n\n{\"verb\":\"status\"}\n",
        &[
            "{\"error\":\"unknown verb \\\"format\\\"",
            "{\"error\":\"not a JSON object",
            "{\"error\":\"no \\\"verb\\\"",
            "{\"error\":\"no \\\"verb\\\"",
            "{\"error\":\"not a JSON object",
            "{\"error\":\"not a JSON object",
            "{\"did\":\"status\"}",
        ],
    );
}

#[test]
fn more_commands_than_can_be_answered_end_the_conversation() {
    let mut expected = vec!["{\"did\":\"status\"}"; ANSWERS_MAX];
    expected.push("{\"error\":\"more than 16 commands at once\"}");
    check("{\"verb\":\"status\"}\n".repeat(ANSWERS_MAX + 5).as_bytes(), &expected);
}

#[test]
fn a_line_without_end_is_cut_off() {
    check(&vec![b'{'; 1 << 20], &["{\"error\":\"a line of more than 65536 bytes\"}"]);
}

#[test]
fn nesting_without_end_is_refused() {
    let mut deep = vec![b'['; 60_000];
    deep.push(b'\n');
    check(&deep, &["{\"error\":\"not a JSON object"]);
}

#[test]
fn a_silent_client_makes_room_and_where_all_wait_for_answers_one_too_many_is_closed() {
    let mut bench = Bench::new();
    let mut clients: Vec<UnixStream> = (0..=CLIENTS_MAX).map(|_| bench.connect()).collect();
    bench.turn();
    assert_eq!(bench.port.clients.len(), CLIENTS_MAX);
    let mut silent = clients.remove(0);
    assert_eq!(silent.read(&mut [0; 1]).unwrap(), 0, "closed: it came first and has said nothing");
    clients.iter_mut().for_each(|client| client.write_all(b"{\"verb\": \"status\"}\n").unwrap());
    let mut one_too_many = bench.connect();
    bench.turn();
    assert_eq!(bench.port.clients.len(), CLIENTS_MAX);
    assert_eq!(one_too_many.read(&mut [0; 1]).unwrap(), 0, "closed: everybody else waits for an answer");
}

/// As when a volume hangs, and each of those who asked has lost patience.
#[test]
fn those_who_have_gone_make_room_although_their_answers_are_still_to_come() {
    let mut bench = Bench::new();
    let (mut room, mut events) = (Room::whole(8, 1 << 20), Vec::new());
    let mut clients: Vec<UnixStream> = (0..CLIENTS_MAX).map(|_| bench.connect()).collect();
    bench.port.ready(LISTENER, true, false, &mut room, &mut events);
    clients.iter_mut().for_each(|client| client.write_all(b"{\"verb\": \"drain\"}\n").unwrap());
    // One of them has said everything, and waits.
    let mut waits = clients.swap_remove(3);
    waits.shutdown(std::net::Shutdown::Write).unwrap();
    drop(clients);
    let mut other = bench.connect();
    bench.port.ready(LISTENER, true, false, &mut room, &mut events);
    let unanswered = bench.port.commands();
    assert_eq!((unanswered.len(), bench.port.clients.len()), (CLIENTS_MAX, 2), "what they asked for is done all the same");
    other.write_all(b"{\"verb\": \"status\"}\n").unwrap();
    bench.turn();
    let mut line = [0; 17];
    other.read_exact(&mut line).unwrap();
    assert_eq!(&line, b"{\"did\":\"status\"}\n");
    for (asker, _) in unanswered {
        bench.port.answer(asker, &json!({ "did": "late" }));
    }
    bench.port.send();
    bench.port.interests(&mut Vec::new());
    let mut said = String::new();
    waits.read_to_string(&mut said).unwrap();
    assert_eq!(said, "{\"did\":\"late\"}\n");
}

/// Who reads nothing is asked for room by each who comes, and has always asked for more by then.
#[test]
fn however_many_come_those_who_read_no_answer_hold_no_more_than_theirs_and_get_all_of_them_in_the_end() {
    const ROUNDS: usize = 6;
    let mut bench = Bench::new();
    let (mut room, mut events) = (Room::whole(8, 1 << 20), Vec::new());
    // A few fill a socket.
    let answer = json!({ "did": "x".repeat(64 << 10) });
    let longest = answer.to_string().len() + 1;
    // What the loop would do: only what is watched is ready.
    let mut turn = |port: &mut ControlPort| {
        port.ready(LISTENER, true, false, &mut room, &mut events);
        let watched: Vec<(u64, (bool, bool))> = port.clients.iter().map(|(token, client)| (*token, client.listening)).collect();
        for (token, (readable, writable)) in watched {
            port.ready(token, readable, writable, &mut room, &mut events);
        }
        for (asker, _) in port.commands() {
            port.answer(asker, &answer);
        }
        port.send();
        port.interests(&mut Vec::new());
        let held = port.clients.values().map(|client| {
            let answers = client.answers.iter().flatten().map(String::len);
            (client.unsent.len() + answers.sum::<usize>(), client.unsent.len())
        });
        held.max().unwrap_or_default()
    };
    let ask = |client: &mut UnixStream, times: usize| client.write_all("{\"verb\":\"status\"}\n".repeat(times).as_bytes()).unwrap();
    let mut clients: Vec<UnixStream> = (0..CLIENTS_MAX).map(|_| bench.connect()).collect();
    let mut patient = clients.swap_remove(5);
    ask(&mut patient, ANSWERS_MAX);
    for _ in 0..ROUNDS {
        clients.iter_mut().for_each(|client| ask(client, ANSWERS_MAX));
        let mut others: Vec<UnixStream> = (0..8).map(|_| bench.connect()).collect();
        let (held, unsent) = turn(&mut bench.port);
        assert!(held <= ANSWERS_MAX * longest && unsent <= longest, "{held} and {unsent} bytes");
        assert!(bench.port.clients.values().all(|client| !client.ended), "what it asks for meanwhile waits in its socket");
        others.iter_mut().for_each(|other| assert_eq!(other.read(&mut [0; 1]).unwrap(), 0, "closed: everybody waits"));
    }
    patient.set_nonblocking(true).unwrap();
    let (mut said, mut piece) = (0, vec![0; 1 << 20]);
    for wanted in [ANSWERS_MAX * longest, (ANSWERS_MAX + 1) * longest] {
        for _ in 0..10_000 {
            match patient.read(&mut piece) {
                Ok(0) => panic!("it was closed"),
                Ok(count) => said += count,
                Err(error) => assert_eq!(error.kind(), io::ErrorKind::WouldBlock),
            }
            turn(&mut bench.port);
        }
        assert_eq!(said, wanted);
        // It is heard again.
        ask(&mut patient, 1);
    }
}

#[test]
fn one_that_has_said_everything_is_watched_again_when_there_is_something_to_send() {
    let mut bench = Bench::new();
    let mut client = bench.connect();
    client.write_all(b"{\"verb\": \"status\"}\n").unwrap();
    client.shutdown(std::net::Shutdown::Write).unwrap();
    let (mut room, mut events) = (Room::whole(8, 1 << 20), Vec::new());
    bench.port.ready(LISTENER, true, false, &mut room, &mut events);
    let token = LISTENER + 1;
    (0..2).for_each(|_| bench.port.ready(token, true, false, &mut room, &mut events));
    let watched = |port: &mut ControlPort| {
        let mut interests = Vec::new();
        port.interests(&mut interests);
        interests.into_iter().rfind(|interest| interest.token == token).map(|interest| (interest.readable, interest.writable))
    };
    // Its end of the conversation is readable for ever.
    assert_eq!(watched(&mut bench.port), Some((false, false)));
    let [(asker, _)] = bench.port.commands()[..] else { panic!("one command") };
    bench.port.answer(asker, &json!({ "did": "it" }));
    bench.port.send();
    // It is closed as soon as the loop watches it no more.
    assert_eq!(watched(&mut bench.port), Some((false, false)));
    let mut said = String::new();
    client.read_to_string(&mut said).unwrap();
    assert_eq!(said, "{\"did\":\"it\"}\n");
}

#[test]
fn a_listener_that_has_no_descriptor_left_rests_for_a_second() {
    let mut port = Bench::new().port;
    let mut interests = Vec::new();
    port.interests(&mut interests);
    port.listen(false);
    let now = Instant(90 << 30);
    assert!(port.deadline().is_some_and(|deadline| deadline <= now));
    port.tick(now);
    assert_eq!(port.deadline(), None);
    port.listen(false);
    assert_eq!(port.deadline(), Some(now + TICK));
    port.tick(now + engine_time::Duration(1));
    assert!(port.rests);
    port.interests(&mut interests);
    let heard: Vec<bool> = interests.iter().map(|interest| interest.readable).collect();
    assert_eq!(heard, [true, false, true, false]);
}

#[test]
fn a_socket_left_behind_is_taken_over_and_nothing_else() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("control.sock");
    drop(UnixListener::bind(&path).unwrap()); // as after kill -9: a name without a listener
    let port = ControlPort::bind(&path).unwrap();
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    assert!(ControlPort::bind(&path).err().unwrap().contains("another tidegate"));
    drop(port);
    assert!(!path.exists());

    std::fs::write(&path, "a letter").unwrap();
    assert!(ControlPort::bind(&path).err().unwrap().contains("is no socket"));
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "a letter");
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1, "nothing else is left behind");
}

#[test]
fn what_a_killed_process_of_our_number_left_is_in_nobodys_way() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("control.sock");
    let (folder, inner) = draft(&path);
    std::fs::create_dir(&folder).unwrap();
    drop(UnixListener::bind(&inner).unwrap());
    let _listener = listen(&path).expect("the place is free");
    assert!(!folder.exists() && UnixStream::connect(&path).is_ok());
}
