//! Where the NBD front listens, as an operator writes it, and as a client's URI. A name on the wire never becomes a path.

use std::fmt::{self, Write};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// The port IANA reserves for NBD; for addresses that name none.
const DEFAULT_PORT: u16 = 10809;
/// `sun_path` holds 108 bytes, the last of them NUL.
pub const UNIX_PATH_BYTES_MAX: usize = 107;

/// One place to listen at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// A Unix socket: only its owner may connect (mode 0600).
    Unix(PathBuf),
    /// TCP: with TLS, or loopback only. Port 0: the kernel chooses one.
    Tcp(SocketAddr),
}

impl FromStr for Address {
    type Err = String;

    /// `unix:PATH`, any text with a slash in it (a path), `IP:PORT`, `tcp:IP:PORT`, `tcp://IP:PORT`; `localhost` for the IP,
    /// and the port may be left out. The error is one line for the operator.
    fn from_str(text: &str) -> Result<Address, String> {
        if let Some(path) = text.strip_prefix("unix:") {
            return unix(path.strip_prefix("//").unwrap_or(path));
        }
        if let Some(rest) = text.strip_prefix("tcp://").or_else(|| text.strip_prefix("tcp:")) {
            return tcp(rest.trim_end_matches('/'));
        }
        if text.contains('/') { unix(text) } else { tcp(text) }
    }
}

fn unix(path: &str) -> Result<Address, String> {
    if path.is_empty() || path.contains('\0') {
        return Err(format!("NBD address: `{}` is not a path for a Unix socket", path.escape_default()));
    }
    let address = Address::Unix(PathBuf::from(path));
    address.check().map(|()| address)
}

fn tcp(text: &str) -> Result<Address, String> {
    let with_ip = match text.strip_prefix("localhost") {
        Some(port) => format!("{}{port}", Ipv4Addr::LOCALHOST),
        None => text.to_owned(),
    };
    let bare = with_ip.trim_start_matches('[').trim_end_matches(']');
    with_ip
        .parse::<SocketAddr>()
        .or_else(|_| bare.parse().map(|ip| SocketAddr::new(ip, DEFAULT_PORT)))
        .map(Address::Tcp)
        .map_err(|_| format!("NBD address: `{}` is neither unix:PATH nor IP:PORT", text.escape_default()))
}

impl Address {
    /// Of a Unix socket.
    pub fn path(&self) -> Option<&Path> {
        match self {
            Address::Unix(path) => Some(path),
            Address::Tcp(_) => None,
        }
    }

    /// Can there be such a socket?
    ///
    /// # Errors
    /// One line: its path is too long.
    pub fn check(&self) -> Result<(), String> {
        match self {
            Address::Unix(path) if path.as_os_str().len() > UNIX_PATH_BYTES_MAX => {
                let (shown, bytes) = (path.display(), path.as_os_str().len());
                Err(format!("NBD address: {shown} has {bytes} bytes; the path of a Unix socket has at most {UNIX_PATH_BYTES_MAX}"))
            }
            Address::Unix(_) | Address::Tcp(_) => Ok(()),
        }
    }

    /// Can it be reached from another machine? Then nothing is said in plain text.
    pub fn needs_tls(&self) -> bool {
        match self {
            Address::Unix(_) => false,
            Address::Tcp(address) => !address.ip().is_loopback(),
        }
    }

    /// Why an address that needs TLS is refused without it, and what to do.
    pub fn refusal(&self) -> String {
        format!(
            "NBD address: {self} can be reached from outside, which needs TLS; name a certificate and its key, or use 127.0.0.1 or unix:PATH"
        )
    }

    /// What an NBD client takes to connect: `nbd+unix:///NAME?socket=PATH`, `nbd://HOST:PORT/NAME`, with TLS `nbds://HOST:PORT/NAME`.
    pub fn uri(&self, export: &str, tls: bool) -> String {
        match self {
            Address::Unix(path) => {
                let path = std::path::absolute(path).unwrap_or_else(|_| path.clone());
                format!("nbd+unix:///{}?socket={}", escape(export.as_bytes(), ""), escape(path.as_os_str().as_encoded_bytes(), "/"))
            }
            Address::Tcp(address) => tcp_uri(address, export, tls),
        }
    }
}

