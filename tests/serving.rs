//! Ways to be served: TLS, names, read-only, what a service manager hands over, one client on standard input.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::path::Path;

use crate::common::daemon::Daemon;
use crate::common::{chance::Chance, folder, pki, text, tool, volume};

fn tidegate() -> &'static str {
    env!("CARGO_BIN_EXE_tidegate")
}

/// `localhost` and the port of a `ready:` URI: certificates are for names.
fn port(daemon: &Daemon) -> &str {
    daemon.uri.trim_end_matches('/').rsplit_once(':').expect("a port").1
}

/// nbdsh takes the first python3 it finds; libnbd's module belongs to the system's.
fn nbdsh(arguments: &[&str]) {
    tool::run("env", &[&["PATH=/usr/bin:/bin", "nbdsh"], arguments].concat()).succeeds();
}

#[test]
fn tls_is_required_on_every_tcp_connection_once_there_is_a_certificate() {
    let folder = folder();
    let (dir, pki) = (folder.path().join("volume"), folder.path().join("pki"));
    pki::write(&pki);
    let file = |name: &str| text(&pki.join(name)).to_owned();
    let (cert, key, ca) = (file("server-cert.pem"), file("server-key.pem"), file("ca-cert.pem"));
    let flags = ["--nbd", "0.0.0.0:0", "--tls-cert", &cert, "--tls-key", &key, "--tls-client-ca", &ca, "--name", "disk"];
    tool::tidegate(&["create", "--dir", text(&dir), "--origin-size", "64MiB", "--cache-size", "64MiB"]).succeeds();
    fs::remove_file(dir.join("config.toml")).unwrap();
    let daemon = Daemon::start(&dir, &[&["up", "--dir", text(&dir)], &flags[..]].concat());
    // On every address: none that could be connected to.
    let host = tool::run("uname", &["-n"]).succeeds();
    let place = format!("nbds://{}:", host.trim_end());
    assert!(daemon.uri.starts_with(&place), "{}", daemon.uri);
    assert!(daemon.greeting.iter().any(|line| line.starts_with("note: 0.0.0.0:")), "{:?}", daemon.greeting);

    let port = daemon.uri.trim_end_matches("/disk").rsplit_once(':').expect("a port").1;
    let uri = format!("nbds://localhost:{port}/disk?tls-certificates={}", text(&pki));
    let (original, copy) = (folder.path().join("original"), folder.path().join("copy"));
    fs::write(&original, Chance::new(3).bytes(64 << 20)).unwrap();
    tool::run("nbdcopy", &["--flush", text(&original), &uri]).succeeds();
    tool::run("nbdcopy", &[&uri, text(&copy)]).succeeds();
    tool::run("cmp", &[text(&original), text(&copy)]).succeeds();
    for refused in [format!("nbd://localhost:{port}/disk"), format!("nbds://localhost:{port}/disk")] {
        assert_ne!(tool::run("nbdinfo", &[&refused]).code, Some(0), "without TLS, and without a certificate");
    }
    daemon.stop();

    // The first run has written it all down.
    let daemon = Daemon::up(&dir);
    assert!(daemon.uri.starts_with(&place) && daemon.uri.ends_with("/disk"), "{}", daemon.uri);
    daemon.stop();
}

#[test]
fn another_server_can_be_a_client_over_tls() {
    let folder = volume("48MiB", "64MiB", "");
    let pki = folder.path().join("pki");
    pki::write(&pki);
    let file = |name: &str| text(&pki.join(name)).to_owned();
    let (cert, key) = (file("server-cert.pem"), file("server-key.pem"));
    let daemon =
        Daemon::start(folder.path(), &["up", "--dir", text(folder.path()), "--nbd", "127.0.0.1:0", "--tls-cert", &cert, "--tls-key", &key]);
    let served = format!("nbds://localhost:{}/?tls-certificates={}", port(&daemon), text(&pki));
    // nbdkit serves what it reads from us to a client of its own.
    let inner = "PATH=/usr/bin nbdsh -u \"$uri\" -c 'h.pwrite(b\"tide\" * 1024, 8192)' -c 'h.flush()' \
        -c 'assert h.pread(512, 8192) == b\"tide\" * 128'";
    let (port, pki) = (format!("port={}", port(&daemon)), format!("tls-certificates={}", text(&pki)));
    tool::run("nbdkit", &["-U", "-", "nbd", "hostname=localhost", &port, "tls=require", &pki, "--run", inner]).succeeds();
    let connect = format!("h.connect_uri('{served}')");
    nbdsh(&["-c", "h.set_uri_allow_local_file(True)", "-c", &connect, "-c", "assert h.pread(512, 8192) == b'tide' * 128"]);
    daemon.stop();
}

