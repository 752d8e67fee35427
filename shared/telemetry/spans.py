"""Spans of pods, sampled by the pod's UID; an unsampled one costs a hash and a comparison.

Recorded spans are made by the real OpenTelemetry SDK. They go to OTLP over HTTP where OTEL_EXPORTER_OTLP_ENDPOINT is
set, and as `contracts.metrics_queries.SpanBatch` onto the bus, where metrics keeps the newest traces for `kerf trace`.
The SDK is imported when the first span is recorded, or by `warm` in a thread.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from shared.contracts.metrics_queries import Span
from shared.telemetry.trace_ids import (
    SpanRef,
    format_traceparent,
    parse_traceparent,
    root_span_id_for,
    root_traceparent,
    trace_id_for,
)

if TYPE_CHECKING:
    from shared.telemetry.recorder import Recorder

Attributes = Mapping[str, str | int | float | bool]
Kind = Literal["internal", "producer", "consumer", "client", "server"]

DEFAULT_RATIO = 0.05
ERROR_MOST = 1_000
"""Of an error's sentence in a span: webhooks of others may say much, and spans go in batches."""
_LOW_64 = (1 << 64) - 1


class Telemetry:
    """One service's spans. `ratio` is the share of pods that are traced; ValueError where it is not within 0 and 1."""

    def __init__(
        self,
        service: str,
        instance: str = "",
        *,
        ratio: float | None = None,
        otlp_endpoint: str | None = None,
        to_bus: bool = True,
    ) -> None:
        text = os.environ.get("KERF_TRACE_RATIO", "")
        self.ratio = (float(text) if text else DEFAULT_RATIO) if ratio is None else ratio
        if not 0.0 <= self.ratio <= 1.0:
            raise ValueError(f"the trace ratio is {self.ratio}; it must be within 0 and 1")
        # The rule of OpenTelemetry's TraceIdRatioBased: the lower 64 bits of the trace id against ratio * 2**64.
        self._bound = round(self.ratio * (1 << 64))
        self._service, self._instance = service, instance
        self._endpoint = os.environ.get("OTEL_EXPORTER_OTLP_ENDPOINT", "") if otlp_endpoint is None else otlp_endpoint
        self._to_bus = to_bus
        self._recorder: Recorder | None = None
        self._making = threading.Lock()
        self.now_ns: Callable[[], int] = time.time_ns

    def sampled(self, uid: str) -> bool:
        """Whether this pod is traced though nothing about it is remarkable. All services agree on it."""
        return trace_id_for(uid) & _LOW_64 < self._bound

    def traceparent(self, uid: str, *, force: bool = False) -> str:
        """The root of the pod's trace, as in grants and events."""
        return root_traceparent(uid, sampled=force or self.sampled(uid))

    def pod_span(
        self,
        uid: str,
        name: str,
        *,
        start_ns: int | None = None,
        end_ns: int | None = None,
        attributes: Attributes | None = None,
        events: Sequence[str] = (),
        parent: str | None = None,
        links: Sequence[str] = (),
        force: bool = False,
        kind: Kind = "internal",
        error: str = "",
        root: bool = False,
    ) -> str:
        """Records a finished span in the pod's trace and returns its traceparent, or "" where the pod is not traced.

        Without `parent` (a traceparent of the same trace) it hangs under the root span; `root=True` makes the root span
        itself, once per pod. `links` are traceparents of other traces: gangs and batches. `force` records always: pods
        that were rejected, slow or preempted. A parent or link that is no traceparent is left out.
        """
        trace_id = trace_id_for(uid)
        if not force and trace_id & _LOW_64 >= self._bound:
            return ""
        error = error[:ERROR_MOST]
        above = (
            None if root else self._parent(trace_id, parent) or SpanRef(trace_id, root_span_id_for(uid), sampled=True)
        )
        end = self.now_ns() if end_ns is None else end_ns
        return self._record(
            name,
            trace_id=trace_id,
            span_id=root_span_id_for(uid) if root else None,
            above=above,
            start_ns=end if start_ns is None else start_ns,
            end_ns=end,
            attributes=attributes,
            events=events,
            links=links,
            kind=kind,
            error=error,
        )

    @contextlib.contextmanager
    def span(
        self, name: str, *, parent: str = "", attributes: Attributes | None = None, kind: Kind = "internal"
    ) -> Iterator[OpenSpan]:
        """Times a block. With a `parent` it is recorded where that was sampled; without, in a trace of its own by the
        ratio.

        An exception that leaves the block is noted on the span and goes on.
        """
        above = self._parent(None, parent)
        trace_id = above.trace_id if above else int.from_bytes(os.urandom(16), "big") or 1
        sampled = above.sampled if above else trace_id & _LOW_64 < self._bound
        opened = OpenSpan(trace_id, int.from_bytes(os.urandom(8), "big") or 1, sampled, dict(attributes or {}))
        start_ns = self.now_ns()
        error = ""
        try:
            yield opened
        except BaseException as failure:
            error = repr(failure)
            raise
        finally:
            if sampled:
                self._record(
                    name,
                    trace_id=trace_id,
                    span_id=opened.span_id,
                    above=above,
                    start_ns=start_ns,
                    end_ns=self.now_ns(),
                    attributes=opened.attributes,
                    events=opened.events,
                    links=(),
                    kind=kind,
                    error=error,
                )

    @staticmethod
    def _parent(trace_id: int | None, traceparent: str | None) -> SpanRef | None:
        if not traceparent:
            return None
        try:
            parsed = parse_traceparent(traceparent)
        except ValueError:
            # it comes from annotations that people can write; a bad one costs its own span the parent, no more
            return None
        return parsed if trace_id is None or parsed.trace_id == trace_id else None

    def _record(self, name: str, *, trace_id: int, span_id: int | None, **rest: Any) -> str:
        made = self._get_recorder().record(name, trace_id=trace_id, span_id=span_id, **rest)
        return format_traceparent(trace_id, made, sampled=True)

    def _get_recorder(self) -> Recorder:
        if self._recorder is None:
            with self._making:
                if self._recorder is None:
                    from shared.telemetry.recorder import Recorder  # noqa: PLC0415 - imports the SDK, 200 ms

                    self._recorder = Recorder(
                        self._service, self._instance, otlp_endpoint=self._endpoint, keep=self._to_bus
                    )
        return self._recorder

    def warm(self) -> None:
        """Imports the SDK. To be run in a thread after start-up, so that the first recorded span does not pay for
        it."""
        self._get_recorder()

    def take(self, limit: int = 512) -> tuple[Span, ...]:
        """Finished spans for the bus, oldest first; they are taken out."""
        return () if self._recorder is None else self._recorder.take(limit)

    @property
    def dropped(self) -> int:
        """Spans that were not fetched in time."""
        return 0 if self._recorder is None else self._recorder.dropped

    def shutdown(self) -> None:
        """Sends what OTLP still has to send; blocks up to 5 s."""
        if self._recorder is not None:
            self._recorder.shutdown()


