//! TLS: the certificates an operator names, and the channel of one connection, plain or secured. The socket stays non-blocking and the
//! protocol above sees bytes; what cannot be sent or read now is kept here, and bounded.
//!
//! ```text
//! socket ─▶ received (32 KiB) ─▶ rustls ─▶ the connection's buffers
//! socket ◀── rustls (256 KiB at most) ◀── output
//! ```
//! TLS 1.2 and 1.3, nothing older (T7). There is no way back to plain text (T8).

use std::fs::OpenOptions;
use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::version::{TLS12, TLS13};
use rustls::{RootCertStore, ServerConfig, ServerConnection};

use super::allow::Who;
use super::socket::Stream;

/// Encrypted bytes of one `recv`: two full records.
const RECEIVED_BYTES: usize = 32 << 10;
/// Bytes that are encrypted and not sent yet.
const UNSENT_BYTES_MAX: usize = 256 << 10;
/// The largest file of certificates, in bytes.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// PEM files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Certificates {
    /// The server's certificate, and those between it and its authority.
    pub certificate: PathBuf,
    /// Its private key.
    pub key: PathBuf,
    /// Authorities that sign the certificates of clients. `None`: any client may connect.
    pub client_ca: Option<PathBuf>,
}

impl Certificates {
    /// # Errors
    /// One line for the operator: which file, what is wrong with it, what to do.
    pub fn load(&self) -> Result<Arc<ServerConfig>, String> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ServerConfig::builder_with_provider(Arc::clone(&provider)).with_protocol_versions(&[&TLS13, &TLS12]);
        let builder = builder.map_err(|error| format!("TLS: {error}"))?;
        let builder = match &self.client_ca {
            None => builder.with_no_client_auth(),
            Some(path) => {
                let wrong = |error: &dyn std::fmt::Display| format!("TLS client authority {}: {error}", path.display());
                let mut roots = RootCertStore::empty();
                for certificate in certificates("TLS client authority", path)? {
                    roots.add(certificate).map_err(|error| wrong(&error))?;
                }
                let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider).build();
                builder.with_client_cert_verifier(verifier.map_err(|error| wrong(&error))?)
            }
        };
        let chain = certificates("TLS certificate", &self.certificate)?;
        let key = PrivateKeyDer::from_pem_slice(&read("TLS key", &self.key)?)
            .map_err(|_| format!("TLS key {}: no private key in PEM form is in it", self.key.display()))?;
        builder.with_single_cert(chain, key).map(Arc::new).map_err(|error| {
            format!("TLS certificate {} and key {} do not work together: {error}", self.certificate.display(), self.key.display())
        })
    }
}

fn certificates(what: &str, path: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let found: Vec<_> = CertificateDer::pem_slice_iter(&read(what, path)?).filter_map(Result::ok).collect();
    if found.is_empty() {
        return Err(format!("{what} {}: no certificate in PEM form is in it", path.display()));
    }
    Ok(found)
}

fn read(what: &str, path: &Path) -> Result<Vec<u8>, String> {
    let shown = path.display();
    // Without waiting: a pipe must not hold the start up.
    let file = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK | libc::O_CLOEXEC).open(path);
    let file = file.map_err(|error| format!("{what} {shown}: {error}"))?;
    let metadata = file.metadata().map_err(|error| format!("{what} {shown}: {error}"))?;
    if !metadata.is_file() || metadata.len() > FILE_BYTES_MAX {
        return Err(format!("{what} {shown}: not a regular file of at most 1 MiB; name a PEM file"));
    }
    let mut bytes = Vec::new();
    file.take(FILE_BYTES_MAX).read_to_end(&mut bytes).map_err(|error| format!("{what} {shown}: {error}"))?;
    Ok(bytes)
}

/// How the bytes of one connection travel: as they are, or through TLS.
pub struct Channel {
    stream: Stream,
    secure: Option<Box<Secure>>,
}

struct Secure {
    session: ServerConnection,
    /// Encrypted bytes that the session has not taken yet: `received[start..end]`.
    received: Box<[u8]>,
    start: usize,
    end: usize,
    /// The last receive ended although there was more: no place for it, or an end behind it.
    more: bool,
    /// Bytes that the session was given to send and that have not left, as plain text.
    unsent: usize,
}

impl Channel {
    pub fn new(stream: Stream) -> Channel {
        Channel { stream, secure: None }
    }

    pub fn stream(&self) -> &Stream {
        &self.stream
    }

    pub fn into_stream(self) -> Stream {
        self.stream
    }