#[test]
fn a_read_only_volume_is_read_and_never_changed() {
    let folder = volume("48MiB", "64MiB", "");
    let daemon = Daemon::up(folder.path());
    daemon.connect().write(0, &[7; 4096]).unwrap();
    daemon.stop();
    fs::write(folder.path().join("config.toml"), "[export]\nread_only = true\ndescription = \"kept\"\n").unwrap();
    let daemon = Daemon::up(folder.path());
    let mut client = daemon.connect();
    client.expect(0, &[7; 4096]);
    assert!(client.write(0, &[8; 4096]).unwrap_err().to_string().contains("error 1"), "EPERM");
    client.expect(0, &[7; 4096]);
    let info = tool::run("nbdinfo", &["--json", &daemon.uri]).succeeds();
    assert!(info.contains("\"is_read_only\": true") && info.contains("\"description\": \"kept\""), "{info}");
    drop(client);
    daemon.stop();
}

#[test]
fn a_plain_tcp_address_is_served_on_loopback_alone_and_with_a_note() {
    let folder = volume("48MiB", "64MiB", "");
    let dir = text(folder.path());
    let refused = tool::tidegate(&["up", "--dir", dir, "--nbd", "0.0.0.0:0"]);
    assert!(refused.code == Some(2) && refused.stderr.contains("needs TLS"), "{refused}");
    let daemon = Daemon::start(folder.path(), &["up", "--dir", dir, "--nbd", "tcp:127.0.0.1:0"]);
    let notes: Vec<&String> = daemon.greeting.iter().filter(|line| line.contains("plain text")).collect();
    assert!(notes.len() == 1 && notes[0].starts_with("note: "), "{:?}", daemon.greeting);
    daemon.stop();
    let daemon = Daemon::up(folder.path());
    assert!(!daemon.greeting.iter().any(|line| line.contains("plain text")), "a Unix socket needs no note: {:?}", daemon.greeting);
    daemon.stop();
}

#[test]
fn who_asks_for_another_name_is_refused_and_a_name_is_never_a_path() {
    let folder = volume("48MiB", "64MiB", "[export]\nname = \"disk 7\"\n");
    let daemon = Daemon::up(folder.path());
    assert!(daemon.uri.starts_with("nbd+unix:///disk%207?socket="), "{}", daemon.uri);
    tool::run("nbdinfo", &[&daemon.uri]).succeeds();
    tool::run("nbdinfo", &[&daemon.uri.replace("disk%207", "")]).succeeds();
    for other in ["disk", "DISK%207", "..%2Fdisk%207", "%2Fetc%2Fpasswd", "disk%207%20"] {
        assert_ne!(tool::run("nbdinfo", &[&daemon.uri.replace("disk%207", other)]).code, Some(0), "{other}");
    }
    daemon.stop();
}

