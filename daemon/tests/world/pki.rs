//! An authority of our own, and what it signs: PEM files under the names that libnbd and qemu look for in a folder.

use std::fs;
use std::path::Path;

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose as Usage, IsCa, KeyPair, KeyUsagePurpose,
};

/// Writes `ca-cert.pem`, `server-cert.pem`, `server-key.pem` (for localhost and 127.0.0.1), `client-cert.pem` and `client-key.pem`.
pub fn write(dir: &Path) {
    fs::create_dir_all(dir).expect("a folder");
    let put = |name: &str, text: String| fs::write(dir.join(name), text).expect("a file");
    let mut params = CertificateParams::new(vec![]).expect("no names");
    params.distinguished_name.push(DnType::CommonName, "an authority");
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    let ca = CertifiedIssuer::self_signed(params, KeyPair::generate().expect("a key")).expect("a certificate");
    put("ca-cert.pem", ca.pem());
    for (name, names, usage) in
        [("server", vec!["localhost".to_owned(), "127.0.0.1".to_owned()], Usage::ServerAuth), ("client", vec![], Usage::ClientAuth)]
    {
        let mut params = CertificateParams::new(names).expect("names");
        params.distinguished_name.push(DnType::CommonName, name);
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature, KeyUsagePurpose::KeyEncipherment];
        params.extended_key_usages = vec![usage];
        let key = KeyPair::generate().expect("a key");
        put(&format!("{name}-cert.pem"), params.signed_by(&key, &ca).expect("a certificate").pem());
        put(&format!("{name}-key.pem"), key.serialize_pem());
    }
}
