"""In which trace of OpenTelemetry calls are made."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from hoplite import _native

_span: ContextVar[_native.Span | None] = ContextVar("hoplite_span", default=None)


@contextmanager
def trace(traceparent: str | None = None) -> Iterator[None]:
    """Makes the calls of the block in a trace, so that what is done for them is part of it, wherever that is.

        with tracer.start_as_current_span("step"), hoplite.trace():
            weights = client.get("weights")

    The daemons record it if they are told where to: see docs/reference/metrics.md. Threads and tasks of asyncio each have a trace of
    their own.

    Args:
        traceparent: the span that makes the calls, as W3C Trace Context spells it; None means the current one of the package
            `opentelemetry`; if there is none, that of the environment variable TRACEPARENT, if it is set.
    Raises:
        ValueError: `traceparent` is none.
        ImportError: there is no `opentelemetry`, and no `traceparent`.
    """
    if traceparent is None:
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        carrier: dict[str, str] = {}
        TraceContextTextMapPropagator().inject(carrier)
        traceparent = carrier.get("traceparent")
    _native.look_for_spans(_span)
    token = _span.set(None if traceparent is None else _native.Span(traceparent))
    try:
        yield
    finally:
        _span.reset(token)
