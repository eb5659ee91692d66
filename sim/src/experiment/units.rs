//! Sizes and times as a plan writes them: `1MiB`, `460GB`, `2s`, `300us`. A number without a unit is refused (zero excepted).
//! And numbers as a report writes them: the same digits on every machine.

use serde::Deserialize;
use tidegate_engine::block::ATOM_BYTES;
use tidegate_engine::time::Duration;

const SIZES: [(&str, u64); 9] = [
    ("B", 1),
    ("KiB", 1 << 10),
    ("MiB", 1 << 20),
    ("GiB", 1 << 30),
    ("TiB", 1 << 40),
    ("kB", 1_000),
    ("MB", 1_000_000),
    ("GB", 1_000_000_000),
    ("TB", 1_000_000_000_000),
];
const TIMES: [(&str, u64); 6] =
    [("ns", 1), ("us", 1_000), ("ms", 1_000_000), ("s", 1_000_000_000), ("min", 60_000_000_000), ("h", 3_600_000_000_000)];
/// Beyond this, sums of times and sizes could leave 64 bits; no experiment is so long or so large.
const LARGEST: u64 = 1 << 60;

/// A size in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(try_from = "String")]
pub struct Size(pub u64);

impl Size {
    /// In atoms, rounded down.
    pub fn atoms(self) -> u64 {
        self.0 / ATOM_BYTES
    }
}

/// A time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(try_from = "String")]
pub struct Time(pub Duration);

impl TryFrom<String> for Size {
    type Error = String;
    fn try_from(text: String) -> Result<Self, String> {
        parse(&text, &SIZES, "a size such as 4KiB, 1MiB or 460GB").map(Size)
    }
}

impl TryFrom<String> for Time {
    type Error = String;
    fn try_from(text: String) -> Result<Self, String> {
        parse(&text, &TIMES, "a time such as 2s, 500ms or 20us").map(|ns| Time(Duration(ns)))
    }
}

fn parse(text: &str, units: &[(&str, u64)], wanted: &str) -> Result<u64, String> {
    let trimmed = text.trim();
    let end = trimmed.find(|c: char| !c.is_ascii_digit()).unwrap_or(trimmed.len());
    let (digits, unit) = (&trimmed[..end], trimmed[end..].trim());
    let refused = || format!("{:?} is not {wanted}", shorten(text));
    let number: u64 = digits.parse().map_err(|_| refused())?;
    if unit.is_empty() && number == 0 {
        return Ok(0);
    }
    let (_, factor) = units.iter().find(|(name, _)| *name == unit).ok_or_else(refused)?;
    number.checked_mul(*factor).filter(|&value| value <= LARGEST).ok_or_else(|| format!("{:?} is too large", shorten(text)))
}

/// What somebody typed, short enough for a message of one line.
pub fn shorten(text: &str) -> String {
    const CHARS_MAX: usize = 60;
    let clean = text.chars().map(|c| if c.is_control() { ' ' } else { c });
    if text.chars().count() <= CHARS_MAX { clean.collect() } else { clean.take(CHARS_MAX).chain(['…']).collect() }
}

/// Four significant digits, without an exponent: `27.09`, `0.1262`, `11171`.
pub fn show(value: f64) -> String {
    let size = value.abs();
    let decimals = match () {
        () if size >= 1_000.0 => 0,
        () if size >= 100.0 => 1,
        () if size >= 10.0 => 2,
        () if size >= 1.0 => 3,
        () if size >= 0.1 => 4,
        () if size >= 0.01 => 5,
        () => 6,
    };
    let text = format!("{value:.decimals$}");
    if !text.contains('.') {
        return text;
    }
    let text = text.trim_end_matches('0').trim_end_matches('.');
    if text == "-0" { "0".to_string() } else { text.to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_and_times_have_units() {
        let size = |text: &str| Size::try_from(text.to_string()).map(|size| size.0);
        let time = |text: &str| Time::try_from(text.to_string()).map(|time| time.0.0);
        assert_eq!((size("4KiB"), size("460 GB"), size("0")), (Ok(4096), Ok(460_000_000_000), Ok(0)));
        assert_eq!((time("2s"), time("300us"), time("1min")), (Ok(2_000_000_000), Ok(300_000), Ok(60_000_000_000)));
        for bad in ["", "12", "MiB", "-1MiB", "1.5GiB", "1mib", "99999999999TiB", "18446744073709551616B"] {
            let why = size(bad).unwrap_err();
            assert!(why.contains("too large") || why.contains("is not a size such as"), "{why}");
        }
        assert!(time("5").unwrap_err().contains("is not a time"));
    }

    #[test]
    fn numbers_have_four_digits() {
        for (value, shown) in [(27.093, "27.09"), (0.1262, "0.1262"), (11_171.4, "11171"), (6.1, "6.1"), (0.0, "0"), (-0.00000001, "0")] {
            assert_eq!(show(value), shown);
        }
    }
}
