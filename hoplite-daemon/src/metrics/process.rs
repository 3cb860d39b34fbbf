//! Memory, time and descriptors of this process, named as by Prometheus' clients.

use std::fs;
use std::time::{SystemTime, UNIX_EPOCH};

use prometheus::{Counter, IntGauge, Registry};
use rustix::param::{clock_ticks_per_second, page_size};
use rustix::process::{Resource, getrlimit};

use super::register::{level, registered};

pub(super) struct ProcessMetrics {
    cpu_seconds: Counter,
    resident_bytes: IntGauge,
    open_fds: IntGauge,
    max_fds: IntGauge,
}

impl ProcessMetrics {
    pub(super) fn new(registry: &Registry) -> Self {
        let gauge = |name, help| registered(registry, IntGauge::new(name, help));
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        gauge("process_start_time_seconds", "Start time of the process, in seconds since 1970.")
            .set(level(now.as_secs()));
        let cpu = Counter::new("process_cpu_seconds_total", "User and system CPU time.");
        Self {
            cpu_seconds: registered(registry, cpu),
            resident_bytes: gauge(
                "process_resident_memory_bytes",
                "Memory in use, shared memory included.",
            ),
            open_fds: gauge("process_open_fds", "File descriptors in use."),
            max_fds: gauge("process_max_fds", "Limit on open file descriptors."),
        }
    }

    pub(super) fn update(&self) {
        if let Some(seconds) = cpu_seconds() {
            self.cpu_seconds.inc_by((seconds - self.cpu_seconds.get()).max(0.0));
        }
        if let Some(pages) = field("/proc/self/statm", 1) {
            self.resident_bytes.set(level(pages.saturating_mul(page_size() as u64)));
        }
        if let Ok(entries) = fs::read_dir("/proc/self/fd") {
            self.open_fds.set(level(entries.count()));
        }
        if let Some(most) = getrlimit(Resource::Nofile).current {
            self.max_fds.set(level(most));
        }
    }
}

fn cpu_seconds() -> Option<f64> {
    let stat = fs::read_to_string("/proc/self/stat").ok()?;
    // The program's name, in parentheses, may contain any character.
    let (_, after_name) = stat.rsplit_once(')')?;
    let ticks = after_name.split_whitespace().skip(11).take(2).map(str::parse::<u64>);
    let ticks = ticks.sum::<Result<u64, _>>().ok()?;
    Some(ticks as f64 / clock_ticks_per_second() as f64)
}

fn field(path: &str, index: usize) -> Option<u64> {
    fs::read_to_string(path).ok()?.split_whitespace().nth(index)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_process_metrics_are_read() {
        let metrics = ProcessMetrics::new(&Registry::new());
        metrics.update();
        assert!(metrics.resident_bytes.get() > 100 << 10);
        assert!(metrics.open_fds.get() >= 3);
        assert!(metrics.max_fds.get() >= metrics.open_fds.get());
        assert!(cpu_seconds().is_some());
    }
}
