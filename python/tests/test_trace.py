from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent import futures
from pathlib import Path
from typing import Any

import grpc
import pytest
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2 as messages
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2_grpc as service
from opentelemetry.sdk.trace import TracerProvider

import hoplite
import hoplite.aio
from stores import Cluster, await_that

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


class Collector(service.TraceServiceServicer):
    def __init__(self) -> None:
        self.spans: list[Any] = []

    def Export(self, request: Any, context: Any) -> Any:
        for resource in request.resource_spans:
            for scope in resource.scope_spans:
                self.spans.extend(scope.spans)
        return messages.ExportTraceServiceResponse()

    def parents(self, name: str) -> list[str]:
        return [span.parent_span_id.hex() for span in self.spans if span.name == name]


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    collector = Collector()
    with futures.ThreadPoolExecutor(2) as threads:
        server = grpc.server(threads)
        service.add_TraceServiceServicer_to_server(collector, server)
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        monkeypatch.setenv("HOPLITE_OTLP_ENDPOINT", f"http://127.0.0.1:{port}")
        monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "100")
        yield collector
        server.stop(None).wait()


def test_the_spans_of_a_store_are_children_of_the_callers(
    collector: Collector, tmp_path: Path
) -> None:
    tracer = TracerProvider().get_tracer("test")

    async def concurrently(socket: Path) -> None:
        async with await hoplite.aio.connect(socket) as client:

            async def wait(traceparent: str) -> None:
                with hoplite.trace(traceparent):
                    await asyncio.sleep(0)
                    await client.wait(["a"])

            await asyncio.gather(*(wait(f"{PARENT[:36]}{number:016x}-01") for number in (1, 2)))

    with Cluster(tmp_path, nodes=1, memory="64MiB") as cluster:
        with hoplite.connect(cluster.sockets[0]) as client:
            with hoplite.trace(PARENT):
                client.put("a", b"x" * 100_000)
            with tracer.start_as_current_span("step") as step, hoplite.trace():
                client.get("a")
            client.delete("none")
        asyncio.run(concurrently(cluster.sockets[0]))
        # A store that stops waits only 1 s for the collector.
        await_that(
            "the spans are exported",
            lambda: (
                len(collector.parents("wait")) == 2
                and all(collector.parents(name) for name in ("put", "get", "delete"))
            ),
        )
    assert collector.parents("put") == ["b7ad6b7169203331"]
    assert collector.parents("get") == [f"{step.get_span_context().span_id:016x}"]
    assert "" in collector.parents("delete"), "a call without a trace begins one"
    assert sorted(collector.parents("wait")) == [f"{number:016x}" for number in (1, 2)]


def test_what_is_no_traceparent_is_refused() -> None:
    with pytest.raises(ValueError, match="not a traceparent"), hoplite.trace("00-0"):
        pass
