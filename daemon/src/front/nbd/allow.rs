//! Who may use an export over TLS: the names and fingerprints of client certificates. An authority says who somebody is; this list says
//! what they may have. (Clients of the Unix socket show no certificate: there the file's permissions decide.)

use std::fmt;
use std::str::FromStr;

use ring::digest::{SHA256, digest};
use rustls::pki_types::{CertificateDer, ServerName};
use webpki::EndEntityCert;

use super::address::Address;
use super::socket::Listener;
use super::tls::Certificates;

/// One client, or all that share a name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Allowed {
    /// SHA-256 over the certificate in DER form: this very one.
    Fingerprint([u8; 32]),
    /// A DNS name or an IP address among the certificate's subject alternative names; `*.example.org` in it stands for one label.
    Name(ServerName<'static>),
}

impl Allowed {
    pub fn fits(&self, certificate: &CertificateDer<'_>) -> bool {
        match self {
            Allowed::Fingerprint(bytes) => digest(&SHA256, certificate).as_ref() == bytes,
            Allowed::Name(name) => {
                EndEntityCert::try_from(certificate).is_ok_and(|certificate| certificate.verify_is_valid_for_subject_name(name).is_ok())
            }
        }
    }
}

/// Who may connect there without having to show anything, where that is more than the socket's owner.
pub(super) fn whoever_connects(listener: &Listener, tls: Option<&Certificates>) -> Option<String> {
    let address = listener.address();
    match (address, tls) {
        (Address::Unix(_), _) => listener.lets_in().map(str::to_owned),
        (Address::Tcp(_), None) => {
            Some(format!("NBD in plain text on {address}: every user of this machine may connect; a Unix socket is its owner's alone"))
        }
        (Address::Tcp(_), Some(Certificates { client_ca: None, .. })) if address.needs_tls() => {
            Some(format!("NBD over TLS on {address}: whoever reaches it may connect; client_ca below [tls] asks for certificates"))
        }
        (Address::Tcp(_), Some(_)) => None,
    }
}

/// Who asks.
#[derive(Clone, Copy, Debug)]
pub enum Who<'a> {
    /// Somebody whom the permissions of a socket let in, or everybody where TLS is not required.
    Anybody,
    /// The other end of TLS, and what it has shown.
    Shown(Option<&'a CertificateDer<'a>>),
}

/// May they use what is for those in `list`? An empty one is for whoever got so far.
pub fn allows(list: &[Allowed], who: Who<'_>) -> bool {
    match who {
        Who::Anybody => true,
        Who::Shown(certificate) => {
            list.is_empty() || certificate.is_some_and(|certificate| list.iter().any(|allowed| allowed.fits(certificate)))
        }
    }
}

impl FromStr for Allowed {
    type Err = String;

    /// `sha256:` and 64 hexadecimal digits, with colons or without; `dns:` and a name; `ip:` and an address.
    fn from_str(text: &str) -> Result<Allowed, String> {
        let wrong = |what: &str| format!("`{}`: {what}", text.escape_debug());
        let (kind, value) = text.split_once(':').unwrap_or(("", text));
        match kind {
            "sha256" => fingerprint(value).map(Allowed::Fingerprint).ok_or_else(|| wrong("a fingerprint has 64 hexadecimal digits")),
            "dns" | "ip" => match (kind, ServerName::try_from(value.to_owned())) {
                ("dns", Ok(name @ ServerName::DnsName(_))) | ("ip", Ok(name @ ServerName::IpAddress(_))) => Ok(Allowed::Name(name)),
                _ => Err(wrong(if kind == "dns" { "no DNS name" } else { "no IP address" })),
            },
            _ => Err(wrong("give sha256:FINGERPRINT, dns:NAME or ip:ADDRESS")),
        }
    }
}

fn fingerprint(text: &str) -> Option<[u8; 32]> {
    let digits: Vec<u8> =
        text.bytes().filter(|&byte| byte != b':').map(|byte| char::from(byte).to_digit(16).map(|d| d as u8)).collect::<Option<_>>()?;
    let bytes: Vec<u8> = digits.chunks(2).map(|pair| pair.iter().fold(0, |byte, digit| byte << 4 | digit)).collect();
    (digits.len() == 64).then(|| bytes.try_into().expect("32 bytes"))
}

impl fmt::Display for Allowed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Allowed::Fingerprint(bytes) => {
                f.write_str("sha256:")?;
                bytes.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
            }
            Allowed::Name(name @ ServerName::IpAddress(_)) => write!(f, "ip:{}", name.to_str()),
            Allowed::Name(name) => write!(f, "dns:{}", name.to_str()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rcgen::{CertificateParams, KeyPair};

    fn certificate(names: &[&str]) -> CertificateDer<'static> {
        let params = CertificateParams::new(names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>()).unwrap();
        params.self_signed(&KeyPair::generate().unwrap()).unwrap().der().clone()
    }

    fn list(texts: &[&str]) -> Vec<Allowed> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    #[test]
    fn s2_a_certificate_is_known_by_a_name_or_by_its_fingerprint() {
        let nas = certificate(&["nas.example.org", "192.0.2.7"]);
        let other = certificate(&["other.example.org"]);
        let fingerprint =
            format!("sha256:{}", digest(&SHA256, &nas).as_ref().iter().map(|byte| format!("{byte:02X}")).collect::<Vec<_>>().join(":"));
        for by in ["dns:nas.example.org", "dns:NAS.example.org", "ip:192.0.2.7", &fingerprint] {
            assert!(allows(&list(&[by]), Who::Shown(Some(&nas))), "{by}");
            assert!(!allows(&list(&[by]), Who::Shown(Some(&other))), "{by}");
            assert!(!allows(&list(&[by]), Who::Shown(None)), "{by}: no certificate at all");
        }
        assert!(allows(&list(&["dns:other.example.org", &fingerprint]), Who::Shown(Some(&nas))), "one of the list is enough");
        assert!(!allows(&list(&["dns:example.org", "dns:s.example.org", "ip:192.0.2.70"]), Who::Shown(Some(&nas))));
        assert!(allows(&[], Who::Shown(None)), "without a list, whoever got so far");
        assert!(allows(&list(&["dns:nas.example.org"]), Who::Anybody), "the socket's permissions decide");
        assert!(!allows(&list(&["dns:nas.example.org"]), Who::Shown(Some(&CertificateDer::from(vec![0; 40])))));
    }

    #[test]
    fn what_is_no_name_is_refused_and_what_is_one_is_shown_as_it_is_read() {
        for wrong in ["", "nas", "sha256:", "sha256:12", "dns:", "dns:192.0.2.7", "ip:nas", "ip:192.0.2", "cn:nas", "dns:a b", "dns:nas\n"]
        {
            let message = wrong.parse::<Allowed>().unwrap_err();
            assert!(message.starts_with('`') && !message.contains('\n'), "{message}");
        }
        for text in [format!("sha256:{}", "0a".repeat(32)), "dns:nas.example.org".into(), "ip:2001:db8::1".into()] {
            assert_eq!(text.parse::<Allowed>().unwrap().to_string(), text);
        }
    }
}
