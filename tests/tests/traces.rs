//! Each operation is one trace, and a missing collector does no harm.
#![expect(
    clippy::unwrap_used,
    reason = "these are tests, and so are the functions that they share"
)]

use std::net::TcpListener;
use std::process::Command;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use hoplite_client::{
    AllreduceOptions, Dtype, Metadata, PutOptions, ReduceOp, TraceContext, enter_trace,
};
use hoplite_tests::TIME_LIMIT;
use hoplite_tests::cluster::{Cluster, Daemon, Plan, await_that, program};
use hoplite_tests::contents::bytes;
use opentelemetry_proto::tonic::collector::trace::v1::trace_service_server::{
    TraceService, TraceServiceServer,
};
use opentelemetry_proto::tonic::collector::trace::v1::{
    ExportTraceServiceRequest, ExportTraceServiceResponse,
};
use opentelemetry_proto::tonic::common::v1::KeyValue;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::trace::v1::Span;
use tokio::runtime::Runtime;
use tonic::transport::server::TcpIncoming;
use tonic::{Request, Response, Status};

/// Memory of 2048 waiting and 16,384 open spans of a kilobyte, and of the puts.
const MAX_GROWTH_BYTES: u64 = 64 << 20;
/// Makes reduces wait for late sources.
const SLOW_LINK: [&str; 2] = ["--link-bandwidth=10MiB", "--link-latency=100us"];
const TRACE: [u8; 16] = [7; 16];
const CALLER: [u8; 8] = [9; 8];
const FIRST: Option<&str> = Some("node-0");
const SECOND: Option<&str> = Some("node-1");

struct Collector {
    endpoint: String,
    collected: CollectedSpans,
    _runtime: Runtime,
}

#[derive(Clone, Default)]
struct CollectedSpans(Arc<Mutex<Vec<(String, Span)>>>);

#[tonic::async_trait]
impl TraceService for CollectedSpans {
    async fn export(
        &self,
        request: Request<ExportTraceServiceRequest>,
    ) -> Result<Response<ExportTraceServiceResponse>, Status> {
        for resource in request.into_inner().resource_spans {
            let about = resource.resource.unwrap_or_default().attributes;
            let service = text(&about, "service.name").unwrap_or_default();
            let spans = resource.scope_spans.into_iter().flat_map(|scope| scope.spans);
            self.0.lock().unwrap().extend(spans.map(|span| (service.clone(), span)));
        }
        Ok(Response::new(ExportTraceServiceResponse::default()))
    }
}

impl Collector {
    fn start() -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let endpoint = format!("http://{}", listener.local_addr().unwrap());
        let collected = CollectedSpans::default();
        let server = tonic::transport::Server::builder()
            .add_service(TraceServiceServer::new(collected.clone()));
        runtime.spawn(async move {
            let listener = tokio::net::TcpListener::from_std(listener).unwrap();
            server.serve_with_incoming(TcpIncoming::from(listener)).await.unwrap();
        });
        Self { endpoint, collected, _runtime: runtime }
    }

    fn spans(&self) -> Vec<(String, Span)> {
        self.collected.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Waits for spans. A daemon that ends exports its last spans for a second only.
    fn await_spans(&self, expected: &[(&str, Option<&str>, usize)]) {
        await_that("the spans", || {
            let trace = self.trace();
            expected.iter().all(|(name, node, count)| trace.named(name, *node).len() >= *count)
        });
    }

    fn trace(&self) -> Trace {
        Trace(self.spans().into_iter().filter(|(_, span)| span.trace_id == TRACE).collect())
    }
}

struct Trace(Vec<(String, Span)>);

impl Trace {
    fn named(&self, name: &str, node: Option<&str>) -> Vec<&Span> {
        let is_of = |service: &str, span: &Span| match node {
            Some(node) => text(&span.attributes, "hoplite.node").as_deref() == Some(node),
            None => service == "hoplite-directory",
        };
        let spans =
            self.0.iter().filter(|(service, span)| span.name == name && is_of(service, span));
        spans.map(|(_, span)| span).collect()
    }

