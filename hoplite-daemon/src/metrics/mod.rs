//! What a daemon tells Prometheus and those who probe it: `/metrics`, `/healthz` and `/readyz` over HTTP.
//!
//! Off unless `--metrics` says where to listen. What is counted while the daemon works is an [`IntCounter`] or a
//! [`Histogram`] that the daemon holds; what is looked up when somebody asks is brought up to date by a [`Look`].
//!
//! * `server`: the HTTP side.
//! * `process`: what every process exports.

mod process;
mod register;
mod server;

use std::fmt;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, UNIX_EPOCH};

use hoplite_net::Tls;
use prometheus::{HistogramOpts, Opts, Registry, TextEncoder};
use tokio::time::timeout;

pub use prometheus::{Gauge, Histogram, HistogramVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec};

pub(crate) use server::serve;

use process::ProcessMetrics;
pub use register::level;
use register::registered;

use crate::http::HttpAddress;
use crate::logging;

/// Upper bounds of the buckets of durations, in seconds: a put of a small object takes tens of microseconds, a get may wait
/// half a minute.
const SECONDS: [f64; 13] = [2e-5, 5e-5, 1e-4, 2.5e-4, 1e-3, 5e-3, 2.5e-2, 0.1, 0.5, 1.0, 5.0, 30.0, 120.0];
/// The time that the daemon may take to look up what is asked for; Prometheus itself waits ten seconds for all.
const LOOK_TIMEOUT: Duration = Duration::from_secs(2);

/// What is set about metrics.
#[derive(Debug, clap::Args)]
pub(crate) struct MetricsSettings {
    /// Serve /metrics, /healthz and /readyz over HTTP, unauthenticated: on a port of loopback, or of the address named [default: not at all]
    #[arg(long, env = "HOPLITE_METRICS", value_name = "[ADDR:]PORT")]
    pub(crate) metrics: Option<HttpAddress>,
}

/// Brings up to date what is not counted as it happens; an error says why the daemon is not ready.
pub type Look = Box<dyn Fn() -> Pin<Box<dyn Future<Output = Result<(), String>> + Send>> + Send + Sync>;

/// Everything that a daemon exports, and whether it is ready. Clones are the same.
#[derive(Clone)]
pub struct Metrics(Arc<Shared>);

struct Shared {
    address: SocketAddr,
    registry: Registry,
    process: ProcessMetrics,
    is_ready: IntGauge,
    refused: IntCounterVec,
    lost_log_lines: IntCounter,
    looks: Mutex<Vec<Arc<Look>>>,
    /// Held while answers are made: counters that follow others are brought up to date by one at a time.
    answering: tokio::sync::Mutex<()>,
}

impl fmt::Debug for Metrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Metrics").field("address", &self.0.address).finish_non_exhaustive()
    }
}

impl Metrics {
    /// The metrics of the daemon `name`, served at `address`: only what every daemon has.
    pub(crate) fn new(name: &str, version: &str, address: SocketAddr) -> Self {
        let registry = Registry::new();
        let info = Opts::new("hoplite_build_info", "The daemon and its version; always 1.")
            .const_label("daemon", name)
            .const_label("version", version);
        registered(&registry, IntGauge::with_opts(info)).set(1);
        let ready = Opts::new("hoplite_ready", "Whether the daemon is ready, as /readyz says: 1 or 0.");
        let refused = Opts::new(
            "hoplite_http_refused_connections_total",
            "Connections of HTTP that ended before their request was there: their peer was slow or spoke something else, or too many came.",
        );
        let shared = Shared {
            address,
            process: ProcessMetrics::new(&registry),
            is_ready: registered(&registry, IntGauge::with_opts(ready)),
            refused: registered(&registry, IntCounterVec::new(refused, &["port"])),
            lost_log_lines: registered(
                &registry,
                IntCounter::new(
                    "hoplite_lost_log_lines_total",
                    "Lines of the log that could not be written: its disk is full, for example.",
                ),
            ),
            registry,
            looks: Mutex::default(),
            answering: tokio::sync::Mutex::default(),
        };
        Self(Arc::new(shared))
    }