#[test]
fn the_map_of_tiers_follows_a_block_from_memory_to_the_origin() {
    let folder = volume("64MiB", "64MiB", "");
    let daemon = Daemon::up(folder.path());
    let mut client = daemon.connect();
    let map = || {
        let map = tool::run("nbdinfo", &["--map=tidegate:tier", &daemon.uri]).succeeds();
        map.lines().map(|line| line.split_whitespace().take(3).map(str::to_owned).collect::<Vec<_>>()).collect::<Vec<_>>()
    };
    let rows = |rows: &[[u64; 3]]| rows.iter().map(|row| row.map(|field| field.to_string()).to_vec()).collect::<Vec<_>>();
    let with = |tier| rows(&[[0, 1 << 20, 0], [1 << 20, 64 << 10, tier], [(1 << 20) + (64 << 10), (63 << 20) - (64 << 10), 0]]);
    assert_eq!(map(), rows(&[[0, 64 << 20, 0]]));
    client.write(1 << 20, &[5; 64 << 10]).unwrap();
    let written = map();
    assert!(written == with(3) || written == with(2), "in memory until the engine's own flush: {written:?}");
    client.flush().unwrap();
    assert_eq!(map(), with(2));
    tool::tidegate(&["drain", "--dir", text(folder.path())]).succeeds();
    assert_eq!(map(), with(1));
    // A prefetch brings the rest of a neighbour from the origin.
    nbdsh(&["-u", &daemon.uri, "-c", "h.cache(1 << 20, 2 << 20)", "-c", "h.cache(4096, 0)", "-c", "h.flush()"]);
    let cached = map();
    assert!(cached.contains(&rows(&[[2 << 20, 1 << 20, 1]])[0]) && cached[0] == rows(&[[0, 4096, 1]])[0], "{cached:?}");
    drop(client);
    daemon.stop();
}

#[test]
fn x5_a_flush_on_one_connection_covers_what_the_others_wrote() {
    let folder = volume("48MiB", "64MiB", "");
    let daemon = Daemon::up(folder.path());
    let mut clients: Vec<_> = (0..4).map(|_| daemon.connect()).collect();
    for (number, client) in clients.iter_mut().enumerate() {
        client.write(number as u64 * 8192, &[number as u8 + 1; 4096]).unwrap();
    }
    clients[3].flush().unwrap();
    // Each sees at once what the others have, and so does the next life.
    clients[0].expect(3 * 8192, &[4; 4096]);
    daemon.kill();
    let daemon = Daemon::up(folder.path());
    let mut client = daemon.connect();
    (0..4).for_each(|number| client.expect(number * 8192, &[number as u8 + 1; 4096]));
    drop(client);
    daemon.stop();
}

#[test]
fn x9_bytes_of_a_client_that_did_not_negotiate_sizes_survive_a_crash() {
    let folder = volume("48MiB", "64MiB", "");
    let daemon = Daemon::up(folder.path());
    let mut client = daemon.connect(); // asks for no block sizes
    let data = Chance::new(11).bytes(70_001);
    client.write(1_000_003, &data).unwrap();
    client.write(1_000_500, &[7]).unwrap();
    client.flush().unwrap();
    daemon.kill();
    let daemon = Daemon::up(folder.path());
    let mut client = daemon.connect();
    let mut expect = data;
    expect[497] = 7;
    client.expect(1_000_003, &expect);
    client.expect(1_000_000, &[0; 3]);
    client.expect(1_070_004, &[0; 100]);
    drop(client);
    daemon.stop();
}

/// Requests with extended headers, by hand: libnbd has them only in later versions.
struct Extended(UnixStream);

impl Extended {
    fn connect(daemon: &Daemon) -> Extended {
        let mut stream = UnixStream::connect(daemon.socket()).unwrap();
        let option = |number: u32, data: &[u8]| [b"IHAVEOPT", &number.to_be_bytes()[..], &(data.len() as u32).to_be_bytes(), data].concat();
        let context = [&[0; 4][..], &1u32.to_be_bytes(), &15u32.to_be_bytes(), b"base:allocation"].concat();
        let hello = [3u32.to_be_bytes().to_vec(), option(11, &[]), option(10, &context), option(7, &[0, 0, 0, 0, 0, 1, 0, 3])].concat();
        stream.write_all(&hello).unwrap();
        // Greeting; ACK; context and ACK; sizes, export and ACK.
        let mut answers = vec![0; 18 + 20 + (20 + 19) + 20 + (20 + 12) + (20 + 14) + 20];
        stream.read_exact(&mut answers).unwrap();
        Extended(stream)
    }

