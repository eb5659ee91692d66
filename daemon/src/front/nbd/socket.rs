//! Listening and connected sockets of both families, never blocking. A killed process's socket file is taken over; a living
//! one's is not.

use std::fs;
use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::net::{IpAddr, Shutdown, TcpListener, TcpStream};
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;

use super::address::Address;
use crate::socket_file::SocketFile;

/// What the kernel may keep for a Unix client that reads slower than we write. The kernel caps it by its own limit.
const SEND_BUFFER_BYTES: libc::c_int = 4 << 20;

/// A TCP client that has said nothing for so many seconds is asked whether its machine is still there, with so many seconds in between, so many times
/// at most: one that vanished would have its place for good, and nothing could be detached.
const KEEP_ALIVE: [(libc::c_int, libc::c_int); 3] = [(libc::TCP_KEEPIDLE, 60), (libc::TCP_KEEPINTVL, 10), (libc::TCP_KEEPCNT, 6)];

/// A socket that accepts connections. Dropping it removes its file.
#[derive(Debug)]
pub struct Listener {
    socket: ListenerSocket,
    address: Address,
    /// Others than its owner may connect: a line for the operator.
    lets_in: Option<String>,
}

#[derive(Debug)]
enum ListenerSocket {
    /// Without a file: it was handed over, and belongs to whoever did that.
    Unix {
        socket: UnixListener,
        _file: Option<SocketFile>,
    },
    Tcp(TcpListener),
}

/// A connected client.
#[derive(Debug)]
pub enum Stream {
    Unix(UnixStream),
    Tcp(TcpStream),
}

/// The first descriptor that a service manager hands over (sd_listen_fds(3)).
const HANDED_OVER: RawFd = 3;

impl Listener {
    /// The sockets that a service manager handed over: `count` descriptors from 3 on, each listening already.
    ///
    /// # Errors
    /// One line for the operator: which descriptor is no listening socket.
    pub fn handed_over(count: u32) -> Result<Vec<Listener>, String> {
        let take = |number: u32| {
            let fd = HANDED_OVER + number as RawFd;
            let wrong = |what: String| format!("LISTEN_FDS: descriptor {fd} {what}; hand over listening stream sockets only");
            let option = |name| socket_option(fd, name).map_err(|error| wrong(format!("is no socket ({error})")));
            if option(libc::SO_ACCEPTCONN)? == 0 || option(libc::SO_TYPE)? != libc::SOCK_STREAM {
                return Err(wrong("does not listen".to_owned()));
            }
            // SAFETY: it is an open socket, and by the convention it was made for this process and nobody here has taken it before.
            let socket = unsafe { OwnedFd::from_raw_fd(fd) };
            Listener::of(socket).map_err(|error| wrong(format!("cannot be used ({error})")))
        };
        (0..count).map(take).collect()
    }

    fn of(socket: OwnedFd) -> io::Result<Listener> {
        set_close_on_exec(&socket)?;
        let socket = TcpListener::from(socket);
        socket.set_nonblocking(true)?;
        if let Ok(address) = socket.local_addr() {
            return Ok(Listener { socket: ListenerSocket::Tcp(socket), address: Address::Tcp(address), lets_in: None });
        }
        let socket = UnixListener::from(OwnedFd::from(socket));
        let path = socket.local_addr()?.as_pathname().map(Path::to_owned);
        let lets_in = lets_in(path.as_deref());
        Ok(Listener { socket: ListenerSocket::Unix { socket, _file: None }, address: Address::Unix(path.unwrap_or_default()), lets_in })
    }

    /// # Errors
    /// One line for the operator: where it cannot listen, why, and what to do.
    pub fn bind(address: &Address) -> Result<Listener, String> {
        match address {
            Address::Unix(path) => bind_unix(path),
            Address::Tcp(wanted) => {
                let bound = TcpListener::bind(wanted).and_then(|socket| {
                    socket.set_nonblocking(true)?;
                    Ok((socket.local_addr()?, socket))
                });
                let (local, socket) = bound.map_err(|error| format!("NBD address {address}: {error}"))?;
                Ok(Listener { socket: ListenerSocket::Tcp(socket), address: Address::Tcp(local), lets_in: None })
            }
        }
    }