    fn one(&self, name: &str, node: Option<&str>) -> &Span {
        let found = self.named(name, node);
        assert_eq!(found.len(), 1, "{name} of {node:?} in {}", self.tree());
        found[0]
    }

    fn assert_whole(&self) {
        for (_, span) in &self.0 {
            let has_parent = span.parent_span_id == CALLER
                || self.0.iter().any(|(_, other)| other.span_id == span.parent_span_id);
            assert!(has_parent, "{} has no parent in {}", span.name, self.tree());
            assert!(span.end_time_unix_nano >= span.start_time_unix_nano);
        }
    }

    fn tree(&self) -> String {
        let lines = self.0.iter().map(|(service, span)| {
            let about: Vec<_> = span
                .attributes
                .iter()
                .map(|about| format!("{}={:?}", about.key, about.value))
                .collect();
            format!(
                "{service} {} {:02x?} <- {:02x?} {about:?}",
                span.name, span.span_id, span.parent_span_id
            )
        });
        lines.collect::<Vec<_>>().join("\n")
    }
}

fn text(attributes: &[KeyValue], key: &str) -> Option<String> {
    let found = attributes.iter().find(|attribute| attribute.key == key)?;
    match found.value.clone()?.value? {
        Value::StringValue(text) => Some(text),
        _ => None,
    }
}

fn cluster(endpoint: &str, more: &[&str]) -> Cluster {
    let mut arguments = vec!["--otlp-endpoint".to_owned(), endpoint.to_owned()];
    arguments.extend(more.iter().map(|&argument| argument.to_owned()));
    let store_arguments =
        SLOW_LINK.into_iter().map(str::to_owned).chain(arguments.clone()).collect();
    let environment = vec![("OTEL_BSP_SCHEDULE_DELAY", "50")];
    Cluster::start(Plan {
        store_arguments,
        shard_arguments: arguments,
        environment,
        ..Plan::default()
    })
}

fn end(cluster: &mut Cluster) {
    for daemon in cluster.stores.iter_mut().chain(&mut cluster.shards) {
        assert_eq!(daemon.as_mut().unwrap().terminate(), 0);
    }
}

fn caller(is_sampled: bool) -> Option<TraceContext> {
    TraceContext::new(TRACE, CALLER, is_sampled)
}

#[test]
fn a_get_is_one_trace_from_its_caller_to_the_peer() {
    let collector = Collector::start();
    let mut cluster = cluster(&collector.endpoint, &[]);
    let (first, second) = (cluster.client(0), cluster.client(1));
    first.put("a", &bytes(1, 100_000)).unwrap();
    let traced = enter_trace(caller(true));
    second.get("a", TIME_LIMIT).unwrap();
    drop(traced);
    drop((first, second));
    collector.await_spans(&[
        ("get", SECOND, 1),
        ("ask directory", SECOND, 1),
        ("query", None, 1),
        ("pull", SECOND, 1),
        ("serve", FIRST, 1),
    ]);
    end(&mut cluster);

    let trace = collector.trace();
    trace.assert_whole();
    let get = trace.one("get", Some("node-1"));
    assert_eq!(get.parent_span_id, CALLER);
    let request = trace.one("ask directory", Some("node-1"));
    assert_eq!(request.parent_span_id, get.span_id);
    let query = trace.one("query", None);
    assert_eq!(query.parent_span_id, request.span_id);
    assert_eq!(text(&query.attributes, "hoplite.sender").as_deref(), Some("node-0"));
    let pull = trace.one("pull", Some("node-1"));
    assert_eq!(pull.parent_span_id, get.span_id);
    assert_eq!(text(&pull.attributes, "hoplite.outcome").as_deref(), Some("complete"));
    let serve = trace.one("serve", Some("node-0"));
    assert_eq!(serve.parent_span_id, pull.span_id);
    assert_eq!(text(&serve.attributes, "hoplite.object").as_deref(), Some("a"));
    assert!(
        trace.named("publish", None).iter().all(|publish| publish.parent_span_id == get.span_id)
    );
    let spans = collector.spans();
    let put = spans.iter().find(|(_, span)| span.name == "put").unwrap();
    assert!(put.1.parent_span_id.is_empty() && put.1.trace_id != TRACE);
}