    /// The payload of the only chunk of the reply, which must be of this kind.
    fn ask(&mut self, command: u16, offset: u64, length: u64, kind: u16) -> Vec<u8> {
        let head = [&0x21e4_1c71u32.to_be_bytes()[..], &[0, 0], &command.to_be_bytes(), &77u64.to_be_bytes()].concat();
        self.0.write_all(&[&head[..], &offset.to_be_bytes(), &length.to_be_bytes()].concat()).unwrap();
        let mut reply = [0; 32];
        self.0.read_exact(&mut reply).unwrap();
        assert_eq!(reply[..8], [&0x6e8a_278cu32.to_be_bytes()[..], &[0, 1], &kind.to_be_bytes()].concat());
        assert_eq!(reply[8..24], [77u64.to_be_bytes(), offset.to_be_bytes()].concat());
        let mut payload = vec![0; u64::from_be_bytes(reply[24..].try_into().unwrap()) as usize];
        self.0.read_exact(&mut payload).unwrap();
        payload
    }
}

#[test]
fn e_requests_of_more_than_4_gib_are_one_request() {
    let folder = volume("8GiB", "64MiB", "");
    let daemon = Daemon::up(folder.path());
    let mut client = daemon.connect();
    for offset in [0, 5 << 30, (7 << 30) + (1 << 29)] {
        client.write(offset, &[9; 4096]).unwrap();
    }
    let mut extended = Extended::connect(&daemon);
    let (trim, zeroes, block_status) = (4, 6, 7);
    assert_eq!(extended.ask(zeroes, 4096, (7 << 30) - 4096, 0), b"");
    client.expect(0, &[9; 4096]);
    client.expect(5 << 30, &[0; 4096]);
    assert_eq!(extended.ask(trim, 1 << 30, 7 << 30, 0), b"");
    client.expect((7 << 30) + (1 << 29), &[0; 4096]);
    let status = extended.ask(block_status, 0, 8 << 30, 6);
    let words: Vec<u64> = status[8..].chunks(8).map(|word| u64::from_be_bytes(word.try_into().unwrap())).collect();
    assert_eq!(words, [4096, 0, (4 << 30) - 4096, 3], "of as much as is looked at at once");
    drop((client, extended));
    daemon.stop();
}

#[test]
fn one_client_on_standard_input_is_served_and_then_the_volume_stops() {
    let folder = volume("48MiB", "64MiB", "");
    let dir = text(folder.path());
    let connect = format!("h.connect_command(['{}', 'up', '--dir', '{dir}', '--stdio'])", tidegate());
    nbdsh(&["-c", &connect, "-c", "h.pwrite(b'tide' * 1024, 4096)", "-c", "h.shutdown()"]);
    // Its end is awaited by the next start: the lock is held until everything is durable. Nothing was flushed.
    let daemon = loop {
        match tool::tidegate(&["check", "--cache", text(&folder.path().join("cache.img"))]) {
            busy if busy.code == Some(75) => std::thread::yield_now(),
            checked => {
                checked.succeeds();
                break Daemon::up(folder.path());
            }
        }
    };
    daemon.connect().expect(4096, &b"tide".repeat(1024));
    daemon.stop();
    let refused = tool::tidegate(&["up", "--dir", dir, "--stdio"]);
    assert!(
        refused.code == Some(73) && refused.stderr.lines().count() == 1 && refused.stderr.contains("--stdio: standard input"),
        "{refused}"
    );
}

