//! Metrics and health checks over HTTP: `/metrics`, `/healthz` and `/readyz`.

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

pub use prometheus::{
    Gauge, Histogram, HistogramVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec,
};

pub(crate) use server::serve;

use process::ProcessMetrics;
pub use register::level;
use register::registered;

use crate::http::HttpAddress;
use crate::logging;

/// Buckets of histograms, from a small put to a get that waits for minutes.
const SECONDS: [f64; 13] =
    [2e-5, 5e-5, 1e-4, 2.5e-4, 1e-3, 5e-3, 2.5e-2, 0.1, 0.5, 1.0, 5.0, 30.0, 120.0];
/// Time limit of a [`GaugeUpdate`]; Prometheus waits ten seconds.
const GAUGE_UPDATE_TIMEOUT: Duration = Duration::from_secs(2);

#[derive(Debug, clap::Args)]
pub(crate) struct MetricsSettings {
    /// Serve /metrics, /healthz and /readyz over HTTP without authentication: on a port of
    /// loopback, or on the address named [default: no metrics]
    #[arg(long, env = "HOPLITE_METRICS", value_name = "[ADDR:]PORT")]
    pub(crate) metrics: Option<HttpAddress>,
}

/// Updates gauges before a scrape. Returns the reason as an error if the daemon is not ready.
pub type GaugeUpdate =
    Box<dyn Fn() -> Pin<Box<dyn Future<Output = Result<(), String>> + Send>> + Send + Sync>;

/// A daemon's metrics and readiness. Clones share all state.
#[derive(Clone)]
pub struct Metrics(Arc<Shared>);

struct Shared {
    address: SocketAddr,
    registry: Registry,
    process: ProcessMetrics,
    is_ready: IntGauge,
    refused: IntCounterVec,
    lost_log_lines: IntCounter,
    updates: Mutex<Vec<Arc<GaugeUpdate>>>,
    /// Locked during an answer: concurrent scrapes must not count twice.
    answering: tokio::sync::Mutex<()>,
}

impl fmt::Debug for Metrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Metrics").field("address", &self.0.address).finish_non_exhaustive()
    }
}

