"""One log format for all services: JSON lines on stderr, or coloured text if stderr is a terminal."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import structlog

from shared.redaction import redact

LEVELS = {"debug": 10, "info": 20, "warning": 30, "error": 40}


def configure_logging(level: str = "", *, pretty: bool | None = None, silent: Sequence[str] = ()) -> None:
    """Sets structlog up for the process. `level` defaults to KERF_LOG_LEVEL, then info.

    `silent`: the first words of events (up to the first `_`) that are not logged, for a caller that reports them.

    Raises ValueError on a level that is none of debug, info, warning, error.
    """
    name = (level or os.environ.get("KERF_LOG_LEVEL", "") or "info").lower()
    if name not in LEVELS:
        raise ValueError(f"log level {name!r} is none of {', '.join(LEVELS)}")
    shared: list[Any] = [
        *([_without(frozenset(silent))] if silent else []),
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    logger: Any
    if sys.stderr.isatty() if pretty is None else pretty:
        coloured = structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback)
        renderers: list[Any] = [coloured, _redacted]
        logger = structlog.PrintLoggerFactory(file=sys.stderr)
    else:
        # Without the frames' local variables: they hold whole objects, and credentials.
        tracebacks = structlog.processors.ExceptionRenderer(
            structlog.tracebacks.ExceptionDictTransformer(show_locals=False)
        )
        renderers = [tracebacks, structlog.processors.JSONRenderer(serializer=_to_json)]
        logger = structlog.BytesLoggerFactory(file=sys.stderr.buffer)
    structlog.configure(
        processors=[*shared, *renderers],
        wrapper_class=structlog.make_filtering_bound_logger(LEVELS[name]),
        logger_factory=logger,
        cache_logger_on_first_use=True,
    )
    # Libraries that use the standard library's logging say only what went wrong, in the same form.
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[structlog.stdlib.add_logger_name, *shared],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *renderers, _as_text],
        )
    )
    logging.basicConfig(handlers=[handler], level=max(LEVELS[name], logging.WARNING), force=True)
    # nats-py reports there what our own callbacks report already.
    logging.getLogger("nats").setLevel(logging.CRITICAL)


def _without(words: frozenset[str]) -> Callable[[Any, str, Any], Any]:
    def processor(_: Any, __: str, event: Any) -> Any:
        if str(event["event"]).partition("_")[0] in words:
            raise structlog.DropEvent
        return event

    return processor


def _to_json(event: Any, **_: Any) -> bytes:
    line = msgspec.json.encode(event, enc_hook=repr)
    return redact(line.decode()).encode() if b"://" in line else line


def _as_text(_: Any, __: str, line: Any) -> str:
    return line.decode() if isinstance(line, bytes) else line


def _redacted(_: Any, __: str, line: Any) -> str:
    return redact(line)
