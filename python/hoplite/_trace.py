"""Selects the OpenTelemetry trace of calls."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from hoplite import _native

_span: ContextVar[_native.Span | None] = ContextVar("hoplite_span", default=None)


@contextmanager
def trace(traceparent: str | None = None) -> Iterator[None]:
    """Puts the calls of a block into a trace of OpenTelemetry.

    The daemons record it if they export traces (`docs/reference/metrics.md`). Each thread and each
    task of asyncio has its own trace.

    Args:
        traceparent: The calling span, in the form of W3C Trace Context. `None` takes the current
            span of `opentelemetry`, or else `$TRACEPARENT`, or else none.

    Raises:
        ValueError: `traceparent` has another form.
        ImportError: There is neither `traceparent` nor the package `opentelemetry`.

    Examples:
        >>> with hoplite.trace("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"):
        ...     client.put("traced", b"1")
        hoplite.Ref('traced')
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
