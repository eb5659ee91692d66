//! What a value of the file may be; what it may not be is refused where it stands.

use serde::Deserialize;
use tidegate_daemon::front::HANDS_MAX;
use tidegate_engine::policy;
use tidegate_engine::queue::QueueKind;
use tidegate_engine::time::Duration;

use crate::units;

const COUNT_MAX: u64 = 65_536;
/// Lanes of an SSD at most: more than any has channels.
const LANES_MAX: u64 = 256;

/// A value that the file has as text.
macro_rules! text {
    ($(#[$doc:meta])* $name:ident($inner:ty) = $parse:expr) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
        #[serde(try_from = "String")]
        pub struct $name(pub $inner);

        impl TryFrom<String> for $name {
            type Error = String;
            fn try_from(text: String) -> Result<Self, String> {
                $parse(&text).map($name)
            }
        }
    };
}

/// A value that the file has as a number within bounds.
macro_rules! number {
    ($(#[$doc:meta])* $name:ident($inner:ty) = $least:literal ..= $most:expr, $what:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
        #[serde(try_from = "i64")]
        pub struct $name(pub $inner);

        impl TryFrom<i64> for $name {
            type Error = String;
            fn try_from(number: i64) -> Result<Self, String> {
                match u64::try_from(number) {
                    Ok(within) if ($least..=$most).contains(&within) => Ok($name(within as $inner)),
                    _ => Err(format!(concat!("{} is not a ", $what, " to {}"), number, $most)),
                }
            }
        }
    };
}

text!(
    /// Per cent of the cache.
    Share(u32) = units::parse_share
);
text!(
    /// Bytes.
    Size(u64) = units::parse_size
);
text!(Span(Duration) = units::parse_duration);
text!(
    /// Which page goes for another one.
    Policy(policy::Kind) = str::parse
);
text!(Scheduler(QueueKind) = str::parse);
text!(
    /// What a FLUSH promises.
    Mode(tidegate_engine::Mode) = str::parse
);

number!(Count(usize) = 1..=COUNT_MAX, "count from 1");
number!(
    /// Blocks whose places on the origin are read again at a start.
    Samples(u32) = 0..=COUNT_MAX, "number of blocks from 0 (none)"
);
number!(Threads(usize) = 0..=HANDS_MAX as u64, "number of threads from 0 (the volume's own)");
number!(
    /// Lanes of a device.
    Lanes(u32) = 1..=LANES_MAX, "number of lanes from 1 (nothing is known of them)"
);
