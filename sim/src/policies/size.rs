//! How large a cache is to be: in blocks, in bytes, or as a share of the blocks that a trace asks for.

use std::fmt;
use std::str::FromStr;

use super::BLOCK_BYTES;
use crate::experiment::units::{self, shorten};

/// A hundredth: four decimals are read.
const SHARE_UNIT: u64 = 10_000;
const DECIMALS: usize = 4;
/// Blocks of the largest size that is read as bytes, 2^60.
const BLOCKS_MAX: u64 = (1 << 60) / BLOCK_BYTES;

/// As it was asked for; what it comes to depends on the trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Size {
    Blocks(u64),
    Bytes(u64),
    /// Of the working set, in ten-thousandths of a per cent.
    Share(u64),
}

impl Size {
    /// A hundred per cent.
    pub const WHOLE: u64 = 100 * SHARE_UNIT;
    /// Shares that say where a trace's working set begins to fit.
    pub const USUAL: &str = "1%,5%,10%,25%,50%";

    /// Why it cannot be said in blocks of so many bytes (`None`: nobody knows how many).
    pub fn unfit(self, block_bytes: Option<u64>) -> Option<String> {
        match (self, block_bytes) {
            (Size::Blocks(_) | Size::Share(_), _) => None,
            (Size::Bytes(_), None) => {
                Some(format!("{self} is bytes, and nobody knows how many a key has: say --page, or blocks, or a share"))
            }
            (Size::Bytes(bytes), Some(block)) => (bytes < block).then(|| format!("{self} is less than a block of {}", show_bytes(block))),
        }
    }

    /// Whole blocks, one at least. `block_bytes`: of one, if that is known.
    ///
    /// # Panics
    /// If it is [`unfit`](Size::unfit).
    pub fn blocks(self, working_set: u64, block_bytes: Option<u64>) -> u64 {
        match self {
            Size::Blocks(blocks) => blocks,
            Size::Bytes(bytes) => bytes / block_bytes.expect("nobody asks for bytes of a key"),
            Size::Share(share) => ((u128::from(working_set) * u128::from(share) / u128::from(Size::WHOLE)) as u64).max(1),
        }
    }
}

impl FromStr for Size {
    type Err = String;

    fn from_str(text: &str) -> Result<Size, String> {
        let text = text.trim();
        let refused =
            || format!("{:?} is no size of a cache: blocks (2692), bytes (10GiB) or a share of the working set (1%)", shorten(text));
        if let Some(share) = text.strip_suffix('%') {
            let share = parse_share(share.trim()).ok_or_else(refused)?;
            return match share {
                0 => Err(refused()),
                1..=Size::WHOLE => Ok(Size::Share(share)),
                _ => Err(format!("{:?} is more than 100% of the working set", shorten(text))),
            };
        }
        if !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()) {
            return match text.parse() {
                Ok(0) => Err(refused()),
                Ok(blocks) if blocks <= BLOCKS_MAX => Ok(Size::Blocks(blocks)),
                _ => Err(format!("{:?} blocks are too many", shorten(text))),
            };
        }
        let units::Size(bytes) = text.to_owned().try_into().map_err(|_| refused())?;
        if bytes < BLOCK_BYTES {
            return Err(format!("{:?} is less than a block of 4KiB, the least that is compared", shorten(text)));
        }
        Ok(Size::Bytes(bytes))
    }
}

/// `12.5`, in units of [`SHARE_UNIT`].
fn parse_share(text: &str) -> Option<u64> {
    let (whole, decimals) = text.split_once('.').unwrap_or((text, "0"));
    let are_digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    if !are_digits(whole) || !are_digits(decimals) || decimals.len() > DECIMALS {
        return None;
    }
    let decimals: u64 = format!("{decimals:0<DECIMALS$}").parse().ok()?;
    whole.parse::<u64>().ok()?.checked_mul(SHARE_UNIT)?.checked_add(decimals)
}

impl fmt::Display for Size {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = match self {
            Size::Blocks(blocks) => blocks.to_string(),
            Size::Bytes(bytes) => show_bytes(*bytes),
            Size::Share(share) => format!("{}%", *share as f64 / SHARE_UNIT as f64),
        };
        to.pad(&text)
    }
}

/// `10.5 MiB`.
pub fn show_bytes(bytes: u64) -> String {
    const UNITS: [(&str, u64); 5] = [("B", 1), ("KiB", 1 << 10), ("MiB", 1 << 20), ("GiB", 1 << 30), ("TiB", 1 << 40)];
    let (unit, size) = UNITS.iter().rev().find(|(_, size)| bytes >= *size).unwrap_or(&UNITS[0]);
    if *size == 1 { format!("{bytes} B") } else { format!("{:.1} {unit}", bytes as f64 / *size as f64) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str, working_set: u64, expected: Result<u64, &str>) {
        let found = text.parse::<Size>().map(|size| size.blocks(working_set, Some(BLOCK_BYTES)));
        match (found, expected) {
            (Ok(found), Ok(expected)) => assert_eq!(found, expected, "{text}"),
            (Err(found), Err(says)) => assert!(found.contains(says) && !found.contains('\n'), "{text}: {found}"),
            (found, expected) => panic!("{text:?}: {found:?}, not {expected:?}"),
        }
    }

    #[test]
    fn a_size_is_blocks_bytes_or_a_share() {
        check("2692", 5, Ok(2692));
        check("10GiB", 5, Ok(10 << 18));
        check(" 8 KiB", 5, Ok(2));
        check("4097B", 5, Ok(1));
        check("1%", 269_210, Ok(2692));
        check("12.5%", 1_000, Ok(125));
        check("0.0001%", 10, Ok(1));
        check("100%", 10, Ok(10));
    }

    #[test]
    fn bytes_are_as_many_blocks_as_their_length_says() {
        assert_eq!([512, 4096, 8192].map(|block| Size::Bytes(1 << 30).blocks(1, Some(block))), [2 << 20, 1 << 18, 1 << 17]);
        assert!(Size::Bytes(4096).unfit(Some(8192)).unwrap().contains("4.0 KiB is less than a block of 8.0 KiB"));
        assert!(Size::Bytes(4096).unfit(None).unwrap().contains("say --page"));
        assert!(
            Size::Blocks(5).unfit(None).is_none() && Size::Share(5).unfit(None).is_none() && Size::Bytes(4096).unfit(Some(512)).is_none()
        );
        assert_eq!((show_bytes(512), show_bytes(1024)), ("512 B".to_string(), "1.0 KiB".to_string()));
    }

    #[test]
    fn what_is_no_size_is_refused() {
        for text in ["", "0", "0%", "-1", "1.5", "1,5%", "%", ".%", "1.%", "0.00001%", "10 blocks", "half"] {
            check(text, 10, Err("is no size of a cache"));
        }
        check("101%", 10, Err("more than 100%"));
        check("4095B", 10, Err("less than a block"));
        check("18446744073709551616", 10, Err("too many"));
        check("18446744073709551615", 10, Err("too many"));
        check("18446744073709551616GiB", 10, Err("is no size"));
    }
}
