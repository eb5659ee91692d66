//! Clients that mean no good: raw bytes over a Unix socket, TCP or TLS, so that they can stop anywhere. Also what a process costs, as the
//! kernel counts it.

use std::fs;
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};

use super::chance::Chance;
use super::daemon::Daemon;
use super::{pki, text};

pub const READ: u16 = 0;
pub const WRITE: u16 = 1;
pub const FLUSH: u16 = 3;
pub const TRIM: u16 = 4;
pub const CACHE: u16 = 5;
pub const ZEROES: u16 = 6;
pub const BLOCK_STATUS: u16 = 7;

pub const EXPORT_NAME: u32 = 1;
pub const STARTTLS: u32 = 5;
pub const GO: u32 = 7;
pub const STRUCTURED_REPLY: u32 = 8;
pub const SET_META_CONTEXT: u32 = 10;

const MIB: u64 = 1 << 20;
/// Requests of a hostile client under way.
const DEPTH: u64 = 32;
/// They ask for places in the first part of a volume.
const SPAN: u64 = 64 * MIB;
/// Longer than anything takes; a daemon that is stuck is a failure, not a hang.
const PATIENCE: Duration = Duration::from_secs(120);
/// Who has taken nothing for so long takes no more of what nobody goes on with.
const STANDSTILL: Duration = Duration::from_millis(50);

/// Where a daemon listens, and how to get in.
#[derive(Clone)]
pub enum Door {
    Unix(PathBuf),
    Tcp(u16),
    Tls(u16, Arc<ClientConfig>),
}

/// One connection's bytes.
pub enum Wire {
    Unix(UnixStream),
    Tcp(TcpStream),
    Tls(Box<StreamOwned<ClientConnection, TcpStream>>),
}

impl Door {
    /// A daemon for the volume in `dir`, with the door of this kind: `unix`, `tcp` or `tls`.
    pub fn open(dir: &Path, kind: &str) -> (Daemon, Door) {
        let up = ["up", "--dir", text(dir)];
        if kind == "unix" {
            let daemon = Daemon::up(dir);
            let door = Door::Unix(daemon.socket());
            return (daemon, door);
        }
        let certificates = dir.join("pki");
        let file = |name: &str| text(&certificates.join(name)).to_owned();
        let mut arguments = [&up[..], &["--nbd", "127.0.0.1:0"]].concat();
        let (certificate, key) = (file("server-cert.pem"), file("server-key.pem"));
        if kind == "tls" {
            pki::write(&certificates);
            arguments.extend(["--tls-cert", &certificate, "--tls-key", &key]);
        }
        let daemon = Daemon::start(dir, &arguments);
        let port = daemon.uri.trim_end_matches('/').rsplit_once(':').expect("a port").1.parse().expect("a port");
        let door = match kind {
            "tcp" => Door::Tcp(port),
            "tls" => Door::Tls(port, trusting(&certificates)),
            other => panic!("there is no door of the kind {other}"),
        };
        (daemon, door)
    }

    /// Connects, and says nothing.
    pub fn knock(&self) -> Wire {
        let connected: io::Result<Wire> = match self {
            Door::Unix(path) => UnixStream::connect(path).map(Wire::Unix),
            Door::Tcp(port) | Door::Tls(port, _) => TcpStream::connect(("127.0.0.1", *port)).map(Wire::Tcp),
        };
        let wire = connected.expect("the daemon listens");
        wire.patience(PATIENCE);
        wire
    }

    /// Connects, and shakes hands for simple replies; with TLS where that is asked for.
    pub fn enter(&self) -> io::Result<Wire> {
        self.enter_with(&[option(EXPORT_NAME, b"")], 10)
    }

