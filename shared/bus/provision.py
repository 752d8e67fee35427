"""Streams and buckets of Kerf: made where they are missing, checked where they are there.

Of what is there only the number of replicas is changed, when the setting has changed and the servers are there.
"""

from __future__ import annotations

import contextlib
import time
from typing import Any

import structlog

from shared.bus.jetstream import ApiFailure, Deleted, JetStream, StreamInfo
from shared.bus.mark import Mark
from shared.bus.port import Bus, BusError, NoStream, Refused
from shared.contracts import subjects
from shared.contracts.base import encode
from shared.contracts.log import LogMark

_S = 1_000_000_000
_ALREADY_IN_USE = 10058
_RISING = (subjects.STREAM_LOG, f"KV_{subjects.KV_MARK}")

log = structlog.get_logger("bus")


def wanted(*, replicas: int = 1, clustered: bool = False, log_max_age_s: int = 24 * 3600) -> tuple[dict[str, Any], ...]:
    """The server's own configuration objects, all that Kerf cares about in them, in the order in which
    they are made. Durations are nanoseconds. A server that is not in a cluster has one replica of each."""
    replicas = replicas if clustered else 1
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
            "name": subjects.STREAM_EVENTS,
            "subjects": [subjects.EVENTS_ALL],
            "storage": "file",
            "retention": "limits",
            "discard": "old",
            "max_age": 7 * 24 * 3600 * _S,
            "max_bytes": 2 * 1024**3,
            "duplicate_window": 120 * _S,
            "allow_direct": True,
            "num_replicas": replicas,
            # One server syncs each event before it acknowledges it, which costs five times its CPU (77 µs against 15).
            # Events are told, not relied on: a server that is killed may forget its last ones. Replicated streams
            # decide by themselves, and one that has this mode can never be replicated.
            **({} if clustered else {"persist_mode": "async"}),
        },
        {"name": f"KV_{subjects.KV_NODES}", "subjects": [f"$KV.{subjects.KV_NODES}.>"], "storage": "file", **bucket},
        # On file, though what it holds lives for seconds: a memory stream of a single server is gone after its restart,
        # the stream itself and not only what was in it, and would have to be provisioned again.
        {
            "name": f"KV_{subjects.KV_LEADER}",
            "subjects": [f"$KV.{subjects.KV_LEADER}.>"],
            "storage": "file",
            **bucket,
            "allow_msg_ttl": True,
            "subject_delete_marker_ttl": 60 * _S,
        },
        {
            # In memory on purpose: what comes back from a backup or an old disk comes back without it, and a log
            # without its
            # mark is not trusted (rule R5).
            "name": f"KV_{subjects.KV_MARK}",
            "subjects": [f"$KV.{subjects.KV_MARK}.>"],
            "storage": "memory",
            **bucket,
            "allow_direct": False,
        },
        {
            "name": f"KV_{subjects.KV_SPARED}",
            "subjects": [f"$KV.{subjects.KV_SPARED}.>"],
            "storage": "file",
            **bucket,
            "allow_msg_ttl": True,
            "subject_delete_marker_ttl": 60 * _S,
        },
        {
            # Last: its beginning is written to the mark, under the revision that the mark had before the log was there.
            "name": subjects.STREAM_LOG,
            "subjects": [subjects.LOG_ALL],
            "storage": "file",
            "retention": "limits",
            "discard": "old",
            "max_age": log_max_age_s * _S,
            "deny_delete": True,
            "deny_purge": True,
            # Reads go to the leader alone: a follower's answer may be behind, and a replay must not be.
            "allow_direct": False,
            "num_replicas": replicas,
        },
    )


async def provision(bus: Bus, *, replicas: int = 1, log_max_age_s: int = 24 * 3600) -> tuple[str, ...]:
    """Creates what is missing and returns the names of it. May be called again at any time, by several at once.

    Raises BusError naming every setting of an existing stream that differs, what it is and what is wanted: Kerf does
    not change a stream that may have been configured on purpose. The number of replicas is `scale`'s.
    """
    js = _jetstream(bus)
    made, differences = [], []
    clustered = js.connection.clustered
    for config in wanted(replicas=replicas, clustered=clustered, log_max_age_s=log_max_age_s):
        name, mark = config["name"], None
        try:
            info = await js.stream_info(name)
        except NoStream:
            if name == subjects.STREAM_LOG:
                mark = await Mark(js).read()
            if await _create(js, config):
                made.append(name)
                log.info("bus_stream_created", stream=name)
                if mark is not None:
                    await _mark_new_log(js, *mark)
            info = await js.stream_info(name)
        differences += _differences(name, info.config, config)
    if differences:
        raise BusError("streams exist with other settings than Kerf needs: " + "; ".join(differences))
    return tuple(made)


async def scale(bus: Bus, *, replicas: int = 1) -> dict[str, str]:
    """Gives every stream of Kerf so many replicas, where it has others; returns why, by the names of those that cannot
    have them yet. Streams serve and keep all that is in them meanwhile."""
    js = _jetstream(bus)
    if replicas > 1 and not js.connection.clustered:
        return {config["name"]: "the NATS server is not in a cluster" for config in wanted()}
    left = {}
    for config in wanted(replicas=replicas, clustered=js.connection.clustered):
        name, number = config["name"], config["num_replicas"]
        try:
            have = (await js.stream_info(name)).config
            before = have.get("num_replicas", 1)
            if before != number:
                update = have | {"num_replicas": number}
                await js.call(f"STREAM.UPDATE.{name}", update, StreamInfo, timeout_s=5.0)
                log.info("bus_stream_scaled", stream=name, replicas=number, before=before)
        except BusError as error:
            left[name] = str(error)
    return left


def _jetstream(bus: Bus) -> JetStream:
    js = getattr(bus, "js", None)
    if not isinstance(js, JetStream):
        raise BusError(f"cannot provision over {type(bus).__name__}: it is no NATS bus")
    return js


async def _mark_new_log(js: JetStream, value: bytes | None, revision: int) -> None:
    """Says that the log begins here: its first leader then knows that it has lost nothing. A mark that was there
    already stays. `revision`: the mark's, before the log was made. Whatever a leader has marked since, or the servers
    have lost, the write fails."""
    if value is None:
        first = (await js.stream_info(subjects.STREAM_LOG)).state.first_seq
        with contextlib.suppress(Refused):
            await Mark(js).write(encode(LogMark(term=0, sequence=first - 1, session="provision")), revision)


async def begin_log_anew(js: JetStream, first_sequence: int) -> None:
    """Deletes KERF_LOG and makes it again as it was configured, with a first sequence of at least `first_sequence`.

    Raises BusError; then the log may be missing, and provisioning makes it.
    """
    config = (await js.stream_info(subjects.STREAM_LOG)).config
    with contextlib.suppress(NoStream):  # an unanswered deletion that was asked again had happened
        await js.call(f"STREAM.DELETE.{subjects.STREAM_LOG}", None, Deleted)
    log.warning("log_deleted", stream=subjects.STREAM_LOG, first_sequence=first_sequence)
    await _create(js, config, first_sequence)


async def _create(js: JetStream, config: dict[str, Any], first_sequence: int = 1) -> bool:
    """True if this process created it, False if another was quicker."""
    body = dict(config)
    if config["name"] in _RISING:
        # Rule R5: after a wipe numbers must go on rising, or a term's number, or a mark's revision, would come a second
        # time.
        body["first_seq"] = max(int(time.time() * 1000), first_sequence)
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
        if setting != "num_replicas" and have.get(setting, type(value)()) != value
    ]
