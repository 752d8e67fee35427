"""Logs, metrics and traces: structlog, plain-integer counters for Prometheus, and OpenTelemetry with one trace per
pod."""

from shared.telemetry.logs import configure_logging
from shared.telemetry.metrics import Metrics
from shared.telemetry.spans import Telemetry
from shared.telemetry.trace_ids import format_traceparent, parse_traceparent, root_traceparent, trace_id_for

__all__ = [
    "Metrics",
    "Telemetry",
    "configure_logging",
    "format_traceparent",
    "parse_traceparent",
    "root_traceparent",
    "trace_id_for",
]