    /// Where it really listens: port 0 has become a port.
    pub fn address(&self) -> &Address {
        &self.address
    }

    /// Who else may connect to a Unix socket that somebody else has made: a line for the operator.
    pub fn lets_in(&self) -> Option<&str> {
        self.lets_in.as_deref()
    }

    pub fn fd(&self) -> RawFd {
        match &self.socket {
            ListenerSocket::Unix { socket, .. } => socket.as_raw_fd(),
            ListenerSocket::Tcp(socket) => socket.as_raw_fd(),
        }
    }

    pub fn accept(&self) -> io::Result<Stream> {
        match &self.socket {
            ListenerSocket::Unix { socket, .. } => {
                let (stream, _) = socket.accept()?;
                stream.set_nonblocking(true)?;
                grow_send_buffer(&stream);
                Ok(Stream::Unix(stream))
            }
            ListenerSocket::Tcp(socket) => {
                let (stream, _) = socket.accept()?;
                stream.set_nonblocking(true)?;
                stream.set_nodelay(true)?;
                keep_alive(&stream);
                Ok(Stream::Tcp(stream))
            }
        }
    }
}

impl Stream {
    /// The client whose socket is standard input, as inetd and libnbd's `connect_command` give it.
    ///
    /// # Errors
    /// One line for the operator: it is no connected socket.
    pub fn from_stdin() -> Result<Stream, String> {
        let wrong = |error: io::Error| format!("--stdio: standard input is no connected stream socket ({error}); start it as inetd does");
        let socket = io::stdin().as_fd().try_clone_to_owned().map_err(wrong)?;
        let kind = socket_option(socket.as_raw_fd(), libc::SO_TYPE).map_err(wrong)?;
        let socket = TcpStream::from(socket);
        let is_tcp = match socket.peer_addr() {
            Ok(_) => true,
            // Another family.
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => false,
            Err(error) => return Err(wrong(error)),
        };
        if kind != libc::SOCK_STREAM {
            return Err(wrong(io::ErrorKind::InvalidInput.into()));
        }
        socket.set_nonblocking(true).map_err(wrong)?;
        if is_tcp {
            socket.set_nodelay(true).map_err(wrong)?;
            keep_alive(&socket);
            return Ok(Stream::Tcp(socket));
        }
        let socket = UnixStream::from(OwnedFd::from(socket));
        grow_send_buffer(&socket);
        Ok(Stream::Unix(socket))
    }

    /// Does it come from another machine?
    pub fn is_remote(&self) -> bool {
        match self {
            Stream::Unix(_) => false,
            // Who cannot be asked any more is gone.
            Stream::Tcp(stream) => stream.peer_addr().is_ok_and(|peer| !peer.ip().is_loopback()),
        }
    }

    /// The machine it comes from. Behind a Unix socket there is only its owner.
    pub fn peer(&self) -> Option<IpAddr> {
        match self {
            Stream::Unix(_) => None,
            Stream::Tcp(stream) => stream.peer_addr().ok().map(|peer| peer.ip().to_canonical()),
        }
    }

    pub fn fd(&self) -> RawFd {
        match self {
            Stream::Unix(stream) => stream.as_raw_fd(),
            Stream::Tcp(stream) => stream.as_raw_fd(),
        }
    }

    /// Has the client closed its socket, and does this one know? A TCP client is known to have gone only when it has refused something.
    pub fn has_hung_up(&self) -> bool {
        self.is(0)
    }