    /// Who is at the other end, as far as it has shown that.
    pub fn who(&self) -> Who<'_> {
        match &self.secure {
            None => Who::Anybody,
            Some(secure) => Who::Shown(secure.session.peer_certificates().and_then(<[_]>::first)),
        }
    }

    /// From now on with TLS.
    pub fn secure(&mut self, config: &Arc<ServerConfig>) -> io::Result<()> {
        let mut session = ServerConnection::new(Arc::clone(config)).map_err(io::Error::other)?;
        session.set_buffer_limit(Some(UNSENT_BYTES_MAX));
        let received = vec![0; RECEIVED_BYTES].into_boxed_slice();
        self.secure = Some(Box::new(Secure { session, received, start: 0, end: 0, more: false, unsent: 0 }));
        Ok(())
    }

    /// Fills the slices as far as there is something. `fresh`: also from the socket; else only with what is here already.
    pub fn receive(&mut self, slices: &mut [IoSliceMut<'_>], fresh: bool) -> io::Result<usize> {
        match &mut self.secure {
            None if fresh => self.stream.receive(slices),
            None => Err(io::ErrorKind::WouldBlock.into()),
            Some(secure) => secure.receive(&self.stream, slices, fresh),
        }
    }

    /// Is there something to receive that the socket will not tell of?
    pub fn has_more(&self) -> bool {
        self.secure.as_ref().is_some_and(|secure| secure.more)
    }

    /// Takes bytes to be sent. With TLS they may not all have left when this returns: see [`Channel::is_flushed`].
    pub fn send(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        let Some(secure) = &mut self.secure else { return self.stream.send(slices) };
        secure.flush(&self.stream)?;
        let took = secure.session.writer().write_vectored(slices)?;
        secure.unsent += took;
        match secure.flush(&self.stream) {
            Err(error) if error.kind() != io::ErrorKind::WouldBlock => Err(error),
            Ok(()) | Err(_) => Ok(took),
        }
    }

    /// Everything that was taken has left.
    pub fn is_flushed(&self) -> bool {
        self.secure.as_ref().is_none_or(|secure| !secure.session.wants_write())
    }

    /// Bytes of memory that what was taken and has not left takes, more or less.
    pub fn unsent(&self) -> u64 {
        self.secure.as_ref().map_or(0, |secure| secure.unsent as u64)
    }

    pub fn flush(&mut self) -> io::Result<()> {
        self.secure.as_mut().map_or(Ok(()), |secure| secure.flush(&self.stream))
    }

    /// Says that nothing more comes, as far as the socket takes it now.
    pub fn say_goodbye(&mut self) {
        if let Some(secure) = &mut self.secure {
            secure.session.send_close_notify();
            // The client may have gone, or not read: then it learns it from the socket's end.
            let _ = secure.flush(&self.stream);
        }
    }
}

impl Secure {
    fn receive(&mut self, stream: &Stream, slices: &mut [IoSliceMut<'_>], fresh: bool) -> io::Result<usize> {
        let (mut got, mut used) = (0, 0);
        self.more = true;
        for slice in slices.iter_mut() {
            let mut at = 0;
            while at < slice.len() {
                match self.read(stream, &mut slice[at..], fresh, &mut used) {
                    Ok(count) if count > 0 => (at, got) = (at + count, got + count),
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                        self.more = false;
                        return if got > 0 { Ok(got) } else { Err(error) };
                    }
                    // What came before the end counts first.
                    _ if got > 0 => return Ok(got),
                    end => return end,
                }
            }
        }
        Ok(got)
    }

    /// Plain text, at least one byte of it; none is the end. `used` grows by what the socket gave.
    fn read(&mut self, stream: &Stream, bytes: &mut [u8], fresh: bool, used: &mut usize) -> io::Result<usize> {
        loop {
            match self.session.reader().read(bytes) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    // A turn takes no more from the socket than there could be place for, however much comes.
                    *used += self.fetch(stream, fresh && *used <= super::SCRATCH_BYTES)?;
                }
                result => return result,
            }
        }
    }

    /// Lets the session understand more; returns how many bytes the socket gave for that.
    fn fetch(&mut self, stream: &Stream, fresh: bool) -> io::Result<usize> {
        let mut count = 0;
        if self.start == self.end {
            if !fresh {
                return Err(io::ErrorKind::WouldBlock.into());
            }
            count = stream.receive(&mut [IoSliceMut::new(&mut self.received)])?;
            (self.start, self.end) = (0, count);
        }
        // No bytes are the end of the stream: the session has to know.
        self.start += self.session.read_tls(&mut &self.received[self.start..self.end])?;
        if let Err(error) = self.session.process_new_packets() {
            // The alert says why. It is all that leaves.
            let _ = self.flush(stream);
            return Err(io::Error::new(io::ErrorKind::InvalidData, error));
        }
        Ok(count)
    }

    fn flush(&mut self, stream: &Stream) -> io::Result<()> {
        while self.session.wants_write() {
            let sent = self.session.write_tls(&mut Sink(stream))?;
            if sent == 0 {
                return Err(io::ErrorKind::WriteZero.into());
            }
            self.unsent = self.unsent.saturating_sub(sent);
        }
        self.unsent = 0;
        Ok(())
    }
}

/// The socket, for those who write to it.
struct Sink<'a>(&'a Stream);

impl Write for Sink<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.send(&[IoSlice::new(bytes)])
    }
    fn write_vectored(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        self.0.send(slices)
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
