//! What time of the day it is, where this machine is.

/// Seconds since midnight, local time; without a time zone, those of UTC.
pub fn second_of_day() -> u32 {
    const DAY: i64 = 86_400;
    // SAFETY: a plain system call without memory of ours.
    let now = unsafe { libc::time(std::ptr::null_mut()) };
    // SAFETY: all of it are numbers and a pointer, for which zeros are valid contents.
    let mut local: libc::tm = unsafe { std::mem::zeroed() };
    // SAFETY: both live across the call, which fills the second.
    let is_known = unsafe { !libc::localtime_r(&raw const now, &raw mut local).is_null() };
    let seconds = if is_known { i64::from(local.tm_hour * 3600 + local.tm_min * 60 + local.tm_sec) } else { now };
    seconds.rem_euclid(DAY) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_some_time_of_the_day() {
        let (before, after) = (second_of_day(), second_of_day());
        assert!(before < 86_400 && (after + 86_400 - before) % 86_400 < 60);
    }
}
