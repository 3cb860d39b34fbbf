use std::io::{self, Write};
use std::time::Duration;

use serde::Serialize;

use crate::output::{Alignment, Table};

const SAMPLES_FOR_P99: usize = 100;

#[derive(Debug, Serialize)]
pub(super) struct Report {
    benchmark: &'static str,
    build: &'static str,
    cores: usize,
    notes: Vec<String>,
    measurements: Vec<Measurement>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    figures: Vec<Figure>,
}

/// A result other than a time. Its name tells if `target` is a lower or an upper limit.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Figure {
    pub(super) name: String,
    pub(super) value: f64,
    pub(super) target: Option<f64>,
}

#[derive(Debug, Clone, Serialize)]
pub(super) struct Measurement {
    name: String,
    samples: usize,
    median_s: f64,
    p99_s: Option<f64>,
    minimum_s: f64,
    maximum_s: f64,
    bytes: Option<u64>,
    gb_per_s: Option<f64>,
    cpu_s: Option<f64>,
    beside: Option<Comparison>,
    #[serde(skip_serializing_if = "Option::is_none")]
    broadcast: Option<Broadcast>,
    #[serde(skip_serializing_if = "Option::is_none")]
    traffic: Option<Traffic>,
}

/// A result as a multiple of the floor, a measurement without Hoplite.
#[derive(Debug, Clone, Serialize)]
struct Comparison {
    floor: String,
    times: f64,
}

#[derive(Debug, Clone, Serialize)]
pub(super) struct Broadcast {
    /// Each receiver's median time since its arrival, in order of arrival.
    pub(super) receivers_s: Vec<f64>,
    pub(super) last_s: f64,
    pub(super) origin_sent_objects: f64,
}

/// Largest number of bytes that any node sent and received (median of rounds), as multiples of the
/// object's size.
#[derive(Debug, Clone, Copy, Serialize)]
pub(super) struct Traffic {
    pub(super) sent_objects: f64,
    pub(super) received_objects: f64,
}

impl Report {
    pub(super) fn new(benchmark: &'static str) -> Self {
        Self {
            benchmark,
            build: if cfg!(debug_assertions) { "debug" } else { "release" },
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            notes: Vec::new(),
            measurements: Vec::new(),
            figures: Vec::new(),
        }
    }

    pub(super) fn note(&mut self, note: impl Into<String>) {
        self.notes.push(note.into());
    }

    pub(super) fn add(&mut self, measurement: Measurement) {
        self.measurements.push(measurement);
    }

    pub(super) fn figure(&mut self, figure: Figure) {
        self.figures.push(figure);
    }

    pub(super) fn print(&self, out: &mut impl Write) -> io::Result<()> {
        writeln!(out, "bench {}, {} build, {} cores", self.benchmark, self.build, self.cores)?;
        for note in &self.notes {
            writeln!(out, "  {note}")?;
        }
        writeln!(out)?;
        let right = |title| (title, Alignment::Right);
        let mut table = Table::new([
            ("WHAT", Alignment::Left),
            right("MEDIAN"),
            right("P99"),
            right("MIN"),
            right("MAX"),
            right("GB/S"),
            right("CPU S"),
            ("BESIDE ITS FLOOR", Alignment::Left),
        ]);
        for measurement in &self.measurements {
            table.row(measurement.row());
        }
        table.print(out)?;
        self.print_broadcasts(out)?;
        self.print_traffic(out)?;
        self.print_figures(out)
    }

    fn print_figures(&self, out: &mut impl Write) -> io::Result<()> {
        if self.figures.is_empty() {
            return Ok(());
        }
        writeln!(out)?;
        let right = |title| (title, Alignment::Right);
        let mut table = Table::new([("FIGURE", Alignment::Left), right("VALUE"), right("TARGET")]);
        for Figure { name, value, target } in &self.figures {
            let target = target.map_or_else(|| "-".to_owned(), |target| format!("{target:.0}"));
            table.row([name.clone(), format!("{value:.0}"), target]);
        }
        table.print(out)
    }