#[test]
fn requests_to_a_returning_shard_belong_to_the_waiting_get() {
    let collector = Collector::start();
    let mut cluster = cluster(&collector.endpoint, &[]);
    let (first, second) = (cluster.client(0), cluster.client(1));
    cluster.kill_shard(0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let _traced = enter_trace(caller(true));
            second.get("late", TIME_LIMIT).unwrap();
        });
        cluster.restart_shard(0);
        (0..2).for_each(|node| cluster.await_sessions(node));
        first.put("late", &bytes(1, 100_000)).unwrap();
    });
    drop((first, second));
    collector.await_spans(&[("get", SECOND, 1), ("ask directory", SECOND, 1), ("pull", SECOND, 1)]);
    end(&mut cluster);

    let trace = collector.trace();
    trace.assert_whole();
    let get = trace.one("get", Some("node-1"));
    // Two queries, if the first preceded the notice of the shard's end.
    let asked = trace.named("ask directory", Some("node-1"));
    assert!(
        !asked.is_empty() && asked.iter().all(|span| span.parent_span_id == get.span_id),
        "{}",
        trace.tree()
    );
    assert_eq!(trace.one("pull", Some("node-1")).parent_span_id, get.span_id);
}

#[test]
fn a_reduce_is_one_trace_with_its_hops() {
    let collector = Collector::start();
    let mut cluster = cluster(&collector.endpoint, &[]);
    let (first, second) = (cluster.client(0), cluster.client(1));
    let metadata = Metadata { dtype: Dtype::F32, shape: Some(vec![25_000]), ..Metadata::default() };
    let options = || PutOptions { metadata: metadata.clone(), ..PutOptions::default() };
    let zeros = vec![0; 100_000];
    for id in ["a", "b"] {
        second.put_with(id, &zeros, options()).unwrap();
    }
    first.put_with("c", &zeros, options()).unwrap();
    let traced = enter_trace(caller(true));
    first.reduce("sum", ["a", "b", "c"], ReduceOp::Sum, TIME_LIMIT).unwrap();
    drop(traced);
    drop((first, second));
    collector.await_spans(&[
        ("reduce", FIRST, 1),
        ("subscribe", None, 3),
        ("hop", FIRST, 1),
        ("perform hop", SECOND, 1),
        ("combine", SECOND, 1),
        ("combine", FIRST, 1),
        ("serve", SECOND, 1),
    ]);
    end(&mut cluster);

    let trace = collector.trace();
    trace.assert_whole();
    let reduce = trace.one("reduce", Some("node-0"));
    assert_eq!(reduce.parent_span_id, CALLER);
    let asked = trace.named("ask directory", Some("node-0"));
    assert!(asked.iter().all(|query| query.parent_span_id == reduce.span_id), "{}", trace.tree());
    assert!(trace.named("subscribe", None).len() >= 3, "{}", trace.tree());
    let hop = trace.one("hop", Some("node-0"));
    assert_eq!(hop.parent_span_id, reduce.span_id);
    let performed = trace.one("perform hop", Some("node-1"));
    assert_eq!(performed.parent_span_id, hop.span_id);
    assert_eq!(trace.one("combine", Some("node-1")).parent_span_id, performed.span_id);
    let combine = trace.one("combine", Some("node-0"));
    assert_eq!(combine.parent_span_id, reduce.span_id);
    assert_eq!(trace.one("serve", Some("node-1")).parent_span_id, combine.span_id);
}

