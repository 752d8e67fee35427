"""The newest traces, for `kerf trace`. Pure."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable

from shared.contracts.metrics_queries import Span

MOST_SPANS = 400
"""The most spans in one trace: a pod that is tried for ever adds no more."""


class TraceStore:
    """Traces by id, the one heard of last kept longest; `most` of them."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._traces: OrderedDict[str, dict[str, Span]] = OrderedDict()
        self.dropped_spans = 0

    def __len__(self) -> int:
        return len(self._traces)

    def add(self, spans: Iterable[Span]) -> None:
        """Spans may come twice and in any order."""
        for span in spans:
            trace = self._traces.setdefault(span.trace_id, {})
            if len(trace) >= MOST_SPANS and span.span_id not in trace:
                # The oldest but the first: how it began and how it ends are what is looked for.
                del trace[next(key for i, key in enumerate(trace) if i)]
                self.dropped_spans += 1
            trace[span.span_id] = span
            self._traces.move_to_end(span.trace_id)
        while len(self._traces) > self._most:
            self._traces.popitem(last=False)

    def get(self, trace_id: str) -> tuple[Span, ...]:
        """By start, then by end; empty where nothing is kept."""
        spans = self._traces.get(trace_id, {}).values()
        return tuple(sorted(spans, key=lambda span: (span.start_ns, span.end_ns)))
