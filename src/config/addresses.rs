//! `nbd`: one address, or a list of them.

use serde::de::{Deserializer, Error, SeqAccess, Visitor};
use tidegate_daemon::front::nbd::Address;

pub fn read<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<Address>, D::Error> {
    struct Addresses;
    impl<'de> Visitor<'de> for Addresses {
        type Value = Vec<Address>;

        fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str("an address or a list of addresses")
        }
        fn visit_str<E: Error>(self, text: &str) -> Result<Vec<Address>, E> {
            text.parse().map(|address| vec![address]).map_err(E::custom)
        }
        fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Vec<Address>, A::Error> {
            let mut addresses = Vec::new();
            while let Some(text) = list.next_element::<String>()? {
                addresses.push(text.parse().map_err(Error::custom)?);
            }
            if addresses.is_empty() { Err(Error::custom("an empty list; name an address, or leave `nbd` out")) } else { Ok(addresses) }
        }
    }
    deserializer.deserialize_any(Addresses)
}
