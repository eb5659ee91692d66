//! Sizes, durations and shares as an operator writes and reads them: `8GiB`, `10min`, `70%`. A number without a unit is refused
//! (zero excepted): nobody should have to guess which unit was meant.

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
const DURATIONS: [(&str, u64); 6] =
    [("us", 1_000), ("ms", 1_000_000), ("s", 1_000_000_000), ("min", 60_000_000_000), ("h", 3_600_000_000_000), ("d", 86_400_000_000_000)];

const POWERS: [(&str, u64); 2] = [("mW", 1), ("W", 1_000)];

/// A size in bytes: `8GiB`, `512 B`, `1TB`. Whole numbers only.
pub fn parse_size(text: &str) -> Result<u64, String> {
    parse(text, &SIZES, "a size such as 8GiB, 512MiB or 4096B")
}

/// A size that a disk may have: at least one sector.
pub fn parse_disk_size(text: &str) -> Result<u64, String> {
    let bytes = parse_size(text)?;
    if bytes >= ATOM_BYTES { Ok(bytes) } else { Err(format!("{:?} is less than a sector of {ATOM_BYTES} bytes", shorten(text))) }
}

/// A duration: `2s`, `10min`, `500ms`. Whole numbers only.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    parse(text, &DURATIONS, "a duration such as 2s, 500ms or 10min").map(Duration)
}

/// A power in milliwatts: `6.1W`, `700mW`.
pub fn parse_power(text: &str) -> Result<u64, String> {
    const WANTED: &str = "a power such as 6.1W or 700mW";
    // Tenths and hundredths of a watt are common: they become the smaller unit first.
    let watts = text.trim().strip_suffix(['W', 'w']).map(str::trim_end).and_then(|digits| digits.split_once('.'));
    match watts {
        Some((whole, part))
            if !whole.is_empty() && !part.is_empty() && part.len() <= 3 && part.bytes().all(|digit| digit.is_ascii_digit()) =>
        {
            parse(&format!("{whole}{part:0<3}mW"), &POWERS, WANTED).map_err(|_| format!("{:?} is not {WANTED}", shorten(text)))
        }
        _ => parse(text, &POWERS, WANTED),
    }
}

/// A share of the whole in per cent, 0 to 100: `10%`.
pub fn parse_share(text: &str) -> Result<u32, String> {
    let wanted = || format!("{:?} is not a share such as 10%", shorten(text));
    let digits = text.trim().strip_suffix('%').ok_or_else(wanted)?;
    let share: u32 = digits.trim().parse().map_err(|_| wanted())?;
    if share <= 100 { Ok(share) } else { Err(format!("{:?} is more than 100%", shorten(text))) }
}

fn parse(text: &str, units: &[(&str, u64)], wanted: &str) -> Result<u64, String> {
    let trimmed = text.trim();
    let end = trimmed.find(|c: char| !c.is_ascii_digit()).unwrap_or(trimmed.len());
    let (digits, unit) = (&trimmed[..end], trimmed[end..].trim());
    let refused = || format!("{:?} is not {wanted}", shorten(text));
    if digits.is_empty() {
        return Err(refused());
    }
    let overflow = || format!("{:?} is too large", shorten(text));
    let number: u64 = digits.parse().map_err(|_| overflow())?;
    if unit.is_empty() && number == 0 {
        return Ok(0);
    }
    if unit.is_empty() {
        let names: Vec<&str> = units.iter().map(|(name, _)| *name).collect();
        return Err(format!("{:?} has no unit: one of {}", shorten(text), names.join(", ")));
    }
    let (_, factor) = units.iter().find(|(name, _)| name.eq_ignore_ascii_case(unit)).ok_or_else(refused)?;
    number.checked_mul(*factor).ok_or_else(overflow)
}

/// What an operator typed, short enough for a message of one line.
pub fn shorten(text: &str) -> String {
    const CHARS_MAX: usize = 40;
    if text.chars().count() <= CHARS_MAX { text.to_owned() } else { text.chars().take(CHARS_MAX).chain(['…']).collect() }
}

/// `8.0 GiB`; below 1 KiB the plain number of bytes.
pub fn show_size(bytes: u64) -> String {
    let mut amount = bytes as f64;
    let mut unit = "B";
    for next in ["KiB", "MiB", "GiB", "TiB"] {
        if amount < 1024.0 {
            break;
        }
        amount /= 1024.0;
        unit = next;
    }
    if unit == "B" { format!("{bytes} B") } else { format!("{amount:.1} {unit}") }
}

/// `150.0 TB`: as makers of disks count.
pub fn show_decimal(bytes: u64) -> String {
    let (unit, size) = SIZES[5..].iter().rev().find(|(_, size)| bytes >= *size).unwrap_or(&SIZES[0]);
    if *size == 1 { format!("{bytes} B") } else { format!("{:.1} {unit}", bytes as f64 / *size as f64) }
}

