use std::fs;
use std::time::Duration;

use anyhow::Context;

/// Returns the processor time of processes, usually in steps of 10 ms.
pub(super) fn time_of(pids: &[u32]) -> anyhow::Result<Duration> {
    let mut total = Duration::ZERO;
    for pid in pids {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat"))
            .context("cannot read a process's times")?;
        let ticks = ticks(&stat).context("cannot understand a process's times")?;
        total +=
            Duration::from_secs_f64(ticks as f64 / rustix::param::clock_ticks_per_second() as f64);
    }
    Ok(total)
}

/// Adds `utime` and `stime`, fields 14 and 15. Field 2, in parentheses, may contain any text.
fn ticks(stat: &str) -> Option<u64> {
    let (_, fields) = stat.rsplit_once(')')?;
    let mut fields = fields.split_ascii_whitespace().skip(11);
    Some(fields.next()?.parse::<u64>().ok()? + fields.next()?.parse::<u64>().ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_found_behind_any_name() {
        let stat = "7 (a) 1 (b) S 1 7 7 0 -1 4194304 100 0 0 0 30 12 0 0 20 0 1 0 100 0 0";
        assert_eq!(ticks(stat), Some(42));
        assert_eq!(ticks("7 (a) S 1"), None);
        assert_eq!(ticks(""), None);
    }

    #[test]
    fn this_process_has_times() {
        assert!(time_of(&[std::process::id()]).is_ok());
        assert!(time_of(&[u32::MAX]).is_err());
    }
}