    /// Has the client closed its socket, as far as can be known? Over TCP one that has gone looks like one that says nothing more.
    pub fn is_closed(&self) -> bool {
        self.is(if self.tells_hangups() { 0 } else { libc::POLLRDHUP })
    }

    /// Is one that says nothing more known from one that has gone?
    pub fn tells_hangups(&self) -> bool {
        matches!(self, Stream::Unix(_))
    }

    /// One of these, or hung up, or broken?
    fn is(&self, events: libc::c_short) -> bool {
        let mut socket = libc::pollfd { fd: self.fd(), events, revents: 0 };
        // SAFETY: one `pollfd`, which lives as long as the call.
        let found = unsafe { libc::poll(&raw mut socket, 1, 0) };
        found == 1 && socket.revents != 0
    }

    /// Bytes that were sent and not taken, more or less: over TCP, not received. 0 where nobody can tell.
    pub fn untaken(&self) -> u64 {
        let mut bytes: libc::c_int = 0;
        // SAFETY: an int that lives across the call is what this request writes.
        let told = unsafe { libc::ioctl(self.fd(), libc::TIOCOUTQ, &raw mut bytes) };
        if told == 0 { u64::try_from(bytes).unwrap_or(0) } else { 0 }
    }

    /// One `readv`.
    pub fn receive(&self, slices: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        match self {
            Stream::Unix(stream) => (&*stream).read_vectored(slices),
            Stream::Tcp(stream) => (&*stream).read_vectored(slices),
        }
    }

    /// One `writev`. A client that is gone is an error, not a signal: the runtime ignores SIGPIPE.
    pub fn send(&self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        match self {
            Stream::Unix(stream) => (&*stream).write_vectored(slices),
            Stream::Tcp(stream) => (&*stream).write_vectored(slices),
        }
    }

    /// The client sees the end now, even if the descriptor stays open for a moment. It may have gone already: no error.
    pub fn hang_up(&self) {
        let _ = match self {
            Stream::Unix(stream) => stream.shutdown(Shutdown::Both),
            Stream::Tcp(stream) => stream.shutdown(Shutdown::Both),
        };
    }
}

fn bind_unix(path: &Path) -> Result<Listener, String> {
    let shown = path.display();
    let failed = |error: io::Error| format!("NBD address unix:{shown}: {error}");
    match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(failed(error)),
        Ok(file) if !file.file_type().is_socket() => {
            return Err(format!("NBD address unix:{shown}: there is a file that is no socket; name another path or remove it"));
        }
        Ok(_) => match UnixStream::connect(path) {
            Ok(_) => return Err(format!("NBD address unix:{shown}: another process serves there; stop it or name another path")),
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => fs::remove_file(path).map_err(failed)?,
            Err(error) => return Err(failed(error)),
        },
    }
    let socket = listen_unix(path).map_err(failed)?;
    let _file = SocketFile::new(path).map_err(failed)?;
    let address = Address::Unix(path.to_owned());
    Ok(Listener { socket: ListenerSocket::Unix { socket, _file: Some(_file) }, address, lets_in: None })
}

/// Whom a Unix socket lets in besides its owner: of a service manager it has the mode 0666, unless its unit says otherwise.
fn lets_in(path: Option<&Path>) -> Option<String> {
    let Some(path) = path else {
        let what = "NBD on an abstract Unix socket: every user of this machine may connect";
        return Some(format!("{what}; name a path in its socket unit, and SocketMode=0600"));
    };
    let what = match fs::metadata(path).map(|file| file.permissions().mode() & 0o777) {
        Ok(mode) if mode & 0o077 == 0 => return None,
        Ok(mode) => format!("others than its owner may connect (mode {mode:04o})"),
        Err(error) => format!("others than its owner may be able to connect ({error})"),
    };
    Some(format!("NBD on unix:{}: {what}; say SocketMode=0600 in its socket unit", path.display()))
}