    /// The same with these options; `answer` bytes come back for them.
    pub fn enter_with(&self, options: &[Vec<u8>], answer: usize) -> io::Result<Wire> {
        let mut wire = self.knock();
        wire.read_exact(&mut [0; 18])?;
        wire.write_all(&3u32.to_be_bytes())?;
        if let Door::Tls(_, config) = self {
            wire = wire.upgrade(config)?;
        }
        wire.write_all(&options.concat())?;
        wire.flush()?;
        wire.read_exact(&mut vec![0; answer])?;
        Ok(wire)
    }
}

impl Wire {
    fn patience(&self, patience: Duration) {
        let set = match self {
            Wire::Unix(stream) => stream.set_read_timeout(Some(patience)).and(stream.set_write_timeout(Some(patience))),
            Wire::Tcp(stream) => stream.set_read_timeout(Some(patience)).and(stream.set_write_timeout(Some(patience))),
            Wire::Tls(stream) => stream.sock.set_read_timeout(Some(patience)),
        };
        set.expect("a time limit");
    }

    fn tcp(&self) -> Option<&TcpStream> {
        match self {
            Wire::Unix(_) => None,
            Wire::Tcp(stream) => Some(stream),
            Wire::Tls(stream) => Some(&stream.sock),
        }
    }

    /// STARTTLS; the handshake of TLS itself happens with the first bytes that follow.
    fn upgrade(mut self, config: &Arc<ClientConfig>) -> io::Result<Wire> {
        self.write_all(&option(STARTTLS, b""))?;
        self.read_exact(&mut [0; 20])?;
        let Wire::Tcp(stream) = self else { panic!("TLS is for TCP") };
        let name = ServerName::try_from("localhost").expect("a name");
        let session = ClientConnection::new(Arc::clone(config), name).map_err(io::Error::other)?;
        Ok(Wire::Tls(Box::new(StreamOwned::new(session, stream))))
    }

    /// Gone at once: a reset where there is one, no goodbye of TLS either.
    pub fn vanish(self) {
        if let Some(stream) = self.tcp() {
            rustix::net::sockopt::set_socket_linger(stream, Some(Duration::ZERO)).expect("an option");
        }
    }

    /// Sends as much as the sockets take without anybody reading; returns how much that was.
    pub fn stuff(&mut self, bytes: &[u8]) -> usize {
        let set = |wire: &Wire, on: bool| match wire {
            Wire::Unix(stream) => stream.set_nonblocking(on),
            Wire::Tcp(stream) => stream.set_nonblocking(on),
            Wire::Tls(stream) => stream.sock.set_nonblocking(on),
        };
        set(self, true).expect("a mode");
        let mut at = 0;
        while at < bytes.len() {
            match self.write(&bytes[at..bytes.len().min(at + (64 << 10))]) {
                Ok(sent) => at += sent,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) => panic!("{error}"),
            }
        }
        set(self, false).expect("a mode");
        at
    }

    /// The same for as long as the daemon goes on reading: it ends when the sockets have taken nothing for [`STANDSTILL`].
    fn stuff_to_a_standstill(&mut self, bytes: &[u8]) -> usize {
        let mut at = self.stuff(bytes);
        while at < bytes.len() && self.takes_more() {
            at += self.stuff(&bytes[at..]);
        }
        at
    }

    fn takes_more(&self) -> bool {
        let fd = match self {
            Wire::Unix(stream) => stream.as_fd(),
            Wire::Tcp(stream) => stream.as_fd(),
            Wire::Tls(stream) => stream.sock.as_fd(),
        };
        let timeout = Timespec::try_from(STANDSTILL).expect("a short time");
        poll(&mut [PollFd::new(&fd, PollFlags::OUT)], Some(&timeout)).expect("a socket") > 0
    }

    /// Has the daemon ended it? What it said before is dropped.
    pub fn is_ended(&mut self) -> bool {
        let mut rest = Vec::new();
        match self.read_to_end(&mut rest) {
            Ok(_) => true,
            Err(error) => !matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut),
        }
    }

    /// The header of a simple reply: error and cookie.
    pub fn simple(&mut self) -> io::Result<(u32, u64)> {
        let mut head = [0; 16];
        self.read_exact(&mut head)?;
        assert_eq!(head[..4], [0x67, 0x44, 0x66, 0x98], "a simple reply");
        Ok((u32::from_be_bytes(head[4..8].try_into().unwrap()), u64::from_be_bytes(head[8..].try_into().unwrap())))
    }
}

