//! How much memory there is for pages.

use std::path::Path;

use tidegate_engine::config::RAM_BLOCKS_LEAST;

use crate::Failure;

/// Unless something else is asked for: this part of what there is, and at most so many bytes.
const PART: u64 = 32;
const MOST: u64 = 256 << 20;

/// Bytes of memory that a volume takes for pages if its owner says nothing.
pub fn default() -> u64 {
    usable().map_or(0, |bytes| (bytes / PART).min(MOST))
}

/// For blocks of so many bytes.
///
/// # Errors
/// More is asked for than there is, or so little that it would be none.
pub fn check(asked: Option<u64>, block_bytes: u64) -> Result<(), Failure> {
    let least = RAM_BLOCKS_LEAST * block_bytes;
    match (asked, usable()) {
        (Some(asked @ 1..), _) if asked < least => {
            let what = format!("`ram` is {asked} bytes, and must hold {RAM_BLOCKS_LEAST} blocks: {least} bytes; or be \"0B\" for none");
            Err(Failure::new(Failure::REFUSED, what))
        }
        (Some(asked), Some(usable)) if asked > usable => {
            let (asked, usable) = (asked >> 20, usable >> 20);
            let what = format!("`ram` is {asked} MiB, and this process may use {usable} MiB of memory; ask for less");
            Err(Failure::new(Failure::REFUSED, what))
        }
        _ => Ok(()),
    }
}

/// Bytes that this process may use: the machine's, or the least limit of the control groups that it is in.
fn usable() -> Option<u64> {
    let machine = std::fs::read_to_string("/proc/meminfo").ok().and_then(|text| total(&text))?;
    let groups = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    Some(limit(Path::new("/sys/fs/cgroup"), &groups).map_or(machine, |limit| limit.min(machine)))
}

/// The least limit of these groups and of those that they are in, as `/proc/self/cgroup` names them (cgroups(7)): `0::/system.slice/a.service` of the
/// second version, `4:memory:/docker/1f` of the first. A container may see less of the path than it is told: what is not there limits nothing.
fn limit(mounts: &Path, groups: &str) -> Option<u64> {
    let of_line = |line: &str| {
        let mut fields = line.splitn(3, ':');
        let (number, controllers, path) = (fields.next()?, fields.next()?, fields.next()?.trim_start_matches('/'));
        let (mount, file) = match (number, controllers.split(',').any(|controller| controller == "memory")) {
            (_, true) => ("memory", "memory.limit_in_bytes"),
            ("0", false) => ("", "memory.max"),
            (_, false) => return None,
        };
        let root = mounts.join(mount);
        let limit_of = |group: &Path| std::fs::read_to_string(root.join(group).join(file)).ok()?.trim().parse::<u64>().ok();
        Path::new(path).ancestors().filter_map(limit_of).min()
    };
    groups.lines().filter_map(of_line).min()
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
    fn the_least_limit_of_all_groups_around_counts() {
        let folder = tempfile::tempdir().unwrap();
        let put = |group: &str, file: &str, text: &str| {
            let group = folder.path().join(group);
            std::fs::create_dir_all(&group).unwrap();
            std::fs::write(group.join(file), text).unwrap();
        };
        let limit = |groups: &str| limit(folder.path(), groups);
        assert_eq!(limit("0::/system.slice/a.service\n"), None);
        put("system.slice/a.service", "memory.max", "max\n");
        assert_eq!(limit("0::/system.slice/a.service\n"), None);
        put("system.slice", "memory.max", "700000000\n");
        put("other", "memory.max", "1\n");
        assert_eq!(limit("0::/system.slice/a.service\n"), Some(700_000_000));
        put("system.slice/a.service", "memory.max", "300000000\n");
        assert_eq!(limit("0::/system.slice/a.service\n"), Some(300_000_000));
        put("memory", "memory.limit_in_bytes", "200000000\n");
        assert_eq!(limit("4:cpu,memory:/docker/1f\n3:pids:/\n0::/nowhere\n"), Some(200_000_000));
        assert_eq!(limit("no such line\n3:pids:/\n"), None);
    }

    #[test]
    fn more_than_there_is_is_refused_and_what_holds_hardly_a_block() {
        assert!(check(None, 4096).is_ok() && check(Some(1 << 20), 65_536).is_ok() && check(Some(0), 4096).is_ok());
        assert!(check(Some(65_536), 4096).is_ok() && check(Some(65_535), 4096).is_err() && check(Some(65_536), 8192).is_err());
        let refusal = check(Some(1 << 60), 4096).unwrap_err().to_string();
        assert!(refusal.contains("`ram` is 1099511627776 MiB, and this process may use"), "{refusal}");
    }
}