    fn print_traffic(&self, out: &mut impl Write) -> io::Result<()> {
        let measured: Vec<_> = self
            .measurements
            .iter()
            .filter_map(|measurement| Some((&measurement.name, measurement.traffic?)))
            .collect();
        if measured.is_empty() {
            return Ok(());
        }
        writeln!(out)?;
        let mut table = Table::new([
            ("TRAFFIC", Alignment::Left),
            ("A NODE SENT AT MOST", Alignment::Right),
            ("RECEIVED AT MOST", Alignment::Right),
        ]);
        for (name, traffic) in measured {
            let times = |objects| format!("{objects:.2} x");
            table.row([name.clone(), times(traffic.sent_objects), times(traffic.received_objects)]);
        }
        table.print(out)
    }

    fn print_broadcasts(&self, out: &mut impl Write) -> io::Result<()> {
        let broadcasts: Vec<_> = self
            .measurements
            .iter()
            .filter_map(|measurement| Some((&measurement.name, measurement.broadcast.as_ref()?)))
            .collect();
        if broadcasts.is_empty() {
            return Ok(());
        }
        writeln!(out)?;
        let mut table = Table::new([
            ("BROADCAST", Alignment::Left),
            ("ORIGIN SENT", Alignment::Right),
            ("LAST RECEIVER", Alignment::Right),
            ("EACH RECEIVER, FROM ITS ARRIVAL", Alignment::Left),
        ]);
        for (name, broadcast) in broadcasts {
            let receivers: Vec<_> = broadcast.receivers_s.iter().copied().map(seconds).collect();
            table.row([
                name.clone(),
                format!("{:.2} x", broadcast.origin_sent_objects),
                seconds(broadcast.last_s),
                receivers.join(", "),
            ]);
        }
        table.print(out)
    }
}

impl Measurement {
    /// `samples` must not be empty.
    pub(super) fn new(name: impl Into<String>, samples: &[Duration]) -> Self {
        let seconds = sorted(samples);
        let p99 = (seconds.len() >= SAMPLES_FOR_P99).then(|| quantile(&seconds, 0.99));
        Self {
            name: name.into(),
            samples: seconds.len(),
            median_s: quantile(&seconds, 0.5),
            p99_s: p99,
            minimum_s: quantile(&seconds, 0.0),
            maximum_s: quantile(&seconds, 1.0),
            bytes: None,
            gb_per_s: None,
            cpu_s: None,
            beside: None,
            broadcast: None,
            traffic: None,
        }
    }

    pub(super) fn moving(mut self, bytes: u64) -> Self {
        self.bytes = Some(bytes);
        self.gb_per_s = (self.median_s > 0.0).then(|| bytes as f64 / self.median_s / 1e9);
        self
    }

    pub(super) fn costing(mut self, samples: &[Duration]) -> Self {
        self.cpu_s = Some(median_s(samples));
        self
    }

    pub(super) const fn p99_s(&self) -> Option<f64> {
        self.p99_s
    }

    pub(super) fn beside(mut self, floor: &Self) -> Self {
        if floor.median_s > 0.0 {
            self.beside = Some(Comparison {
                floor: floor.name.clone(),
                times: self.median_s / floor.median_s,
            });
        }
        self
    }

    pub(super) fn with_broadcast(mut self, broadcast: Broadcast) -> Self {
        self.broadcast = Some(broadcast);
        self
    }

    pub(super) fn with_traffic(mut self, traffic: Traffic) -> Self {
        self.traffic = Some(traffic);
        self
    }

    fn row(&self) -> [String; 8] {
        let or_dash = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
        [
            self.name.clone(),
            seconds(self.median_s),
            or_dash(self.p99_s.map(seconds)),
            seconds(self.minimum_s),
            seconds(self.maximum_s),
            or_dash(self.gb_per_s.map(|rate| format!("{rate:.2}"))),
            or_dash(self.cpu_s.map(|cpu| format!("{cpu:.2}"))),
            or_dash(
                self.beside
                    .as_ref()
                    .map(|beside| format!("{:.2} x {}", beside.times, beside.floor)),
            ),
        ]
    }
}

