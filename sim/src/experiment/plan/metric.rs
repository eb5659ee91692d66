//! What of a run can be reported, and how a plan names it.

use crate::experiment::load::Ask;

/// One number of a run.
#[derive(Clone, Debug, PartialEq)]
pub enum Metric {
    /// From the start of the load to the last answer.
    Seconds,
    RequestsPerSecond,
    /// Pages of 4 KiB per second, however many of them are in one request: what an application sees.
    Iops,
    /// Millions of bytes per second; of a stretch of what was transferred, in MiB, or of all.
    Rate {
        from_mib: Option<u64>,
        to_mib: Option<u64>,
    },
    /// Microseconds; of one kind of request, or of all.
    Latency(Option<Ask>, Rank),
    /// The mean of the mean latencies of reads and of writes, as if there were as many of both; microseconds.
    Unweighted,
    /// Requests under way, on average: by Little's law their rate times their mean latency.
    InFlight,
    /// Commands that a device took.
    Commands(String, Ask),
    /// Of one device, or of all.
    Watts(Option<String>),
    Joules(Option<String>),
    RequestsPerJoule,
    /// Operations on files, of an application.
    OpsPerSecond,
    OpsPerJoule,
    JoulesPerOp,
    /// Times that the disks were started.
    SpinUps,
    /// Blocks of reads that the cache served, per cent.
    HitPercent,
    /// The rate of the slowest 64th of what was transferred, in per cent of the whole's.
    Evenness,
    /// MiB transferred when the throughput first falls below so many MB/s.
    Knee {
        below: f64,
    },
    /// Bytes written to the SSD, metadata included, for each byte that clients wrote. Of an instant configuration.
    WriteAmplification,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rank {
    Mean,
    /// Per mille of the requests that are not slower.
    PerMille(u64),
    Max,
}

const RANKS: [(&str, Rank); 7] = [
    ("mean", Rank::Mean),
    ("p50", Rank::PerMille(500)),
    ("p90", Rank::PerMille(900)),
    ("p95", Rank::PerMille(950)),
    ("p99", Rank::PerMille(990)),
    ("p999", Rank::PerMille(999)),
    ("max", Rank::Max),
];
const ASKS: [(&str, Ask); 3] = [("reads", Ask::Read), ("writes", Ask::Write), ("flushes", Ask::Flush)];

/// The words of an error.
pub const KNOWN: &str = "seconds, requests-per-second, iops, mb-per-second, evenness-percent, knee-mib, mean-us, p50-us (p90, p95, p99, p999, max; `reads-p99-us`), unweighted-mean-us, in-flight, \
                         DEVICE-reads (writes, flushes), watts, DEVICE-watts, joules, DEVICE-joules, requests-per-joule, spin_ups, ops_per_s, ops_per_joule, joules_per_op, hit-percent, \
                         write_amplification";

impl Metric {
    /// The metric of that name; `devices` are those of the configuration.
    pub fn parse(name: &str, devices: &[String]) -> Option<Metric> {
        let simple = match name {
            "seconds" => Some(Metric::Seconds),
            "iops" => Some(Metric::Iops),
            "requests-per-second" => Some(Metric::RequestsPerSecond),
            "mb-per-second" => Some(Metric::Rate { from_mib: None, to_mib: None }),
            "watts" => Some(Metric::Watts(None)),
            "joules" => Some(Metric::Joules(None)),
            "requests-per-joule" => Some(Metric::RequestsPerJoule),
            "spin_ups" => Some(Metric::SpinUps),
            "ops_per_s" => Some(Metric::OpsPerSecond),
            "ops_per_joule" => Some(Metric::OpsPerJoule),
            "joules_per_op" => Some(Metric::JoulesPerOp),
            "unweighted-mean-us" => Some(Metric::Unweighted),
            "in-flight" => Some(Metric::InFlight),
            "hit-percent" => Some(Metric::HitPercent),
            "evenness-percent" => Some(Metric::Evenness),
            "write_amplification" => Some(Metric::WriteAmplification),
            "knee-mib" => Some(Metric::Knee { below: 0.0 }),
            _ => None,
        };
        simple.or_else(|| latency(name)).or_else(|| of_device(name, devices))
    }
}

fn latency(name: &str) -> Option<Metric> {
    let name = name.strip_suffix("-us")?;
    let (ask, rank) = match name.split_once('-') {
        Some((ask, rank)) => (Some(ASKS.iter().find(|(known, _)| *known == ask)?.1), rank),
        None => (None, name),
    };
    let (_, rank) = RANKS.iter().find(|(known, _)| *known == rank)?;
    Some(Metric::Latency(ask, *rank))
}

fn of_device(name: &str, devices: &[String]) -> Option<Metric> {
    let (device, what) = name.rsplit_once('-')?;
    if !devices.iter().any(|known| known == device) {
        return None;
    }
    let device = device.to_string();
    match what {
        "watts" => Some(Metric::Watts(Some(device))),
        "joules" => Some(Metric::Joules(Some(device))),
        _ => ASKS.iter().find(|(known, _)| *known == what).map(|(_, ask)| Metric::Commands(device, *ask)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metrics_are_read_by_name() {
        let devices = ["hdd".to_string(), "fast-ssd".to_string()];
        let parse = |name| Metric::parse(name, &devices);
        assert_eq!(parse("seconds"), Some(Metric::Seconds));
        assert_eq!(parse("p99-us"), Some(Metric::Latency(None, Rank::PerMille(990))));
        assert_eq!(parse("reads-max-us"), Some(Metric::Latency(Some(Ask::Read), Rank::Max)));
        assert_eq!(parse("hdd-writes"), Some(Metric::Commands("hdd".into(), Ask::Write)));
        assert_eq!(parse("fast-ssd-watts"), Some(Metric::Watts(Some("fast-ssd".into()))));
        for unknown in ["", "second", "p98-us", "ssd-writes", "hdd-", "hdd-trims", "-us", "all-p50-us"] {
            assert_eq!(parse(unknown), None, "{unknown}");
        }
    }
}
