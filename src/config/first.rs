//! The file that a first run writes.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use tidegate_daemon::front::nbd::{Address, Certificates};

use crate::up::Named;

/// Every knob that no command line names, with its default.
pub(super) const KNOBS: &str = include_str!("knobs.toml");

const MODE: &str = r#"# What a FLUSH promises: "write-back" (it is on the cache, which holds the only copy of what is dirty), "write-through" (it is on the
# origin), or "read-only" (the same, and only what was read is kept). Default: what `tidegate mode` chose last, write-back at first.
#mode = "write-back"

"#;

/// The file that a first run writes: every knob with its default and unit. What was given on the command line is set in it; the rest
/// is shown and commented out, so that a later version may have better defaults.
pub fn first_file(named: &Named) -> String {
    let mut text = String::from(
        "# A tidegate volume; several in one file are tables [[volume]] instead (docs/volumes.md). Lines that begin with # show the defaults; remove the # to change one.\n\
         # Read when the daemon starts. Sizes: B KiB MiB GiB TiB, or kB MB GB TB. Durations: us ms s min h d. Shares: per cent of the cache.\n\n",
    );
    let quoted = |text: &str| toml::Value::String(text.to_owned()).to_string();
    let mut path_line = |key: &str, value: Option<String>, default: &str, about: &str| {
        let _ = match value {
            Some(value) => writeln!(text, "# {about}\n{key} = {}\n", quoted(&value)),
            None => writeln!(text, "# {about}\n# Default: {default} beside this file.\n#{key} = \"/path/to/{default}\"\n"),
        };
    };
    let shown = |path: &Path| path.display().to_string();
    path_line(
        "origin",
        named.origin.as_deref().map(shown),
        "origin.img",
        "The slow device or file whose contents the volume shows. It carries no header and stays usable alone.",
    );
    path_line("cache", named.cache.as_deref().map(shown), "cache.img", "The fast device or file that tidegate owns.");
    path_line(
        "nbd",
        named.nbd.as_ref().map(Address::to_string),
        "nbd.sock",
        "Where NBD clients connect: the path of a Unix socket, or an address such as \"127.0.0.1:10809\" (beyond loopback with [tls] only), \
         or a list of them.",
    );
    path_line("control", None, "control.sock", "Where `tidegate status` and `tidegate drain` ask.");
    path_line(
        "state",
        None,
        "tidegate.state",
        "What this host knows of the cache: another one, or an older copy of it, is refused. On a disk that keeps it.",
    );
    text.push_str(MODE);
    let mut section = |header: &str, lines: &[(&str, Option<String>, &str, &str)]| {
        let _ = writeln!(text, "{header}");
        for (key, value, default, about) in lines {
            let _ = match value {
                Some(value) => writeln!(text, "# {about}\n{key} = {value}"),
                None => writeln!(text, "# {about}\n#{key} = {default}"),
            };
        }
        text.push('\n');
    };
    let name = named.name.as_deref().map(quoted);
    let read_only = named.read_only.then(|| "true".to_owned());
    section(
        "[export]",
        &[
            ("name", name, "\"\"", "The name that clients ask for; who asks for none gets this volume too."),
            ("description", None, "\"\"", "Text for people, in lists of exports."),
            ("read_only", read_only, "false", "Clients may not change anything. What is dirty goes home all the same."),
            (
                "clients",
                None,
                "[\"dns:vm7.example.org\"]",
                "Who may use it over TLS, by names in client certificates (dns:, ip:) or by fingerprint (sha256:); needs client_ca.",
            ),
        ],
    );
    let file = |path: fn(&Certificates) -> Option<&PathBuf>| named.tls.as_ref().and_then(path).map(|path| quoted(&shown(path)));
    section(
        "[tls]",
        &[
            (
                "certificate",
                file(|tls| Some(&tls.certificate)),
                "\"/path/to/server-cert.pem\"",
                "With these, TCP clients must use TLS. PEM files.",
            ),
            ("key", file(|tls| Some(&tls.key)), "\"/path/to/server-key.pem\"", "The private key of the certificate."),
            (
                "client_ca",
                file(|tls| tls.client_ca.as_ref()),
                "\"/path/to/ca-cert.pem\"",
                "Clients need a certificate of this authority. Without it, whoever reaches the port may connect.",
            ),
        ],
    );
    text.push_str(KNOBS);
    text
}