impl Read for Wire {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        match self {
            Wire::Unix(stream) => stream.read(bytes),
            Wire::Tcp(stream) => stream.read(bytes),
            Wire::Tls(stream) => stream.read(bytes),
        }
    }
}

impl Write for Wire {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Wire::Unix(stream) => stream.write(bytes),
            Wire::Tcp(stream) => stream.write(bytes),
            Wire::Tls(stream) => stream.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Wire::Unix(stream) => stream.flush(),
            Wire::Tcp(stream) => stream.flush(),
            Wire::Tls(stream) => stream.flush(),
        }
    }
}

fn trusting(certificates: &Path) -> Arc<ClientConfig> {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(certificates.join("ca-cert.pem")).expect("a certificate")).expect("an authority");
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().expect("versions");
    Arc::new(builder.with_root_certificates(roots).with_no_client_auth())
}

/// An option of the handshake.
pub fn option(option: u32, data: &[u8]) -> Vec<u8> {
    let length = u32::try_from(data.len()).expect("options are short");
    [b"IHAVEOPT", &option.to_be_bytes()[..], &length.to_be_bytes(), data].concat()
}

/// GO for the export of this name, without wishes.
pub fn go(name: &[u8]) -> Vec<u8> {
    let length = u32::try_from(name.len()).expect("names are short");
    option(GO, &[&length.to_be_bytes()[..], name, &[0, 0]].concat())
}

/// The options that select `base:allocation`, and the bytes of their answers.
pub fn with_allocation() -> (Vec<Vec<u8>>, usize) {
    let context = b"base:allocation";
    let query = [&[0; 4][..], &1u32.to_be_bytes(), &(context.len() as u32).to_be_bytes(), context].concat();
    let options = vec![option(STRUCTURED_REPLY, b""), option(SET_META_CONTEXT, &query), option(EXPORT_NAME, b"")];
    (options, 20 + (20 + 4 + context.len()) + 20 + 10)
}

/// The header of a request, without flags.
pub fn request(command: u16, cookie: u64, offset: u64, length: u32) -> Vec<u8> {
    let magic = 0x2560_9513_u32.to_be_bytes();
    [&magic[..], &[0, 0], &command.to_be_bytes(), &cookie.to_be_bytes(), &offset.to_be_bytes(), &length.to_be_bytes()].concat()
}

/// A WRITE with its payload.
pub fn write(cookie: u64, offset: u64, payload: &[u8]) -> Vec<u8> {
    [&request(WRITE, cookie, offset, u32::try_from(payload.len()).expect("a payload"))[..], payload].concat()
}