#[test]
fn an_allreduce_is_one_trace_with_what_its_members_exchange() {
    let collector = Collector::start();
    let mut cluster = cluster(&collector.endpoint, &[]);
    cluster.put_zeros(0, "a");
    cluster.put_zeros(1, "b");
    std::thread::scope(|scope| {
        for rank in 0..2 {
            let client = cluster.client(rank);
            scope.spawn(move || {
                let _traced = (rank == 0).then(|| enter_trace(caller(true)));
                let options = AllreduceOptions {
                    op: ReduceOp::Sum,
                    timeout: TIME_LIMIT,
                    ..AllreduceOptions::default()
                };
                client.allreduce("sum", ["a", "b"], rank, options).unwrap()
            });
        }
    });
    collector.await_spans(&[
        ("collective", FIRST, 1),
        ("enlist", FIRST, 1),
        ("take part", SECOND, 1),
        ("exchange", FIRST, 1),
        ("exchange", SECOND, 1),
        ("serve", FIRST, 1),
        ("serve", SECOND, 1),
    ]);
    end(&mut cluster);

    let trace = collector.trace();
    trace.assert_whole();
    let collective = trace.one("collective", Some("node-0"));
    assert_eq!(collective.parent_span_id, CALLER);
    let enlist = trace.one("enlist", Some("node-0"));
    assert_eq!(enlist.parent_span_id, collective.span_id, "{}", trace.tree());
    assert_eq!(text(&enlist.attributes, "hoplite.member").as_deref(), Some("node-1"));
    let part = trace.one("take part", Some("node-1"));
    assert_eq!(part.parent_span_id, enlist.span_id, "{}", trace.tree());
    let [first, second] = [("node-0", collective), ("node-1", part)].map(|(node, parent)| {
        let exchange = trace.one("exchange", Some(node));
        assert_eq!(exchange.parent_span_id, parent.span_id, "{}", trace.tree());
        assert_eq!(text(&exchange.attributes, "hoplite.outcome").as_deref(), Some("complete"));
        exchange
    });
    for (sender, receiver) in [("node-0", second), ("node-1", first)] {
        let served = trace.named("serve", Some(sender));
        assert!(
            served.iter().any(|serve| serve.parent_span_id == receiver.span_id),
            "{}",
            trace.tree()
        );
    }
}

#[test]
fn an_unsampled_rank_is_not_in_the_traces_of_other_ranks() {
    let collector = Collector::start();
    let mut cluster = cluster(&collector.endpoint, &["--otlp-sample-ratio", "0"]);
    let sources = ["a", "b", "c"];
    for (rank, id) in sources.into_iter().enumerate() {
        cluster.put_zeros(rank % 2, id);
    }
    std::thread::scope(|scope| {
        for rank in 0..3 {
            let client = cluster.client(rank % 2);
            scope.spawn(move || {
                let _traced = (rank > 0).then(|| enter_trace(caller(true)));
                let options = AllreduceOptions {
                    op: ReduceOp::Sum,
                    timeout: TIME_LIMIT,
                    ..AllreduceOptions::default()
                };
                client.allreduce("sum", sources, rank, options).unwrap()
            });
        }
    });
    collector.await_spans(&[("join", FIRST, 1), ("join", SECOND, 1)]);
    end(&mut cluster);

    let trace = collector.trace();
    trace.assert_whole();
    for node in ["node-0", "node-1"] {
        assert!(!trace.named("join", Some(node)).is_empty(), "{}", trace.tree());
        for work in ["collective", "enlist", "take part", "exchange", "serve"] {
            assert!(
                trace.named(work, Some(node)).is_empty(),
                "{work} of {node} in {}",
                trace.tree()
            );
        }
    }
}

