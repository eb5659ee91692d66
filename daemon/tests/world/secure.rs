//! A TLS client in the test's thread: whenever it would wait, the world turns.

use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::os::fd::{AsRawFd, RawFd};
use std::path::Path;
use std::sync::Arc;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::version::{TLS12, TLS13};
use rustls::{ClientConfig, ClientConnection, ProtocolVersion, RootCertStore};
use tidegate_daemon::front::nbd::Address;

use super::{World, option};

const IDLE_TURNS_MAX: usize = 40;
const PATIENCE_MS: i32 = 500;

/// Plain TCP, to the address behind the Unix socket.
pub struct Plain {
    pub stream: TcpStream,
}

pub struct Secure {
    stream: TcpStream,
    session: ClientConnection,
}

/// Whom a client trusts and what it shows.
pub fn config(pki: &Path, own_certificate: bool, versions: &[&'static rustls::SupportedProtocolVersion]) -> Arc<ClientConfig> {
    let file = |name: &str| pki.join(name);
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(file("ca-cert.pem")).expect("a certificate")).expect("an authority");
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider).with_protocol_versions(versions).expect("versions");
    let builder = builder.with_root_certificates(roots);
    Arc::new(match own_certificate {
        false => builder.with_no_client_auth(),
        true => {
            let chain = vec![CertificateDer::from_pem_file(file("client-cert.pem")).expect("a certificate")];
            let key = PrivateKeyDer::from_pem_file(file("client-key.pem")).expect("a key");
            builder.with_client_auth_cert(chain, key).expect("they belong together")
        }
    })
}

impl Plain {
    /// Connects and answers the greeting.
    pub fn connect(world: &mut World) -> Plain {
        let Some(Address::Tcp(address)) = world.front.addresses().pop() else { panic!("TCP comes last") };
        let stream = TcpStream::connect(address).expect("the front listens");
        stream.set_nonblocking(true).expect("a socket");
        stream.set_nodelay(true).expect("a socket");
        let mut plain = Plain { stream };
        plain.receive(world, 18);
        plain.send(world, &3u32.to_be_bytes());
        plain
    }

    pub fn send(&mut self, world: &mut World, bytes: &[u8]) {
        let mut at = 0;
        wait(world, self.stream.as_raw_fd(), || {
            at += self.stream.write(&bytes[at..])?;
            Ok((at == bytes.len()).then_some(()))
        })
        .expect("it is sent");
    }

    pub fn receive(&mut self, world: &mut World, count: usize) -> Vec<u8> {
        let (mut bytes, mut at) = (vec![0; count], 0);
        wait(world, self.stream.as_raw_fd(), || {
            match self.stream.read(&mut bytes[at..])? {
                0 => return Err(ErrorKind::UnexpectedEof.into()),
                got => at += got,
            }
            Ok((at == count).then_some(()))
        })
        .expect("it is received");
        bytes
    }

    /// What comes until the server closes.
    pub fn rest(&mut self, world: &mut World) -> Vec<u8> {
        let mut bytes = Vec::new();
        wait(world, self.stream.as_raw_fd(), || match self.stream.read_to_end(&mut bytes) {
            Ok(_) => Ok(Some(())),
            Err(error) if error.kind() == ErrorKind::ConnectionReset => Ok(Some(())),
            Err(error) => Err(error),
        })
        .expect("the server closes");
        bytes
    }

    /// STARTTLS, and the TLS handshake.
    pub fn upgrade(mut self, world: &mut World, config: Arc<ClientConfig>) -> io::Result<Secure> {
        self.send(world, &option(5, b""));
        let reply = self.receive(world, 20);
        assert_eq!(reply[8..16], [0, 0, 0, 5, 0, 0, 0, 1], "STARTTLS is acknowledged");
        Secure::over(world, self.stream, config)
    }
}

