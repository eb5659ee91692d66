//! How much memory there is for pages.

use crate::Failure;

/// Unless something else is asked for: this part of what there is, and at most so many bytes.
const PART: u64 = 32;
const MOST: u64 = 256 << 20;

/// Bytes of memory that a volume takes for pages if its owner says nothing.
pub fn default() -> u64 {
    usable().map_or(0, |bytes| (bytes / PART).min(MOST))
}

/// # Errors
/// More is asked for than there is.
pub fn check(asked: Option<u64>) -> Result<(), Failure> {
    match (asked, usable()) {
        (Some(asked), Some(usable)) if asked > usable => {
            let (asked, usable) = (asked >> 20, usable >> 20);
            let what = format!("`ram` is {asked} MiB, and this process may use {usable} MiB of memory; ask for less");
            Err(Failure::new(Failure::REFUSED, what))
        }
        _ => Ok(()),
    }
}

/// Bytes that this process may use: the machine's, or the limit of its control group.
fn usable() -> Option<u64> {
    let machine = std::fs::read_to_string("/proc/meminfo").ok().and_then(|text| total(&text))?;
    let group = std::fs::read_to_string("/sys/fs/cgroup/memory.max").ok().and_then(|text| text.trim().parse().ok());
    Some(group.unwrap_or(u64::MAX).min(machine))
}

/// `MemTotal:       24652332 kB` among others.
fn total(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    Some(line.trim().strip_suffix(" kB")?.parse::<u64>().ok()? << 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_says_how_much_there_is() {
        assert_eq!(total("MemFree: 7 kB\nMemTotal:       24652332 kB\nBuffers: 1 kB\n"), Some(24_652_332 << 10));
        assert_eq!(total("MemFree: 7 kB\n"), None);
        assert!(usable().is_some_and(|bytes| bytes > 64 << 20), "{:?}", usable());
        assert!((1 << 20..=MOST).contains(&default()));
    }

    #[test]
    fn more_than_there_is_is_refused() {
        assert!(check(None).is_ok() && check(Some(1 << 20)).is_ok());
        let refusal = check(Some(1 << 60)).unwrap_err().to_string();
        assert!(refusal.contains("`ram` is 1099511627776 MiB, and this process may use"), "{refusal}");
    }
}
