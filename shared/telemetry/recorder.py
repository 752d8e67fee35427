"""The OpenTelemetry SDK behind `Telemetry`: spans with ids of our choosing, to OTLP and to a queue for the bus."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

from opentelemetry import trace
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.id_generator import IdGenerator, RandomIdGenerator
from opentelemetry.sdk.trace.sampling import ALWAYS_ON

from shared.contracts.metrics_queries import Span
from shared.telemetry.trace_ids import SpanRef, format_traceparent, parse_traceparent

MAX_WAITING = 8192

_KINDS = {
    "internal": trace.SpanKind.INTERNAL,
    "producer": trace.SpanKind.PRODUCER,
    "consumer": trace.SpanKind.CONSUMER,
    "client": trace.SpanKind.CLIENT,
    "server": trace.SpanKind.SERVER,
}


class _ChosenIds(IdGenerator):
    """Returns the ids that `record` chose for the span that it starts; each is used once."""

    def __init__(self) -> None:
        self._random = RandomIdGenerator()
        self.trace_id: int | None = None
        self.span_id: int | None = None

    def generate_trace_id(self) -> int:
        chosen, self.trace_id = self.trace_id, None
        return self._random.generate_trace_id() if chosen is None else chosen

    def generate_span_id(self) -> int:
        chosen, self.span_id = self.span_id, None
        return self._random.generate_span_id() if chosen is None else chosen


class _Keep(SpanProcessor):
    """Keeps finished spans until the lifecycle publishes them; the oldest fall out first."""

    def __init__(self) -> None:
        self.spans: deque[ReadableSpan] = deque()
        self.dropped = 0

    def on_end(self, span: ReadableSpan) -> None:
        if len(self.spans) >= MAX_WAITING:
            self.spans.popleft()
            self.dropped += 1
        self.spans.append(span)


class Recorder:
    """Not thread-safe: a service records from its event loop."""

    def __init__(self, service: str, instance: str, *, otlp_endpoint: str, keep: bool) -> None:
        self._service = service
        self._ids = _ChosenIds()
        self._keep = _Keep()
        resource = Resource.create(
            {"service.name": f"kerf-{service}", "service.namespace": "kerf", "service.instance.id": instance}
        )
        # Whether to record was decided before; the SDK records all that it is given.
        self._provider = TracerProvider(
            sampler=ALWAYS_ON, resource=resource, id_generator=self._ids, shutdown_on_exit=False
        )
        if keep:
            self._provider.add_span_processor(self._keep)
        if otlp_endpoint:
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter  # noqa: PLC0415 - requests and protobuf

            self._provider.add_span_processor(
                BatchSpanProcessor(OTLPSpanExporter(endpoint=f"{otlp_endpoint.rstrip('/')}/v1/traces", timeout=3))
            )
        self._tracer = self._provider.get_tracer("kerf")

    def record(
        self,
        name: str,
        *,
        trace_id: int,
        span_id: int | None,
        above: SpanRef | None,
        start_ns: int,
        end_ns: int,
        attributes: Any,
        events: Sequence[str],
        links: Sequence[str],
        kind: str,
        error: str,
    ) -> int:
        """Makes a finished span and returns its id. `above` is its parent; None makes it the root of `trace_id`."""
        context = (
            trace.set_span_in_context(trace.INVALID_SPAN)
            if above is None
            else trace.set_span_in_context(trace.NonRecordingSpan(_context(above)))
        )
        self._ids.trace_id, self._ids.span_id = trace_id if above is None else None, span_id
        span = self._tracer.start_span(
            name, context=context, kind=_KINDS[kind], attributes=attributes, links=_links(links), start_time=start_ns
        )
        for event in events:
            span.add_event(event, timestamp=end_ns)
        if error:
            span.set_status(trace.StatusCode.ERROR, error)
        span.end(end_ns)
        return span.get_span_context().span_id

    def take(self, limit: int) -> tuple[Span, ...]:
        spans = self._keep.spans
        return tuple(_as_message(spans.popleft(), self._service) for _ in range(min(limit, len(spans))))

    @property
    def dropped(self) -> int:
        return self._keep.dropped

    def shutdown(self) -> None:
        self._provider.force_flush(5_000)
        self._provider.shutdown()


def _context(ref: SpanRef) -> trace.SpanContext:
    return trace.SpanContext(
        ref.trace_id, ref.span_id, is_remote=True, trace_flags=trace.TraceFlags(trace.TraceFlags.SAMPLED)
    )


def _links(traceparents: Sequence[str]) -> list[trace.Link]:
    links = []
    for text in traceparents:
        try:
            links.append(trace.Link(_context(parse_traceparent(text))))
        except ValueError:
            continue  # as with parents: what people wrote wrongly costs the link, no more
    return links


def _as_message(span: ReadableSpan, service: str) -> Span:
    context = span.get_span_context()
    if context is None:
        raise ValueError(f"span {span.name!r} has no context")
    return Span(
        trace_id=f"{context.trace_id:032x}",
        span_id=f"{context.span_id:016x}",
        parent_id="" if span.parent is None else f"{span.parent.span_id:016x}",
        name=span.name,
        service=service,
        start_ns=span.start_time or 0,
        end_ns=span.end_time or 0,
        attributes=dict(span.attributes or {}),  # type: ignore[arg-type]  # only plain values are ever given to record()
        events=tuple(event.name for event in span.events),
        links=tuple(
            format_traceparent(link.context.trace_id, link.context.span_id, sampled=True) for link in span.links
        ),
        error=span.status.description or "" if span.status.status_code is trace.StatusCode.ERROR else "",
    )
