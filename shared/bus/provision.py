"""Streams and buckets of Kerf: made where they are missing, checked where they are there, never changed by itself."""

from __future__ import annotations

import time
from typing import Any

import structlog

from shared.bus.jetstream import ApiFailure, JetStream, StreamInfo
from shared.bus.port import Bus, BusError, NoStream
from shared.contracts import subjects

_S = 1_000_000_000
_ALREADY_IN_USE = 10058

log = structlog.get_logger("bus")


def wanted(*, replicas: int = 1, log_max_age_s: int = 24 * 3600) -> tuple[dict[str, Any], ...]:
    """The server's own configuration objects, all that Kerf cares about in them. Durations are nanoseconds."""
    bucket = {
        "max_msgs_per_subject": 1,
        "discard": "new",
        "allow_rollup_hdrs": True,
        "deny_delete": True,
        "allow_direct": True,
        "num_replicas": replicas,
    }
    return (
        {
            "name": subjects.STREAM_LOG, "subjects": [subjects.LOG_ALL], "storage": "file", "retention": "limits",
            "discard": "old", "max_age": log_max_age_s * _S, "deny_delete": True, "deny_purge": True,
            # Reads go to the leader alone: a follower's answer may be behind, and a replay must not be.
            "allow_direct": False, "num_replicas": replicas,
        },
        {
            "name": subjects.STREAM_EVENTS, "subjects": [subjects.EVENTS_ALL], "storage": "file", "retention": "limits",
            "discard": "old", "max_age": 7 * 24 * 3600 * _S, "max_bytes": 2 * 1024**3, "duplicate_window": 120 * _S,
            "allow_direct": True, "num_replicas": replicas,
            # One server syncs each event before it acknowledges it, which costs five times its CPU (77 µs against 15).
            # Events are told, not relied on: a server that is killed may forget its last ones. Replicated streams decide by themselves.
            **({"persist_mode": "async"} if replicas == 1 else {}),
        },
        {"name": f"KV_{subjects.KV_NODES}", "subjects": [f"$KV.{subjects.KV_NODES}.>"], "storage": "file", **bucket},
        # On file, though what it holds lives for seconds: a memory stream of a single server is gone after its restart,
        # the stream itself and not only what was in it, and somebody would have to provision it anew.
        {
            "name": f"KV_{subjects.KV_LEADER}", "subjects": [f"$KV.{subjects.KV_LEADER}.>"], "storage": "file", **bucket,
            "allow_msg_ttl": True, "subject_delete_marker_ttl": 60 * _S,
        },
        {
            "name": f"KV_{subjects.KV_SPARED}", "subjects": [f"$KV.{subjects.KV_SPARED}.>"], "storage": "file", **bucket,
            "allow_msg_ttl": True, "subject_delete_marker_ttl": 60 * _S,
        },
    )  # fmt: skip


async def provision(bus: Bus, *, replicas: int = 1, log_max_age_s: int = 24 * 3600) -> tuple[str, ...]:
    """Creates what is missing and returns the names of it. May be called again at any time, by several at once.

    Raises BusError naming every setting of an existing stream that differs, what it is and what is wanted: Kerf does
    not change a stream that somebody may have configured on purpose.
    """
    js = getattr(bus, "js", None)
    if not isinstance(js, JetStream):
        raise BusError(f"cannot provision over {type(bus).__name__}: it is no NATS bus")
    made, differences = [], []
    for config in wanted(replicas=replicas, log_max_age_s=log_max_age_s):
        name = config["name"]
        try:
            info = await js.stream_info(name)
        except NoStream:
            if await _create(js, config):
                made.append(name)
                log.info("bus_stream_created", stream=name)
            info = await js.stream_info(name)
        differences += _differences(name, info.config, config)
    if differences:
        raise BusError("streams exist with other settings than Kerf needs: " + "; ".join(differences))
    return tuple(made)


async def _create(js: JetStream, config: dict[str, Any]) -> bool:
    """True when we made it, False when somebody else was quicker."""
    body = dict(config)
    if config["name"] == subjects.STREAM_LOG:
        # Rule R5: after a wipe numbers must go on rising, or a term's number would come a second time.
        body["first_seq"] = int(time.time() * 1000)
    try:
        await js.call(f"STREAM.CREATE.{config['name']}", body, StreamInfo, timeout_s=5.0)
    except ApiFailure as failure:
        # Another process made it meanwhile with its own first_seq; what it set is compared by the caller.
        if failure.err_code == _ALREADY_IN_USE:
            return False
        raise
    return True


def _differences(name: str, have: dict[str, Any], want: dict[str, Any]) -> list[str]:
    return [
        f"{name}: {setting} is {have.get(setting, 'not set')}, wanted {value}"
        for setting, value in want.items()
        if have.get(setting, type(value)()) != value
    ]