impl Metrics {
    pub(crate) fn new(name: &str, version: &str, address: SocketAddr) -> Self {
        let registry = Registry::new();
        let info = Opts::new("hoplite_build_info", "The daemon and its version; always 1.")
            .const_label("daemon", name)
            .const_label("version", version);
        registered(&registry, IntGauge::with_opts(info)).set(1);
        let ready =
            Opts::new("hoplite_ready", "1 if the daemon is ready, as /readyz reports, else 0.");
        let refused = Opts::new(
            "hoplite_http_refused_connections_total",
            "HTTP connections that ended before their complete request arrived: the peer was slow \
             or spoke another protocol, or there were too many.",
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
                    "Log lines that could not be written, for example because the disk is full.",
                ),
            ),
            registry,
            updates: Mutex::default(),
            answering: tokio::sync::Mutex::default(),
        };
        Self(Arc::new(shared))
    }

    /// Address of `/metrics`.
    pub fn address(&self) -> SocketAddr {
        self.0.address
    }

    /// Counts connections to `port` that ended without a request.
    pub fn refused_connections(&self, port: &str) -> IntCounter {
        self.0.refused.with_label_values(&[port])
    }

    /// A counter, named `..._total`.
    pub fn counter(&self, name: &str, help: &str) -> IntCounter {
        registered(&self.0.registry, IntCounter::new(name, help))
    }

    /// A counter for each value of `label`; the counters for `values` exist from the start.
    pub fn counters(&self, name: &str, help: &str, label: &str, values: &[&str]) -> IntCounterVec {
        let counters =
            registered(&self.0.registry, IntCounterVec::new(Opts::new(name, help), &[label]));
        values.iter().for_each(|value| drop(counters.with_label_values(&[value])));
        counters
    }

    /// Acts as [`counters`](Self::counters) for pairs of values of two labels.
    pub fn counters_by_pair(
        &self,
        name: &str,
        help: &str,
        labels: [&str; 2],
        values: &[[&str; 2]],
    ) -> IntCounterVec {
        let counters =
            registered(&self.0.registry, IntCounterVec::new(Opts::new(name, help), &labels));
        values.iter().for_each(|pair| drop(counters.with_label_values(pair)));
        counters
    }

    /// A gauge of whole numbers.
    pub fn gauge(&self, name: &str, help: &str) -> IntGauge {
        registered(&self.0.registry, IntGauge::new(name, help))
    }

    /// A gauge of fractional numbers.
    pub fn fractional_gauge(&self, name: &str, help: &str) -> Gauge {
        registered(&self.0.registry, Gauge::new(name, help))
    }

    /// A gauge for each value of `label`.
    pub fn gauges(&self, name: &str, help: &str, label: &str) -> IntGaugeVec {
        registered(&self.0.registry, IntGaugeVec::new(Opts::new(name, help), &[label]))
    }

    /// A histogram of seconds.
    pub fn seconds(&self, name: &str, help: &str) -> Histogram {
        let options = HistogramOpts::new(name, help).buckets(SECONDS.to_vec());
        registered(&self.0.registry, Histogram::with_opts(options))
    }

    /// A histogram of seconds for each value of `label`; the histograms for `values` exist from the
    /// start.
    pub fn seconds_by(&self, name: &str, help: &str, label: &str, values: &[&str]) -> HistogramVec {
        let options = HistogramOpts::new(name, help).buckets(SECONDS.to_vec());
        let histograms = registered(&self.0.registry, HistogramVec::new(options, &[label]));
        values.iter().for_each(|value| drop(histograms.with_label_values(&[value])));
        histograms
    }

    /// Exports the expiry of the certificate in use, updated at each scrape.
    pub fn certificate(&self, tls: &Tls) {
        let expiry = self.gauge(
            "hoplite_tls_certificate_expiry_timestamp_seconds",
            "Expiry of the daemon's certificate, in seconds since 1970; only with TLS.",
        );
        let tls = tls.clone();
        self.update_before_scrape(Box::new(move || {
            let since = tls.expiry().and_then(|expiry| expiry.duration_since(UNIX_EPOCH).ok());
            expiry.set(since.map_or(0, |since| level(since.as_secs())));
            Box::pin(std::future::ready(Ok(())))
        }));
    }

    /// Calls `update_gauges` before each scrape.
    pub fn update_before_scrape(&self, update_gauges: GaugeUpdate) {
        self.updates().push(Arc::new(update_gauges));
    }

    async fn text(&self) -> String {
        let _one_at_a_time = self.0.answering.lock().await;
        self.0.is_ready.set(self.update_gauges().await.is_ok().into());
        self.0.process.update();
        follow(&self.0.lost_log_lines, logging::lost_lines());
        TextEncoder::new()
            .encode_to_string(&self.0.registry.gather())
            .expect("every metric has a value")
    }

    async fn readiness(&self) -> Result<(), String> {
        let _one_at_a_time = self.0.answering.lock().await;
        self.update_gauges().await
    }

    async fn update_gauges(&self) -> Result<(), String> {
        let updates = self.updates().clone();
        let mut ready = Ok(());
        for update_gauges in updates {
            let seen = timeout(GAUGE_UPDATE_TIMEOUT, update_gauges()).await;
            ready =
                ready.and(seen.unwrap_or_else(|_| Err("the daemon does not answer".to_owned())));
        }
        ready
    }

    fn updates(&self) -> std::sync::MutexGuard<'_, Vec<Arc<GaugeUpdate>>> {
        self.0.updates.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Raises `counter` to `count`, a number that other code has counted.
pub fn follow(counter: &IntCounter, count: u64) {
    counter.inc_by(count.saturating_sub(counter.get()));
}

/// Formats a variant as a label's value: `ObjectLost` becomes `object-lost`.
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
    async fn the_text_has_counters_and_updated_gauges() {
        let metrics = metrics();
        let counters = metrics.counters("a_total", "A.", "kind", &["x", "y"]);
        counters.with_label_values(&["x"]).inc_by(3);
        metrics.seconds("b_seconds", "B.").observe(0.3);
        let gauge = metrics.gauge("c", "C.");
        let level = gauge.clone();
        metrics.update_before_scrape(Box::new(move || {
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
    async fn an_unready_daemon_returns_the_reason() {
        let metrics = metrics();
        metrics.update_before_scrape(Box::new(|| Box::pin(async { Err("no session".to_owned()) })));
        assert_eq!(metrics.readiness().await.unwrap_err(), "no session");
        assert!(metrics.text().await.contains("\nhoplite_ready 0\n"));
        let stuck = self::metrics();
        stuck.update_before_scrape(Box::new(|| Box::pin(std::future::pending())));
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
    fn labels_are_kebab_case() {
        #[derive(Debug)]
        enum Reason {
            OnlyCandidate,
            Closest,
        }
        assert_eq!(label_of(Reason::OnlyCandidate), "only-candidate");
        assert_eq!(label_of(Reason::Closest), "closest");
    }
}