/// One client that is gone in the middle of something.
pub fn vanish(door: &Door, number: u64) {
    let mut chance = Chance::new(number);
    let mut wire = door.enter().unwrap();
    match number % 4 {
        // In the middle of a header.
        0 => {
            let requests: Vec<u8> = (0..DEPTH).flat_map(|cookie| request(READ, cookie, chance.below(SPAN), 4096)).collect();
            wire.write_all(&requests[..requests.len() - 1 - chance.below(27) as usize]).unwrap();
        }
        // In the middle of a payload, small or large.
        1 => {
            let length = if number % 8 == 1 { 8 << 10 } else { 256 << 10 };
            for cookie in 0..DEPTH - 1 {
                wire.write_all(&write(cookie, chance.below(SPAN), &chance.bytes(4096))).unwrap();
            }
            let last = write(9, chance.below(SPAN), &vec![7; length]);
            wire.write_all(&last[..28 + chance.below(length as u64) as usize]).unwrap();
        }
        // In the middle of a reply.
        2 => {
            let length = 512 << chance.below(10);
            wire.stuff(&(0..DEPTH).flat_map(|cookie| request(READ, cookie, chance.below(SPAN), length)).collect::<Vec<_>>());
            let mut some = vec![0; 1 + chance.below(u64::from(length) * 2) as usize];
            wire.read_exact(&mut some).unwrap();
        }
        // With everything at once under way.
        _ => {
            let command = |cookie: u64, place: u64| match cookie % 5 {
                0 => write(cookie, place, &[1; 777]),
                1 => request(ZEROES, cookie, place, 1 << 20),
                2 => request(TRIM, cookie, place, 1 << 20),
                3 => request(CACHE, cookie, place, 1 << 20),
                _ => request(FLUSH, cookie, 0, 0),
            };
            wire.write_all(&(0..DEPTH).flat_map(|cookie| command(cookie, chance.below(SPAN))).collect::<Vec<_>>()).unwrap();
        }
    }
    // TLS sends when it is told to; and every other client says goodbye in its system's way.
    wire.flush().unwrap();
    if chance.below(2) == 0 { wire.vanish() } else { drop(wire) }
}

/// A hundred clients, each of which holds what it can and goes on with nothing; those are as bad as it gets for the daemon's memory.
pub fn hold_what_they_can(door: &Door) -> Vec<Wire> {
    let hold = |number: u64| {
        let mut wire = if number.is_multiple_of(4) { door.knock() } else { door.enter().unwrap() };
        match number % 4 {
            // Half a handshake.
            0 => wire.write_all(&[0, 0, 0, 3]).unwrap(),
            // Reads, and more of them behind; not one reply is taken.
            1 => {
                let length = [4096, 64 << 10, 1 << 20][number as usize % 3];
                let reads = |count| (0..count).flat_map(|cookie| request(READ, cookie, cookie * MIB % SPAN, length));
                wire.stuff_to_a_standstill(&reads(20_000).collect::<Vec<_>>());
            }
            // Almost all of the largest payload there is.
            2 => drop(wire.stuff_to_a_standstill(&write(1, 0, &vec![9; 32 << 20])[..(32 << 20) - 1])),
            // A small write, without its end.
            _ => drop(wire.stuff_to_a_standstill(&write(1, 0, &[9; 60_000])[..59_000])),
        }
        wire
    };
    (0..100).map(hold).collect()
}

/// What a process has at a moment.
#[derive(Clone, Copy, Debug)]
pub struct Cost {
    /// Resident.
    pub bytes: u64,
    pub descriptors: usize,
}

/// What the daemon has now.
pub fn cost(daemon: &Daemon) -> Cost {
    let descriptors = fs::read_dir(format!("/proc/{}/fd", daemon.pid())).expect("a running daemon").count();
    Cost { bytes: in_status(daemon, "VmRSS:"), descriptors }
}

/// The most that it ever had resident, in bytes, since [`forget_peak`].
pub fn peak(daemon: &Daemon) -> u64 {
    in_status(daemon, "VmHWM:")
}

pub fn forget_peak(daemon: &Daemon) {
    fs::write(format!("/proc/{}/clear_refs", daemon.pid()), "5").expect("our own process");
}

fn in_status(daemon: &Daemon, field: &str) -> u64 {
    let status = fs::read_to_string(format!("/proc/{}/status", daemon.pid())).expect("a running daemon");
    let line = status.lines().find_map(|line| line.strip_prefix(field)).expect("the kernel counts it");
    line.trim().trim_end_matches(" kB").parse::<u64>().expect("a number") << 10
}

/// As many descriptors as this process may have: the tests hold thousands of connections.
pub fn raise_descriptors() {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    let most = rustix::process::Rlimit { current: limit.maximum, maximum: limit.maximum };
    rustix::process::setrlimit(rustix::process::Resource::Nofile, most).expect("up to the hard limit anybody may");
}