#[test]
fn libnbds_tools_start_a_volume_for_themselves() {
    let folder = volume("48MiB", "64MiB", "");
    // Square brackets: the tool hands its own listening socket over, and ends the daemon with SIGTERM.
    let command = ["[", tidegate(), "up", "--dir", text(folder.path()), "]"];
    let (original, copy) = (folder.path().join("original"), folder.path().join("copy"));
    fs::write(&original, Chance::new(5).bytes(48 << 20)).unwrap();
    tool::run("nbdcopy", &[&["--flush", "--", text(&original)], &command[..]].concat()).succeeds();
    let json = tool::run("nbdinfo", &[&["--json", "--"], &command[..]].concat()).succeeds();
    assert!(json.contains("\"export-size\": 50331648"), "{json}");
    tool::run("nbdcopy", &[&["--"], &command[..], &[text(&copy)]].concat()).succeeds();
    tool::run("cmp", &[text(&original), text(&copy)]).succeeds();
}

/// Becomes tidegate, with a listening socket handed over as descriptor 3.
const ACTIVATE: &str = "import os, socket, sys\n\
    s = socket.socket(socket.AF_UNIX if '/' in sys.argv[1] else socket.AF_INET)\n\
    s.bind(sys.argv[1] if '/' in sys.argv[1] else (sys.argv[1], 0))\n\
    if sys.argv[2] == 'listen': s.listen()\n\
    os.dup2(s.fileno(), 3)\n\
    os.set_inheritable(3, True)\n\
    os.environ.update(LISTEN_FDS='1', LISTEN_PID=str(os.getpid()))\n\
    os.execv(sys.argv[3], sys.argv[3:])\n";

#[test]
fn sockets_of_a_service_manager_stand_in_for_the_address_and_outlive_the_daemon() {
    let folder = volume("48MiB", "64MiB", "");
    let dir = text(folder.path()).to_owned();
    let socket = folder.path().join("activated.sock");
    let start =
        |address: &str| Daemon::start_by("python3", folder.path(), &["-c", ACTIVATE, address, "listen", tidegate(), "up", "--dir", &dir]);
    let daemon = start(text(&socket));
    assert_eq!(daemon.socket(), socket);
    let noted = |daemon: &Daemon| daemon.greeting.iter().any(|line| line.starts_with("note: ") && line.contains("SocketMode=0600"));
    assert!(noted(&daemon), "others than its owner may connect: {:?}", daemon.greeting);
    assert!(!folder.path().join("nbd.sock").exists(), "only what was handed over");
    daemon.connect().write(0, &[1; 512]).unwrap();
    daemon.stop();
    assert!(socket.exists(), "it belongs to the manager");

    let daemon = start("127.0.0.1");
    assert!(daemon.uri.starts_with("nbd://127.0.0.1:"), "{}", daemon.uri);
    tool::run("nbdinfo", &[&daemon.uri]).succeeds();
    daemon.stop();

    for (address, how, says) in [("127.0.0.1", "not", "descriptor 3 does not listen"), ("0.0.0.0", "listen", "needs TLS")] {
        let refused = tool::run("python3", &["-c", ACTIVATE, address, how, tidegate(), "up", "--dir", &dir]);
        assert!(refused.code == Some(73) && refused.stderr.contains(says) && refused.stderr.lines().count() == 1, "{refused}");
    }
}

#[test]
fn systemd_is_told_when_the_volume_serves_and_the_pid_file_is_there_as_long() {
    let folder = volume("48MiB", "64MiB", "");
    let (socket, pid_file) = (folder.path().join("notify"), folder.path().join("pid"));
    let manager = UnixDatagram::bind(&socket).unwrap();
    let notify = format!("NOTIFY_SOCKET={}", text(&socket));
    let arguments = [&notify, tidegate(), "up", "--dir", text(folder.path()), "--pid-file", text(&pid_file)];
    let daemon = Daemon::start_by("env", folder.path(), &arguments);
    let mut message = [0; 256];
    let count = manager.recv(&mut message).unwrap();
    let expect = format!("READY=1\nMAINPID={}\n", daemon.pid());
    assert_eq!(String::from_utf8_lossy(&message[..count]), expect);
    assert_eq!(fs::read_to_string(&pid_file).unwrap(), format!("{}\n", daemon.pid()));

    // A second one is refused and leaves the first one's file alone.
    let second = tool::tidegate(&["up", "--dir", text(folder.path()), "--pid-file", text(&pid_file)]);
    assert_eq!(second.code, Some(75), "{second}");
    assert_eq!(fs::read_to_string(&pid_file).unwrap(), format!("{}\n", daemon.pid()));
    daemon.stop();
    assert!(!pid_file.exists());

    let nowhere = Path::new("/nowhere/pid");
    let refused = tool::tidegate(&["up", "--dir", text(folder.path()), "--pid-file", text(nowhere)]);
    assert!(refused.code == Some(73) && refused.stderr.contains("--pid-file /nowhere/pid"), "{refused}");
}