/// `12 days`, `1.5 days`, `90000 days`.
pub fn show_days(days: f64) -> String {
    if days < 10.0 { format!("{days:.1} days") } else { format!("{days:.0} days") }
}

/// `3 s`, `2 min 05 s`, `1 h 02 min`; fractions below ten seconds.
pub fn show_seconds(seconds: f64) -> String {
    let whole = seconds.round() as u64;
    match whole {
        0..=9 => format!("{seconds:.1} s"),
        10..=59 => format!("{whole} s"),
        60..=3599 => format!("{} min {:02} s", whole / 60, whole % 60),
        _ => format!("{} h {:02} min", whole / 3600, whole % 3600 / 60),
    }
}

/// `37 us`, `1.20 ms`: nanoseconds as a latency.
pub fn show_latency(ns: u64) -> String {
    match ns {
        0..=999_999 => format!("{:.1} us", ns as f64 / 1e3),
        1_000_000..=999_999_999 => format!("{:.2} ms", ns as f64 / 1e6),
        _ => format!("{:.2} s", ns as f64 / 1e9),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_need_a_unit_and_must_fit() {
        for (text, expected) in [
            ("8GiB", Ok(8 << 30)),
            ("512 B", Ok(512)),
            (" 1gib ", Ok(1 << 30)),
            ("1MB", Ok(1_000_000)),
            ("0", Ok(0)),
            ("16777215TiB", Ok(16_777_215 << 40)),
            ("16777216TiB", Err("\"16777216TiB\" is too large")),
            ("99999999999999999999B", Err("\"99999999999999999999B\" is too large")),
            ("8", Err("\"8\" has no unit: one of B, KiB, MiB, GiB, TiB, kB, MB, GB, TB")),
            ("8 GB iB", Err("\"8 GB iB\" is not a size such as 8GiB, 512MiB or 4096B")),
            ("-8GiB", Err("\"-8GiB\" is not a size such as 8GiB, 512MiB or 4096B")),
            ("1.5GiB", Err("\"1.5GiB\" is not a size such as 8GiB, 512MiB or 4096B")),
            ("", Err("\"\" is not a size such as 8GiB, 512MiB or 4096B")),
        ] {
            assert_eq!(parse_size(text), expected.map_err(str::to_owned), "{text:?}");
        }
    }

    #[test]
    fn a_disk_has_a_sector_at_least() {
        assert_eq!(parse_disk_size("512B"), Ok(512));
        for text in ["0B", "0", "511B"] {
            assert_eq!(parse_disk_size(text), Err(format!("{text:?} is less than a sector of 512 bytes")));
        }
    }

    #[test]
    fn powers_may_have_fractions_of_a_watt() {
        assert_eq!(
            (parse_power("6.1W"), parse_power("0.85 w"), parse_power("700mW"), parse_power("7W")),
            (Ok(6_100), Ok(850), Ok(700), Ok(7_000))
        );
        for text in ["6.1mW", "6.W", "6,1W", "1.2345W", ".5W", "-1W"] {
            assert!(parse_power(text).unwrap_err().ends_with("is not a power such as 6.1W or 700mW"), "{text}");
        }
    }

    #[test]
    fn durations_and_shares_are_read_in_their_units() {
        assert_eq!(parse_duration("10min"), Ok(Duration::from_secs(600)));
        assert_eq!(parse_duration("500ms"), Ok(Duration::from_millis(500)));
        assert!(parse_duration("2 weeks").unwrap_err().contains("is not a duration"));
        assert_eq!(parse_share("70%"), Ok(70));
        assert!(parse_share("101%").unwrap_err().contains("more than 100%"));
        assert!(parse_share("0.7").is_err());
    }

    #[test]
    fn a_long_argument_is_not_repeated_whole() {
        assert!(parse_size(&"9".repeat(1 << 20)).unwrap_err().len() < 200);
    }

    #[test]
    fn what_is_shown_is_short_and_has_a_unit() {
        assert_eq!(show_size(4096), "4.0 KiB");
        assert_eq!(show_size(511), "511 B");
        assert_eq!(show_seconds(2.34), "2.3 s");
        assert_eq!(show_seconds(125.0), "2 min 05 s");
        assert_eq!(show_seconds(3720.0), "1 h 02 min");
        assert_eq!(show_latency(37_400), "37.4 us");
        assert_eq!([999, 1_500, 150_000_000_000_000].map(show_decimal), ["999 B", "1.5 kB", "150.0 TB"]);
        assert_eq!([1.25, 1739.2].map(show_days), ["1.2 days", "1739 days"]);
    }
}
