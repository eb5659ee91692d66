//! `clients`: names and fingerprints of certificates, each understood when the file is read.

use serde::Deserialize;
use serde::de::{Deserializer, Error};
use tidegate_daemon::front::nbd::Allowed;

pub fn read<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<Allowed>, D::Error> {
    let texts = Vec::<String>::deserialize(deserializer)?;
    texts.iter().map(|text| text.parse().map_err(D::Error::custom)).collect()
}
