//! `clients`: names and fingerprints of certificates, each understood when the file is read.

use serde::Deserialize;
use serde::de::{Deserializer, Error};
use tidegate_daemon::front::nbd::Allowed;

pub fn read<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<Allowed>, D::Error> {
    let texts = Vec::<String>::deserialize(deserializer)?;
    if texts.is_empty() {
        // Who takes the last name off the list does not mean everybody.
        return Err(D::Error::custom("`clients` names nobody: name somebody, or leave the line out to let in whoever has a certificate"));
    }
    texts.iter().map(|text| text.parse().map_err(D::Error::custom)).collect()
}