class OpenSpan:
    """A span that is being timed."""

    def __init__(
        self, trace_id: int, span_id: int, sampled: bool, attributes: dict[str, str | int | float | bool]
    ) -> None:
        self.trace_id, self.span_id, self.sampled, self.attributes = trace_id, span_id, sampled, attributes
        self.events: list[str] = []

    @property
    def traceparent(self) -> str:
        return format_traceparent(self.trace_id, self.span_id, sampled=self.sampled)

    def set(self, key: str, value: str | float | bool) -> None:
        self.attributes[key] = value

    def event(self, text: str) -> None:
        self.events.append(text)


def messaging(
    operation: Literal["publish", "process", "receive"], template: str, *, system: str = "nats"
) -> tuple[str, Kind, dict[str, str | int | float | bool]]:
    """Name, kind and attributes of a messaging span:
    https://opentelemetry.io/docs/specs/semconv/messaging/messaging-spans/

    `template` is the subject with its variable tokens in braces: kerf.v1.cmd.node.{node}.grant.
    """
    kind: Kind = "producer" if operation == "publish" else "consumer"
    wire = "send" if operation == "publish" else operation
    attributes: dict[str, str | int | float | bool] = {
        "messaging.system": system,
        "messaging.operation.name": operation,
        "messaging.operation.type": wire,
        "messaging.destination.template": template,
    }
    return f"{operation} {template}", kind, attributes