    /// Where they are served.
    pub fn address(&self) -> SocketAddr {
        self.0.address
    }

    /// What counts the connections of a port that HTTP is spoken on which make no request.
    pub fn refused_connections(&self, port: &str) -> IntCounter {
        self.0.refused.with_label_values(&[port])
    }

    /// A counter; its name ends with `_total`.
    pub fn counter(&self, name: &str, help: &str) -> IntCounter {
        registered(&self.0.registry, IntCounter::new(name, help))
    }

    /// A counter for each value of `label`; those in `values` are there from the start.
    pub fn counters(&self, name: &str, help: &str, label: &str, values: &[&str]) -> IntCounterVec {
        let counters = registered(&self.0.registry, IntCounterVec::new(Opts::new(name, help), &[label]));
        values.iter().for_each(|value| drop(counters.with_label_values(&[value])));
        counters
    }

    /// A counter for each pair of values of two labels; those in `values` are there from the start.
    pub fn counters_by_two(
        &self,
        name: &str,
        help: &str,
        labels: [&str; 2],
        values: &[[&str; 2]],
    ) -> IntCounterVec {
        let counters = registered(&self.0.registry, IntCounterVec::new(Opts::new(name, help), &labels));
        values.iter().for_each(|pair| drop(counters.with_label_values(pair)));
        counters
    }

    /// A number that goes up and down.
    pub fn gauge(&self, name: &str, help: &str) -> IntGauge {
        registered(&self.0.registry, IntGauge::new(name, help))
    }

    /// Such a number that need not be whole.
    pub fn fractional_gauge(&self, name: &str, help: &str) -> Gauge {
        registered(&self.0.registry, Gauge::new(name, help))
    }

    /// Such a whole number for each value of `label`.
    pub fn gauges(&self, name: &str, help: &str, label: &str) -> IntGaugeVec {
        registered(&self.0.registry, IntGaugeVec::new(Opts::new(name, help), &[label]))
    }

    /// A histogram of durations in seconds.
    pub fn seconds(&self, name: &str, help: &str) -> Histogram {
        let options = HistogramOpts::new(name, help).buckets(SECONDS.to_vec());
        registered(&self.0.registry, Histogram::with_opts(options))
    }

    /// Such a histogram for each value of `label`; those in `values` are there from the start.
    pub fn seconds_by(&self, name: &str, help: &str, label: &str, values: &[&str]) -> HistogramVec {
        let options = HistogramOpts::new(name, help).buckets(SECONDS.to_vec());
        let histograms = registered(&self.0.registry, HistogramVec::new(options, &[label]));
        values.iter().for_each(|value| drop(histograms.with_label_values(&[value])));
        histograms
    }

    /// Exports when the certificate of this daemon expires. Follows the files; a metric only of daemons that have one.
    pub fn certificate(&self, tls: &Tls) {
        let expiry = self.gauge(
            "hoplite_tls_certificate_expiry_timestamp_seconds",
            "When the certificate that the daemon uses expires, in seconds since 1970; only with TLS.",
        );
        let tls = tls.clone();
        self.look_when_asked(Box::new(move || {
            let since = tls.expiry().and_then(|expiry| expiry.duration_since(UNIX_EPOCH).ok());
            expiry.set(since.map_or(0, |since| level(since.as_secs())));
            Box::pin(std::future::ready(Ok(())))
        }));
    }

    /// Calls `look` whenever somebody asks, until the daemon ends.
    pub fn look_when_asked(&self, look: Look) {
        self.looks().push(Arc::new(look));
    }

    /// All metrics, in the text format of Prometheus.
    async fn text(&self) -> String {
        let _one_at_a_time = self.0.answering.lock().await;
        self.0.is_ready.set(self.look().await.is_ok().into());
        self.0.process.update();
        follow(&self.0.lost_log_lines, logging::lost_lines());
        TextEncoder::new().encode_to_string(&self.0.registry.gather()).expect("every metric has a value")
    }