impl Secure {
    pub fn over(world: &mut World, stream: TcpStream, config: Arc<ClientConfig>) -> io::Result<Secure> {
        let session = ClientConnection::new(config, ServerName::try_from("localhost").expect("a name")).expect("a session");
        let mut secure = Secure { stream, session };
        let fd = secure.stream.as_raw_fd();
        wait(world, fd, || {
            while secure.session.is_handshaking() {
                secure.session.complete_io(&mut secure.stream)?;
            }
            while secure.session.wants_write() {
                secure.session.write_tls(&mut secure.stream)?;
            }
            Ok(Some(()))
        })?;
        Ok(secure)
    }

    /// Connects, with TLS 1.3 or 1.2.
    pub fn connect(world: &mut World) -> Secure {
        let config = config(&world.path("pki"), false, &[&TLS13, &TLS12]);
        Plain::connect(world).upgrade(world, config).expect("both sides speak TLS")
    }

    /// Connects and shakes hands for simple replies.
    pub fn ready(world: &mut World) -> Secure {
        let mut secure = Secure::connect(world);
        secure.send(world, &option(1, b""));
        secure.receive(world, 10);
        secure
    }

    pub fn version(&self) -> ProtocolVersion {
        self.session.protocol_version().expect("the handshake is done")
    }

    pub fn send(&mut self, world: &mut World, bytes: &[u8]) {
        for piece in bytes.chunks(32 << 10) {
            self.session.writer().write_all(piece).expect("it is buffered");
            wait(world, self.stream.as_raw_fd(), || {
                while self.session.wants_write() {
                    self.session.write_tls(&mut self.stream)?;
                }
                Ok(Some(()))
            })
            .expect("it is sent");
        }
    }

    /// Sends what the socket takes while the world settles; returns how much plain text that was, about.
    pub fn push(&mut self, world: &mut World, bytes: &[u8]) -> usize {
        for (number, piece) in bytes.chunks(4 << 10).enumerate() {
            self.session.writer().write_all(piece).expect("it is buffered");
            while self.session.wants_write() {
                if self.session.write_tls(&mut self.stream).is_err() {
                    world.settle();
                    if self.session.write_tls(&mut self.stream).is_err() {
                        return number * (4 << 10);
                    }
                }
            }
        }
        bytes.len()
    }

    pub fn try_receive(&mut self, world: &mut World, count: usize) -> io::Result<Vec<u8>> {
        let (mut bytes, mut at) = (vec![0; count], 0);
        wait(world, self.stream.as_raw_fd(), || {
            match self.session.reader().read(&mut bytes[at..]) {
                Ok(0) if at < count => return Err(ErrorKind::UnexpectedEof.into()),
                Ok(got) => at += got,
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    self.session.read_tls(&mut self.stream)?;
                    self.session.process_new_packets().map_err(io::Error::other)?;
                }
                Err(error) => return Err(error),
            }
            Ok((at == count).then_some(()))
        })?;
        Ok(bytes)
    }

    pub fn receive(&mut self, world: &mut World, count: usize) -> Vec<u8> {
        self.try_receive(world, count).expect("it is received")
    }

    /// Bytes past TLS.
    pub fn into_plain(self) -> Plain {
        Plain { stream: self.stream }
    }
}

/// Tries until there is a value. TCP takes its time (windows, delayed acknowledgements): after some idle turns the world waits for it.
fn wait<T>(world: &mut World, stream: RawFd, mut step: impl FnMut() -> io::Result<Option<T>>) -> io::Result<T> {
    let mut idle = 0;
    loop {
        match step() {
            Ok(Some(value)) => return Ok(value),
            Ok(None) => idle = 0,
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                assert!(idle < IDLE_TURNS_MAX, "nothing happens any more");
                if idle < IDLE_TURNS_MAX / 2 {
                    world.turn(None, 0);
                } else {
                    world.turn(Some(stream), PATIENCE_MS);
                }
                idle += 1;
            }
            Err(error) => return Err(error),
        }
    }
}