pub(super) fn median_s(samples: &[Duration]) -> f64 {
    quantile(&sorted(samples), 0.5)
}

pub(super) fn median(mut numbers: Vec<f64>) -> f64 {
    numbers.sort_by(f64::total_cmp);
    quantile(&numbers, 0.5)
}

fn sorted(samples: &[Duration]) -> Vec<f64> {
    let mut seconds: Vec<f64> = samples.iter().map(Duration::as_secs_f64).collect();
    seconds.sort_by(f64::total_cmp);
    seconds
}

/// Returns the quantile of sorted `numbers` by nearest rank; zero without numbers.
fn quantile(numbers: &[f64], quantile: f64) -> f64 {
    let count = numbers.len();
    let rank = (0..count).find(|rank| (rank + 1) as f64 >= quantile * count as f64);
    rank.and_then(|rank| numbers.get(rank)).copied().unwrap_or_default()
}

fn seconds(seconds: f64) -> String {
    match seconds {
        _ if seconds < 1e-3 => format!("{:.1} us", seconds * 1e6),
        _ if seconds < 1.0 => format!("{:.1} ms", seconds * 1e3),
        _ => format!("{seconds:.3} s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn milliseconds(numbers: impl IntoIterator<Item = u64>) -> Vec<Duration> {
        numbers.into_iter().map(Duration::from_millis).collect()
    }

    #[test]
    fn medians_and_percentiles_are_samples() {
        let numbers: Vec<f64> = (1..=100).map(f64::from).collect();
        assert_eq!(quantile(&numbers, 0.0), 1.0);
        assert_eq!(quantile(&numbers, 0.5), 50.0);
        assert_eq!(quantile(&numbers, 0.99), 99.0);
        assert_eq!(quantile(&numbers, 1.0), 100.0);
        assert_eq!(quantile(&[], 0.5), 0.0);
        assert_eq!(median(vec![3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median_s(&milliseconds([30, 10, 20])), 0.02);
    }

    #[test]
    fn measurements_say_how_fast_and_how_near_to_the_floor() {
        let floor = Measurement::new("floor", &milliseconds([100, 100, 90]));
        let measured =
            Measurement::new("put", &milliseconds([300, 200, 100])).moving(1 << 30).beside(&floor);
        assert_eq!(measured.median_s, 0.2);
        assert_eq!(measured.p99_s, None);
        assert!((measured.gb_per_s.unwrap() - 5.37).abs() < 0.01);
        assert_eq!(measured.row()[7], "2.00 x floor");
        assert!(Measurement::new("many", &milliseconds(0..100)).p99_s.is_some());
    }

    #[test]
    fn times_have_their_unit() {
        assert_eq!(seconds(0.000_012_34), "12.3 us");
        assert_eq!(seconds(0.0123), "12.3 ms");
        assert_eq!(seconds(1.234_56), "1.235 s");
    }

    #[test]
    fn json_has_what_the_table_has() {
        let mut report = Report::new("local");
        report.note("warm");
        report.add(Measurement::new("put", &milliseconds([1])));
        let json = serde_json::to_value(&report).unwrap();
        assert_eq!(json["measurements"][0]["median_s"], 0.001);
        assert_eq!(json["notes"][0], "warm");
        let print = |report: &Report| {
            let mut table = Vec::new();
            report.print(&mut table).unwrap();
            String::from_utf8(table).unwrap()
        };
        assert!(print(&report).contains("1.0 ms"));
        assert!(!print(&report).contains("TRAFFIC") && json.get("figures").is_none());
        report.figure(Figure { name: "puts per second".into(), value: 12.4, target: Some(10.0) });
        assert!(print(&report).contains("puts per second     12      10"));
        let traffic = Traffic { sent_objects: 1.254, received_objects: 2.0 };
        report.add(Measurement::new("reduce", &milliseconds([1])).with_traffic(traffic));
        assert!(print(&report).contains("1.25 x"));
    }
}