    /// Whether the daemon is ready; if not, why.
    async fn readiness(&self) -> Result<(), String> {
        let _one_at_a_time = self.0.answering.lock().await;
        self.look().await
    }

    async fn look(&self) -> Result<(), String> {
        let looks = self.looks().clone();
        let mut ready = Ok(());
        for look in looks {
            let seen = timeout(LOOK_TIMEOUT, look()).await;
            ready = ready.and(seen.unwrap_or_else(|_| Err("the daemon does not answer".to_owned())));
        }
        ready
    }

    fn looks(&self) -> std::sync::MutexGuard<'_, Vec<Arc<Look>>> {
        self.0.looks.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Lets `counter` follow a count that is kept elsewhere.
pub fn follow(counter: &IntCounter, count: u64) {
    counter.inc_by(count.saturating_sub(counter.get()));
}

/// The name of a variant without fields as the value of a label: `ObjectLost` is `object-lost`, as in `hoplite stat`.
pub fn label_of(variant: impl fmt::Debug) -> String {
    let mut label = String::new();
    for letter in format!("{variant:?}").chars() {
        if letter.is_ascii_uppercase() && !label.is_empty() {
            label.push('-');
        }
        label.push(letter.to_ascii_lowercase());
    }
    label
}

#[cfg(test)]
mod tests {
    use super::*;

    fn metrics() -> Metrics {
        Metrics::new("hoplite-test", "1.2.3", "127.0.0.1:1".parse().unwrap())
    }

    #[tokio::test]
    async fn the_text_says_what_was_counted_and_looked_up() {
        let metrics = metrics();
        let counters = metrics.counters("a_total", "A.", "kind", &["x", "y"]);
        counters.with_label_values(&["x"]).inc_by(3);
        metrics.seconds("b_seconds", "B.").observe(0.3);
        let gauge = metrics.gauge("c", "C.");
        let level = gauge.clone();
        metrics.look_when_asked(Box::new(move || {
            let level = level.clone();
            Box::pin(async move {
                level.inc();
                Ok(())
            })
        }));
        let text = metrics.text().await;
        for line in [
            "a_total{kind=\"x\"} 3",
            "a_total{kind=\"y\"} 0",
            "b_seconds_bucket{le=\"0.1\"} 0",
            "b_seconds_bucket{le=\"0.5\"} 1",
            "c 1",
            "hoplite_ready 1",
            "hoplite_build_info{daemon=\"hoplite-test\",version=\"1.2.3\"} 1",
        ] {
            assert!(text.lines().any(|found| found == line), "{line} is not in {text}");
        }
        metrics.text().await;
        assert_eq!(gauge.get(), 2);
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_not_ready_says_why() {
        let metrics = metrics();
        metrics.look_when_asked(Box::new(|| Box::pin(async { Err("no session".to_owned()) })));
        assert_eq!(metrics.readiness().await.unwrap_err(), "no session");
        assert!(metrics.text().await.contains("\nhoplite_ready 0\n"));
        let stuck = self::metrics();
        stuck.look_when_asked(Box::new(|| Box::pin(std::future::pending())));
        assert!(stuck.readiness().await.unwrap_err().contains("does not answer"));
    }

    #[test]
    fn counters_follow_and_never_go_back() {
        let counter = IntCounter::new("x_total", "X.").unwrap();
        for (count, shown) in [(5, 5), (5, 5), (9, 9), (3, 9)] {
            follow(&counter, count);
            assert_eq!(counter.get(), shown);
        }
        assert_eq!(level(u64::MAX), i64::MAX);
        assert_eq!(level(7usize), 7);
    }

    #[test]
    fn labels_are_named_as_elsewhere() {
        #[derive(Debug)]
        enum Reason {
            OnlyCandidate,
            Closest,
        }
        assert_eq!(label_of(Reason::OnlyCandidate), "only-candidate");
        assert_eq!(label_of(Reason::Closest), "closest");
    }
}
