//! Spans of a daemon, exported over OTLP to a collector of OpenTelemetry. A full queue drops spans,
//! so a slow collector never blocks the daemon.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use hoplite_core::TraceContext;
use opentelemetry::trace::{
    SpanContext, SpanId, Status, TraceContextExt, TraceFlags, TraceId, TraceState, Tracer as _,
    TracerProvider,
};
use opentelemetry::{Context, KeyValue, Value};
use opentelemetry_otlp::{ExporterBuildError, WithExportConfig, WithTonicConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::trace::{Sampler, SdkTracer, SdkTracerProvider, SpanData, SpanExporter};
use tonic::transport::Uri;

pub use opentelemetry::trace::SpanKind;

const MAX_OPEN_SPANS: usize = 16_384;
const LAST_EXPORT_TIMEOUT: Duration = Duration::from_secs(1);
const EXPORT_TIMEOUT: Duration = Duration::from_secs(5);
const STANDARD_ENDPOINTS: [&str; 2] =
    ["OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT"];
const STANDARD_PROTOCOLS: [&str; 2] =
    ["OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL"];

const DISABLED: &str = "OTEL_SDK_DISABLED";

#[derive(Debug, Clone, clap::Args)]
pub(crate) struct TraceSettings {
    /// Export traces over OTLP (gRPC) to the collector at http://HOST:PORT;
    /// OTEL_EXPORTER_OTLP_ENDPOINT is the fallback [default: no traces]
    #[arg(long, env = "HOPLITE_OTLP_ENDPOINT", value_name = "URL")]
    pub(crate) otlp_endpoint: Option<Endpoint>,
    /// Share of the calls without a trace that begin one, from 0 to 1; a call inside a trace
    /// follows its caller's decision
    #[arg(long, env = "HOPLITE_OTLP_SAMPLE_RATIO", value_name = "RATIO", default_value = "1")]
    pub(crate) otlp_sample_ratio: Ratio,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Endpoint(String);

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not the address of an OTLP collector (gRPC without TLS), such as http://HOST:PORT")]
pub(crate) struct NotAnEndpoint;

impl FromStr for Endpoint {
    type Err = NotAnEndpoint;

    fn from_str(text: &str) -> Result<Self, NotAnEndpoint> {
        let uri: Uri = text.parse().map_err(|_| NotAnEndpoint)?;
        // Refuses a password, because the endpoint is logged.
        let is_bare = uri.authority().is_some_and(|authority| !authority.as_str().contains('@'));
        let is_plain = uri.scheme_str() == Some("http")
            && uri.path() == "/"
            && uri.query().is_none()
            && is_bare;
        if is_plain && uri.port().is_some() {
            Ok(Self(text.to_owned()))
        } else {
            Err(NotAnEndpoint)
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Ratio(f64);

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not a number from 0 to 1")]
pub(crate) struct NotARatio;

impl FromStr for Ratio {
    type Err = NotARatio;

    fn from_str(text: &str) -> Result<Self, NotARatio> {
        text.parse().ok().filter(|ratio| (0.0..=1.0).contains(ratio)).map(Self).ok_or(NotARatio)
    }
}

/// Begins spans. Clones share the limit on open spans.
#[derive(Clone)]
pub struct Tracer {
    tracer: SdkTracer,
    open: Arc<AtomicUsize>,
}

impl fmt::Debug for Tracer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tracer").field("open", &self.open).finish_non_exhaustive()
    }
}

impl Tracer {
    /// Begins a child of `parent`, or a new trace. `None` if the trace is not recorded, or too many
    /// spans are open.
    pub fn begin(
        &self,
        name: &'static str,
        kind: SpanKind,
        parent: Option<TraceContext>,
    ) -> Option<Span> {
        if self.open.load(Ordering::Relaxed) >= MAX_OPEN_SPANS {
            return None;
        }
        let context = parent.map_or_else(Context::new, |parent| {
            let (trace, span) =
                (TraceId::from_bytes(parent.trace()), SpanId::from_bytes(parent.span()));
            let flags = TraceFlags::default().with_sampled(parent.is_sampled());
            Context::new().with_remote_span_context(SpanContext::new(
                trace,
                span,
                flags,
                true,
                TraceState::NONE,
            ))
        });
        let builder = self.tracer.span_builder(name).with_kind(kind);
        let span = self.tracer.build_with_context(builder, &context);
        if !opentelemetry::trace::Span::is_recording(&span) {
            return None;
        }
        let named = opentelemetry::trace::Span::span_context(&span);
        let context =
            TraceContext::new(named.trace_id().to_bytes(), named.span_id().to_bytes(), true)?;
        self.open.fetch_add(1, Ordering::Relaxed);
        Some(Span { span, context, open: Arc::clone(&self.open) })
    }
}

/// An operation in a trace. Dropping it ends the operation.
#[derive(Debug)]
pub struct Span {
    span: opentelemetry_sdk::trace::Span,
    context: TraceContext,
    open: Arc<AtomicUsize>,
}

impl Span {
    /// Context for child spans.
    pub const fn context(&self) -> TraceContext {
        self.context
    }

    /// Sets an attribute.
    pub fn set(&mut self, key: &'static str, value: impl Into<Value>) {
        opentelemetry::trace::Span::set_attribute(&mut self.span, KeyValue::new(key, value));
    }

    /// Marks the span as failed.
    pub fn fail(&mut self, why: String) {
        opentelemetry::trace::Span::set_status(&mut self.span, Status::error(why));
    }
}

impl Drop for Span {
    fn drop(&mut self) {
        self.open.fetch_sub(1, Ordering::Relaxed);
    }
}

#[derive(Debug)]
pub(crate) struct Export(SdkTracerProvider);

impl Export {
    /// Starts to export spans if an endpoint is set. Needs the daemon's runtime.
    pub(crate) fn start(
        settings: TraceSettings,
        daemon: &str,
        version: &str,
    ) -> Result<Option<(Self, Tracer)>, ExporterBuildError> {
        let TraceSettings { otlp_endpoint, otlp_sample_ratio: Ratio(ratio) } = settings;
        let Some(Endpoint(endpoint)) = otlp_endpoint.or_else(standard_endpoint) else {
            return Ok(None);
        };
        if first_set(&[DISABLED]).is_some_and(|disabled| disabled.eq_ignore_ascii_case("true")) {
            tracing::info!("traces are off because of {DISABLED}");
            return Ok(None);
        }
        let channel = tonic::transport::Endpoint::from_shared(endpoint.clone())
            .map_err(|error| ExporterBuildError::InternalFailure(error.to_string()))?
            .connect_timeout(EXPORT_TIMEOUT)
            .timeout(EXPORT_TIMEOUT)
            .http2_keep_alive_interval(EXPORT_TIMEOUT)
            .keep_alive_timeout(EXPORT_TIMEOUT)
            .connect_lazy();
        let exporter =
            opentelemetry_otlp::SpanExporter::builder().with_tonic().with_channel(channel);
        let exporter = exporter.with_timeout(EXPORT_TIMEOUT).build()?;
        let exporter =
            Reporting { exporter, endpoint: endpoint.clone(), is_failing: AtomicBool::new(false) };
        // OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES override these values.
        let named = first_set(&["OTEL_SERVICE_NAME"]);
        let resource = Resource::builder_empty()
            .with_service_name(daemon.to_owned())
            .with_attribute(KeyValue::new("service.version", version.to_owned()))
            .with_detector(Box::new(opentelemetry_sdk::resource::EnvResourceDetector::new()))
            .with_attributes(named.map(|name| KeyValue::new("service.name", name)))
            .build();
        let provider = SdkTracerProvider::builder()
            .with_batch_exporter(exporter)
            .with_sampler(Sampler::ParentBased(Box::new(Sampler::TraceIdRatioBased(ratio))))
            .with_resource(resource)
            .build();
        let tracer = Tracer { tracer: provider.tracer("hoplite"), open: Arc::default() };
        tracing::info!(endpoint, ratio, "exporting traces");
        Ok(Some((Self(provider), tracer)))
    }

    pub(crate) async fn end(self) {
        let Self(provider) = self;
        let last = tokio::task::spawn_blocking(move || {
            provider.shutdown_with_timeout(LAST_EXPORT_TIMEOUT)
        });
        if let Ok(Err(error)) = last.await {
            tracing::debug!(%error, "the last spans were not exported");
        }
    }
}

/// Ignores an unusable endpoint: OpenTelemetry's variables may be meant for other programs.
fn standard_endpoint() -> Option<Endpoint> {
    let endpoint = first_set(&STANDARD_ENDPOINTS)?;
    let protocol = first_set(&STANDARD_PROTOCOLS);
    if let Some(protocol) = protocol.filter(|protocol| protocol != "grpc") {
        tracing::warn!(protocol, "traces are not exported: the collector must accept gRPC");
        return None;
    }
    // The log omits the value, which may contain a password.
    endpoint.parse().inspect_err(|error| tracing::warn!(%error, "traces are not exported")).ok()
}

fn first_set(names: &[&str]) -> Option<String> {
    names.iter().find_map(|name| std::env::var(name).ok().filter(|value| !value.is_empty()))
}

#[derive(Debug)]
struct Reporting {
    exporter: opentelemetry_otlp::SpanExporter,
    endpoint: String,
    is_failing: AtomicBool,
}

impl SpanExporter for Reporting {
    async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
        let exported = self.exporter.export(batch).await;
        let endpoint = &self.endpoint;
        match (&exported, self.is_failing.swap(exported.is_err(), Ordering::Relaxed)) {
            (Err(error), false) => {
                tracing::warn!(endpoint, %error, "traces cannot be exported and are dropped")
            }
            (Ok(()), true) => tracing::info!(endpoint, "traces are exported again"),
            _ => {}
        }
        exported
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.exporter.shutdown_with_timeout(timeout)
    }

    fn set_resource(&mut self, resource: &Resource) {
        self.exporter.set_resource(resource);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_endpoint_is_a_host_and_a_port_without_tls() {
        for right in
            ["http://127.0.0.1:4317", "http://collector.monitoring:4317/", "http://[::1]:4317"]
        {
            assert!(right.parse::<Endpoint>().is_ok(), "{right}");
        }
        for wrong in [
            "",
            "4317",
            "collector:4317",
            "https://collector:4317",
            "http://collector",
            "http://c:4318/v1/traces",
            "http://user:password@collector:4317",
        ] {
            assert_eq!(wrong.parse::<Endpoint>(), Err(NotAnEndpoint), "{wrong}");
        }
    }

    #[test]
    fn a_ratio_is_from_zero_to_one() {
        assert_eq!("0.01".parse(), Ok(Ratio(0.01)));
        for wrong in ["", "-0.1", "1.1", "NaN", "inf", "half"] {
            assert_eq!(wrong.parse::<Ratio>(), Err(NotARatio), "{wrong}");
        }
    }
}