/// A listening socket whose file is its owner's alone from the first moment on: the mode is set before the name exists.
fn listen_unix(path: &Path) -> io::Result<UnixListener> {
    let bytes = path.as_os_str().as_bytes();
    // SAFETY: all zeros are a valid `sockaddr_un`.
    let mut name: libc::sockaddr_un = unsafe { std::mem::zeroed() };
    name.sun_family = libc::AF_UNIX as libc::sa_family_t;
    if bytes.len() >= name.sun_path.len() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "the path is too long for a socket"));
    }
    for (to, from) in name.sun_path.iter_mut().zip(bytes) {
        *to = *from as libc::c_char;
    }
    let check = |result: libc::c_int| if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) };
    // SAFETY: no memory is passed.
    let fd = check(unsafe { libc::socket(libc::AF_UNIX, libc::SOCK_STREAM | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK, 0) })?;
    // SAFETY: the descriptor was just made and has no other owner.
    let socket = unsafe { OwnedFd::from_raw_fd(fd) };
    // SAFETY: no memory is passed.
    check(unsafe { libc::fchmod(socket.as_raw_fd(), 0o600) })?;
    // SAFETY: `name` lives across the call, and its size is the one that is passed.
    check(unsafe { libc::bind(socket.as_raw_fd(), (&raw const name).cast(), size_of_val(&name) as libc::socklen_t) })?;
    // SAFETY: no memory is passed.
    check(unsafe { libc::listen(socket.as_raw_fd(), libc::SOMAXCONN) })?;
    Ok(UnixListener::from(socket))
}

/// Asks for as many descriptors as this process may have, and says how many that is. A shell's usual limit is 1,024.
pub fn descriptors() -> usize {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the limit lives across the calls.
    unsafe {
        if libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) != 0 {
            return 0;
        }
        let most = libc::rlimit { rlim_cur: limit.rlim_max, rlim_max: limit.rlim_max };
        if libc::setrlimit(libc::RLIMIT_NOFILE, &raw const most) == 0 {
            limit = most;
        }
    }
    usize::try_from(limit.rlim_cur).unwrap_or(usize::MAX)
}

/// An option of a socket whose value is an int.
fn socket_option(fd: RawFd, name: libc::c_int) -> io::Result<libc::c_int> {
    get_option(fd, libc::SOL_SOCKET, name)
}

fn get_option(fd: RawFd, level: libc::c_int, name: libc::c_int) -> io::Result<libc::c_int> {
    let mut value: libc::c_int = 0;
    let mut bytes = size_of_val(&value) as libc::socklen_t;
    // SAFETY: value and length live across the call, and the length is that of the value. A descriptor that is not open is an error.
    match unsafe { libc::getsockopt(fd, level, name, (&raw mut value).cast(), &raw mut bytes) } {
        0 => Ok(value),
        _ => Err(io::Error::last_os_error()),
    }
}