/// A disk that is to stand still: what has no motor is told nothing and says so; what is named and has none is refused.
#[test]
fn an_origin_without_a_motor_is_served_with_a_note_and_a_named_one_is_refused() {
    let folder = volume("48MiB", "64MiB", "[spin]\nmotor = \"auto\"\n");
    let daemon = Daemon::up(folder.path());
    let status = daemon.status();
    // Where the machine of the tests has a disk with a motor below its files, that one is told.
    match status.get("spin").filter(|spin| spin.is_object()) {
        None => {
            let is_said = daemon.greeting.iter().any(|line| line.ends_with(": nothing is told to stand still"));
            assert!(is_said, "{:?}", daemon.greeting);
        }
        Some(spin) => assert!(spin["disk"].as_str().is_some_and(|disk| disk.starts_with("/dev/")), "{spin}"),
    }
    let mut client = daemon.connect();
    let written = vec![7; 8192];
    client.write(4096, &written).unwrap();
    client.flush().unwrap();
    assert_eq!(client.read(4096, 8192).unwrap(), written);
    daemon.stop();

    let config = fs::read_to_string(folder.path().join("config.toml")).unwrap();
    fs::write(folder.path().join("config.toml"), config.replace("motor = \"auto\"", "motor = \"/dev/zero\"")).unwrap();
    let refused = tool::tidegate(&["up", "--dir", text(folder.path())]);
    assert_eq!(refused.code, Some(78), "{}", refused.stderr);
    let place = folder.path().join("config.toml").display().to_string();
    assert_eq!(
        refused.stderr,
        format!(
            "tidegate: {place}:2:1: /dev/zero has no motor that could be told to stop; name another disk as `motor` below [spin], or none\n"
        )
    );
}

/// What clients ask is written down, and the simulator reads it.
#[test]
fn a_recording_has_every_request_and_the_simulator_reads_it() {
    let folder = volume("48MiB", "64MiB", "[limits]\nfront_threads = 1\n");
    let (dir, file) = (folder.path(), folder.path().join("day.tgtrace"));
    let daemon = Daemon::start(dir, &["up", "--dir", text(dir), "--record", text(&file)]);
    let mut client = daemon.connect();
    for block in 0..100 {
        client.write(block * 4096, &[1; 4096]).unwrap();
    }
    client.flush().unwrap();
    for block in 0..100 {
        client.read(block % 10 * 4096, 4096).unwrap();
    }
    drop(client);
    let (ended, said) = {
        daemon.terminate();
        daemon.ended()
    };
    assert!(ended.success() && said.contains("--record: 201 requests in "), "{said}");
    assert_eq!(fs::metadata(&file).unwrap().len(), 32 + 201 * 24);

    let told = tool::tidegate(&["sim", "policies", text(&file), "--sizes", "10,100", "--json"]).succeeds();
    let told: serde_json::Value = serde_json::from_str(&told).unwrap();
    let accesses = told["rows"][0]["accesses"].as_u64();
    assert_eq!(accesses, Some(200), "{told}");

    let again = tool::tidegate(&["up", "--dir", text(dir), "--record", text(&file)]);
    assert_eq!((again.code, fs::metadata(&file).unwrap().len()), (Some(73), 32 + 201 * 24), "{}", again.stderr);
    assert!(again.stderr.contains("exists; name another file"), "{}", again.stderr);
}
