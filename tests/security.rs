//! What a running daemon may do, what it may not, and what it never says (the numbers are those of docs/security.md).

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use crate::common::daemon::Daemon;
use crate::common::{CARRIERS, chance::Chance, folder, pki, text, tool, volume};

/// A field of /proc/PID/status, in hexadecimal or decimal as the kernel writes it.
fn field(daemon: &Daemon, name: &str) -> String {
    let status = fs::read_to_string(format!("/proc/{}/status", daemon.pid())).expect("it runs");
    let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(":\t"));
    line.unwrap_or_else(|| panic!("{name} in {status}")).to_owned()
}

/// As a number of one bit per capability.
fn capabilities(daemon: &Daemon, set: &str) -> u64 {
    u64::from_str_radix(&field(daemon, set), 16).expect("hexadecimal")
}

#[test]
fn s5_a_daemon_gives_up_what_it_does_not_need() {
    let folder = volume("32MiB", "48MiB", "");
    let daemon = Daemon::up(folder.path());
    // CAP_DAC_OVERRIDE and CAP_NET_BIND_SERVICE at most.
    for set in ["CapEff", "CapPrm", "CapBnd", "CapInh"] {
        assert_eq!(capabilities(&daemon, set) & !(1 << 1 | 1 << 10), 0, "{set}");
    }
    assert_eq!((field(&daemon, "NoNewPrivs").as_str(), field(&daemon, "Seccomp").as_str()), ("1", "2"), "a filter, and no way round it");
    let threads = fs::read_dir(format!("/proc/{}/task", daemon.pid())).unwrap();
    for thread in threads.map(|thread| thread.unwrap().path()) {
        let status = fs::read_to_string(thread.join("status")).unwrap();
        // The kernel's own threads for a ring make no system calls.
        assert!(status.contains("Seccomp:\t2") || status.starts_with("Name:\tiou-"), "{status}");
    }
    let limits = fs::read_to_string(format!("/proc/{}/limits", daemon.pid())).unwrap();
    let core = limits.lines().find(|line| line.starts_with("Max core file size")).expect("a limit");
    assert_eq!(core.split_whitespace().collect::<Vec<_>>()[4..6], ["0", "0"], "{core}");
    daemon.connect();
    daemon.stop();
}

/// Threads that serve the disks instead of io_uring are no way round it, and it stands in nobody's way: everything that is asked of a volume
/// is asked here.
#[test]
fn s5_threads_of_the_disks_have_given_it_up_too_and_everything_works() {
    for carrier in CARRIERS {
        let folder = volume("32MiB", "48MiB", "");
        let daemon = Daemon::up_by(folder.path(), carrier);
        for thread in fs::read_dir(format!("/proc/{}/task", daemon.pid())).unwrap() {
            let status = fs::read_to_string(thread.unwrap().path().join("status")).unwrap();
            let said = |line: &str| status.lines().any(|found| found == line);
            assert!((said("NoNewPrivs:\t1") && said("Seccomp:\t2")) || status.starts_with("Name:\tiou-"), "{carrier}: {status}");
            assert!(said("CapInh:\t0000000000000000") && !said("CapEff:\t000001ffffffffff"), "{carrier}: {status}");
        }
        let data = Chance::new(11).bytes(3 << 20);
        let mut client = daemon.connect();
        client.write(7 << 20, &data).unwrap();
        client.flush().unwrap();
        client.expect(7 << 20, &data);
        tool::tidegate(&["drain", "--dir", text(folder.path())]).succeeds();
        drop(client);
        daemon.stop();
        let state = fs::read_to_string(folder.path().join("tidegate.state")).unwrap();
        assert!(state.contains("\"dirty\":0"), "{carrier}: it was written at the stop: {state}");
    }
}

#[test]
fn s5_a_debugger_can_be_let_in() {
    let folder = volume("32MiB", "48MiB", "");
    let daemon = Daemon::start(folder.path(), &["up", "--dir", text(folder.path()), "--unconfined"]);
    assert_eq!(field(&daemon, "Seccomp"), "0");
    daemon.stop();
}