fn set_close_on_exec(socket: &OwnedFd) -> io::Result<()> {
    // SAFETY: no memory is passed.
    match unsafe { libc::fcntl(socket.as_raw_fd(), libc::F_SETFD, libc::FD_CLOEXEC) } {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

/// A wish: with the default buffer everything works, in smaller steps.
fn grow_send_buffer(stream: &UnixStream) {
    set_option(stream.as_raw_fd(), libc::SOL_SOCKET, libc::SO_SNDBUF, SEND_BUFFER_BYTES);
}

/// A wish as well: the client is served in either case.
fn keep_alive(stream: &TcpStream) {
    let fd = stream.as_raw_fd();
    KEEP_ALIVE.into_iter().for_each(|(name, value)| set_option(fd, libc::IPPROTO_TCP, name, value));
    set_option(fd, libc::SOL_SOCKET, libc::SO_KEEPALIVE, 1);
}

/// Wishes for an option of a socket whose value is an int.
fn set_option(fd: RawFd, level: libc::c_int, name: libc::c_int, value: libc::c_int) {
    // SAFETY: the option's value is an int that lives across the call, and its size is the one that is passed.
    unsafe { libc::setsockopt(fd, level, name, (&raw const value).cast(), size_of_val(&value) as libc::socklen_t) };
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::linux::net::SocketAddrExt;

    #[test]
    fn a_socket_file_is_its_owners_alone_and_goes_with_its_listener() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("nbd.sock");
        let listener = Listener::bind(&Address::Unix(path.clone())).expect("nobody is there");
        assert_eq!(fs::metadata(&path).expect("it exists").permissions().mode() & 0o777, 0o600);
        drop(listener);
        assert!(!path.exists());
    }

    #[test]
    fn a_socket_that_was_handed_over_says_whom_it_lets_in() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("nbd.sock");
        let made = UnixListener::bind(&path).expect("nobody is there");
        let lets_in = |socket: &UnixListener| {
            let socket = socket.try_clone().expect("a descriptor");
            Listener::of(socket.into()).expect("it listens").lets_in().map(str::to_owned)
        };
        for (mode, others) in [(0o666, true), (0o660, true), (0o600, false), (0o700, false)] {
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).expect("ours");
            let note = lets_in(&made);
            assert_eq!(note.is_some(), others, "{note:?}");
            let says = |note: &String| note.contains(&format!("(mode {mode:04o}); say SocketMode=0600")) && note.lines().count() == 1;
            assert!(note.as_ref().is_none_or(says), "{note:?}");
        }
        fs::remove_file(&path).expect("it is there");
        assert!(lets_in(&made).is_some_and(|note| note.contains("may be able to connect (No such file")));
        let name = format!("tidegate-test-{}", std::process::id());
        let name = std::os::unix::net::SocketAddr::from_abstract_name(name).expect("a name");
        let note = lets_in(&UnixListener::bind_addr(&name).expect("nobody is there"));
        assert!(note.as_ref().is_some_and(|note| note.contains("every user of this machine may connect")), "{note:?}");
        let own = Listener::bind(&Address::Unix(path)).expect("nobody is there");
        assert_eq!(own.lets_in(), None);
    }

    #[test]
    fn the_socket_file_of_a_killed_process_is_taken_over() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("nbd.sock");
        drop(UnixListener::bind(&path).expect("nobody is there"));
        assert!(path.exists(), "the standard library leaves the file behind, as a kill would");
        Listener::bind(&Address::Unix(path)).expect("nobody answers there");
    }

    #[test]
    fn a_living_servers_socket_and_a_plain_file_are_left_alone() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("nbd.sock");
        let first = Listener::bind(&Address::Unix(path.clone())).expect("nobody is there");
        let error = Listener::bind(&Address::Unix(path.clone())).expect_err("somebody is there");
        assert!(error.contains("another process serves there"), "{error}");
        drop(first);
        fs::write(&path, "precious").expect("the file is written");
        let error = Listener::bind(&Address::Unix(path.clone())).expect_err("a file is there");
        assert!(error.contains("no socket"), "{error}");
        assert_eq!(fs::read(&path).expect("it is still there"), b"precious");
    }

    #[test]
    fn a_tcp_client_is_asked_whether_it_is_still_there() {
        let listener = Listener::bind(&"127.0.0.1:0".parse().expect("an address")).expect("a port is free");
        let Address::Tcp(address) = listener.address() else { panic!("it is no path") };
        let _client = TcpStream::connect(address).expect("it listens");
        let served = loop {
            match listener.accept() {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => std::thread::yield_now(),
                served => break served.expect("a client"),
            }
        };
        assert_eq!(get_option(served.fd(), libc::SOL_SOCKET, libc::SO_KEEPALIVE).expect("a socket"), 1);
        let times = KEEP_ALIVE.map(|(name, _)| get_option(served.fd(), libc::IPPROTO_TCP, name).expect("a socket of TCP"));
        assert_eq!(times, [60, 10, 6]);
    }
}