#[test]
fn the_caller_and_the_ratio_select_the_recorded_traces() {
    let collector = Collector::start();
    let mut cluster = cluster(&collector.endpoint, &["--otlp-sample-ratio", "0"]);
    let client = cluster.client(0);
    client.put("untraced", &bytes(1, 100)).unwrap();
    let unsampled = enter_trace(caller(false));
    client.put("unsampled", &bytes(1, 100)).unwrap();
    drop(unsampled);
    let traced = enter_trace(caller(true));
    assert!(client.get("none", Duration::from_millis(1)).is_err());
    drop(traced);
    drop(client);
    collector.await_spans(&[("get", FIRST, 1)]);
    end(&mut cluster);
    let spans = collector.spans();
    assert!(spans.iter().all(|(_, span)| span.trace_id == TRACE), "{spans:?}");
    let trace = collector.trace();
    trace.assert_whole();
    let failed = trace.one("get", Some("node-0")).status.clone().unwrap();
    assert_eq!(failed.code, 2, "an error");
    assert!(failed.message.contains("timed out"), "{failed:?}");
}

#[test]
fn an_unreachable_collector_delays_no_call() {
    let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let mut cluster = cluster(&format!("http://{closed}"), &[]);
    let (first, second) = (cluster.client(0), cluster.client(1));
    for number in 0..2000 {
        first.put(format!("{number}"), &bytes(number, 100)).unwrap();
    }
    assert_eq!(second.get("1999", TIME_LIMIT).unwrap()[..], bytes(1999, 100));
    let store = cluster.stores[0].as_ref().unwrap();
    store.await_log("traces cannot be exported");
    assert_eq!(
        store.log().matches("traces cannot be exported").count(),
        1,
        "said once, not for each batch"
    );
    drop((first, second));
    end(&mut cluster);
}

#[test]
fn a_silent_collector_delays_no_call() {
    let silent_listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = format!("http://{}", silent_listener.local_addr().unwrap());
    let accepting = silent_listener.try_clone().unwrap();
    std::thread::spawn(move || {
        for mut stream in accepting.incoming().map_while(Result::ok) {
            std::thread::spawn(move || std::io::copy(&mut stream, &mut std::io::sink()));
        }
    });
    let mut cluster = cluster(&endpoint, &[]);
    let client = cluster.client(0);
    let before = private_bytes(&cluster);
    for number in 0..5000 {
        client.put(format!("{number}"), &bytes(number, 100)).unwrap();
    }
    let growth = private_bytes(&cluster).saturating_sub(before);
    assert!(growth < MAX_GROWTH_BYTES, "{growth} bytes more");
    cluster.assert_serves();
    drop(client);
    end(&mut cluster);
}

fn private_bytes(cluster: &Cluster) -> u64 {
    let pid = cluster.stores[0].as_ref().unwrap().pid();
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap();
    line.trim().strip_suffix(" kB").unwrap().parse::<u64>().unwrap() * 1024
}

#[test]
fn traces_can_be_switched_off_by_the_variable_of_opentelemetry() {
    let collector = Collector::start();
    let place = tempfile::tempdir().unwrap();
    let socket = place.path().join("store.sock");
    let mut command = Command::new(program("hoplite-store"));
    command
        .args(["--memory", "16MiB", "--no-prefault", "--print-addresses", "--socket"])
        .arg(&socket);
    command.args(["--otlp-endpoint", &collector.endpoint]).env("OTEL_SDK_DISABLED", "true");
    let mut daemon = Daemon::start("alone", &mut command);
    let client = hoplite_client::blocking::Client::connect(&socket).unwrap();
    client.put("a", &bytes(1, 100)).unwrap();
    drop(client);
    assert_eq!(daemon.terminate(), 0);
    assert!(collector.spans().is_empty());
    daemon.await_log("OTEL_SDK_DISABLED");
}

#[test]
fn traces_are_off_by_default() {
    let mut cluster = Cluster::of(1);
    let client = cluster.client(0);
    let traced = enter_trace(caller(true));
    client.put("a", &bytes(1, 100_000)).unwrap();
    client.get("a", TIME_LIMIT).unwrap();
    drop((traced, client));
    assert!(!cluster.stores[0].as_ref().unwrap().log().contains("traces"));
    end(&mut cluster);
}