#[test]
fn s5_it_runs_without_being_root_and_its_memory_is_not_its_owners() {
    const NOBODY: &str = "65534";
    let folder = folder();
    tool::run("chmod", &["755", text(folder.path())]).succeeds();
    let dir = folder.path().join("volume");
    fs::create_dir(&dir).unwrap();
    tool::run("chown", &[NOBODY, text(&dir)]).succeeds();
    let program = folder.path().join("tidegate");
    fs::copy(env!("CARGO_BIN_EXE_tidegate"), &program).unwrap();
    let run = ["--reuid", NOBODY, "--regid", NOBODY, "--clear-groups", text(&program), "up", "--dir", text(&dir)];
    let create = [&run[..6], &["create", "--dir", text(&dir), "--origin-size", "32MiB", "--cache-size", "48MiB"]].concat();
    tool::run("setpriv", &create).succeeds();
    let daemon = Daemon::start_by("setpriv", &dir, &run);
    assert!(field(&daemon, "Uid").starts_with(NOBODY));
    assert_eq!(capabilities(&daemon, "CapEff"), 0);
    // What the kernel does not let the same user trace belongs to root.
    assert_eq!(fs::metadata(format!("/proc/{}/mem", daemon.pid())).unwrap().uid(), 0);
    daemon.connect();
    daemon.stop();
    assert!(dir.join("tidegate.state").exists());
}

#[test]
fn s9_nothing_it_writes_down_holds_contents_or_keys() {
    let folder = folder();
    let (dir, keys) = (folder.path().join("volume"), folder.path().join("pki"));
    pki::write(&keys);
    let (cert, key) = (keys.join("server-cert.pem"), keys.join("server-key.pem"));
    tool::tidegate(&["create", "--dir", text(&dir), "--origin-size", "32MiB", "--cache-size", "48MiB"]).succeeds();
    fs::remove_file(dir.join("config.toml")).unwrap();
    let flags = ["up", "--dir", text(&dir), "--nbd", "127.0.0.1:0", "--tls-cert", text(&cert), "--tls-key", text(&key)];
    let daemon = Daemon::start(&dir, &flags);
    let uri = daemon.uri.replace("127.0.0.1", "localhost");
    let secret = Chance::new(9).bytes(32 << 20);
    let original = folder.path().join("original");
    fs::write(&original, &secret).unwrap();
    let client = format!("{uri}?tls-certificates={}", text(&keys));
    tool::run("nbdcopy", &["--flush", text(&original), &client]).succeeds();
    // What goes wrong is told too, without what it was about.
    tool::run("nbdcopy", &[text(&original), &uri.replace("nbds", "nbd")]);
    let mut written = daemon.said();
    for arguments in [&["status"][..], &["status", "--json"], &["drain"]] {
        written += &tool::tidegate(&[arguments, &["--dir", text(&dir)]].concat()).succeeds();
    }
    daemon.stop();
    written += &fs::read_to_string(dir.join("tidegate.state")).unwrap();
    written += &fs::read_to_string(dir.join("config.toml")).unwrap();
    holds_nothing_of(&written, &secret, &key);
    let cache = dir.join("cache.img");
    written = tool::tidegate(&["check", "--json", "--cache", text(&cache)]).succeeds();
    holds_nothing_of(&written, &secret, &key);
}

/// Neither as it is nor as hexadecimal digits: eight bytes in a row are no chance.
fn holds_nothing_of(written: &str, secret: &[u8], key: &Path) {
    let pem = fs::read_to_string(key).unwrap();
    for line in pem.lines().filter(|line| !line.starts_with('-')) {
        assert!(!written.contains(line), "a line of the key");
    }
    let digits: String = written.chars().filter(char::is_ascii_hexdigit).collect::<String>().to_lowercase();
    for atom in secret.chunks(512) {
        let start = &atom[..8];
        let hexadecimal: String = start.iter().map(|byte| format!("{byte:02x}")).collect();
        assert!(!written.as_bytes().windows(8).any(|window| window == start) && !digits.contains(&hexadecimal), "contents of the volume");
    }
}