fn tcp_uri(server: impl fmt::Display, export: &str, tls: bool) -> String {
    format!("nbd{}://{server}/{}", if tls { "s" } else { "" }, escape(export.as_bytes(), ""))
}

/// Where one export is served.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    pub address: Address,
    /// Its name.
    pub export: String,
    pub tls: bool,
}

impl Place {
    /// What an NBD client takes to connect.
    pub fn uri(&self) -> String {
        self.address.uri(&self.export, self.tls)
    }

    /// The same for clients on any machine, where this one is called `host`: who listens on all its addresses has none to connect to.
    pub fn uri_at(&self, host: &str) -> String {
        match &self.address {
            Address::Tcp(address) if address.ip().is_unspecified() => {
                tcp_uri(format_args!("{host}:{}", address.port()), &self.export, self.tls)
            }
            Address::Tcp(_) | Address::Unix(_) => self.uri(),
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Address::Unix(path) => write!(f, "unix:{}", path.display()),
            Address::Tcp(address) => write!(f, "tcp:{address}"),
        }
    }
}

/// Percent-encodes everything but unreserved characters and those in `keep`.
fn escape(bytes: &[u8], keep: &str) -> String {
    let mut out = String::with_capacity(bytes.len());
    for &byte in bytes {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) || keep.as_bytes().contains(&byte) {
            out.push(char::from(byte));
        } else {
            write!(out, "%{byte:02X}").expect("a String takes everything");
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str, expect: Result<&str, &str>) {
        match (text.parse::<Address>(), expect) {
            (Ok(address), Ok(expect)) => assert_eq!(address.to_string(), expect),
            (Err(error), Err(part)) => {
                assert!(error.contains(part), "{error}");
                assert!(!error.contains('\n'), "one line: {error}");
            }
            (got, _) => panic!("{text}: {got:?}"),
        }
    }

    #[test]
    fn addresses_are_read_in_the_forms_people_write() {
        check("unix:nbd.sock", Ok("unix:nbd.sock"));
        check("unix:///run/nbd.sock", Ok("unix:/run/nbd.sock"));
        check("/run/nbd.sock", Ok("unix:/run/nbd.sock"));
        check("./nbd.sock", Ok("unix:./nbd.sock"));
        check("127.0.0.1:10809", Ok("tcp:127.0.0.1:10809"));
        check("127.0.0.1", Ok("tcp:127.0.0.1:10809"));
        check("tcp://localhost:7", Ok("tcp:127.0.0.1:7"));
        check("tcp:[::1]:7", Ok("tcp:[::1]:7"));
        check("[::1]", Ok("tcp:[::1]:10809"));
    }

    #[test]
    fn an_address_that_can_be_reached_from_outside_needs_tls() {
        for (text, expect) in [("0.0.0.0:1", true), ("tcp://[::]:1", true), ("192.168.1.2", true), ("127.0.0.9:1", false), ("/sock", false)]
        {
            let address: Address = text.parse().expect("an address");
            assert_eq!(address.needs_tls(), expect, "{text}");
            assert!(address.refusal().contains("needs TLS; name a certificate"));
        }
    }

    #[test]
    fn a_wrong_address_gets_one_clear_line() {
        check("", Err("neither unix:PATH nor IP:PORT"));
        check("unix:", Err("not a path"));
        check("localhost:99999", Err("neither unix:PATH nor IP:PORT"));
        check("exa\nmple:1", Err(r"`exa\nmple:1`"));
        check(&format!("/{}", "x".repeat(107)), Err("has 108 bytes; the path of a Unix socket has at most 107"));
    }

    #[test]
    fn a_uri_survives_odd_names_and_paths() {
        let unix: Address = "/tmp/a dir/nbd?.sock".parse().expect("a path");
        assert_eq!(unix.uri("", false), "nbd+unix:///?socket=/tmp/a%20dir/nbd%3F.sock");
        assert_eq!(unix.uri("ä/b", false), "nbd+unix:///%C3%A4%2Fb?socket=/tmp/a%20dir/nbd%3F.sock");
        let tcp: Address = "127.0.0.1:10809".parse().expect("an address");
        assert_eq!(tcp.uri("disk", false), "nbd://127.0.0.1:10809/disk");
        assert_eq!(tcp.uri("disk", true), "nbds://127.0.0.1:10809/disk");
    }
}
