"""Decides which MPS daemons start, stop and start again, and what has gone wrong with one. Pure.

NVIDIA's pages (docs.nvidia.com/deploy/mps, Architecture and When to Use MPS) say what is decided from here: one fatal
fault is reported to all clients of a server, whose status is FAULT until all of them have ended, and which takes no new
ones meanwhile. A client that does not end would keep the GPU from all others for ever, so its server is ended.
"""

from __future__ import annotations

from typing import Literal

import msgspec

FIRST_RETRY_S, MAX_RETRY_S = 1.0, 60.0
STEADY_S = 60.0
"""A daemon that has run for so long has not failed lately."""
FAULT_PATIENCE_S = 10.0
"""How long the clients of a server with a fault have to end."""
HUNG_S = 10.0
"""A daemon that has not answered for so long is started again."""

Verb = Literal["start", "stop", "restart"]
Kind = Literal["daemon", "server", "fault", "hung"]


class Server(msgspec.Struct, frozen=True):
    pid: int
    status: str = ""
    """INITIALIZING, ACTIVE or FAULT; "" if it was not told."""


class Seen(msgspec.Struct, frozen=True, kw_only=True):
    """What there is of one GPU's MPS. `control` is the PID of its control daemon; 0: it does not run."""

    control: int = 0
    servers: tuple[Server, ...] = ()
    answers: bool = True


class Memory(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What was last known of it. The agent keeps it on disk, so that the next agent knows what has ended meanwhile."""

    control: int = 0
    server: int = 0
    failures: int = 0
    """How often it has failed since it last was steady."""
    retry_s: float = 0.0
    """When it may be started again."""
    since_s: float = 0.0
    """When it was started, or found."""
    fault_s: float | None = None
    hung_s: float | None = None


class Trouble(msgspec.Struct, frozen=True):
    """What the containers that share the GPU have lost."""

    kind: Kind
    sentence: str


class Decision(msgspec.Struct, frozen=True):
    verb: Verb | None
    memory: Memory | None
    """None: nothing is to be known of this GPU any more."""
    trouble: Trouble | None = None


def decide(uuid: str, needed: bool, seen: Seen, memory: Memory | None, now_s: float) -> Decision:
    """What to do about one GPU's daemon. `needed`: whether a slice on the GPU is handed over."""
    if not needed:
        return Decision("stop" if seen.control or seen.servers or memory is not None else None, None)
    known = memory or Memory()
    if not seen.control:
        return _without_control(uuid, seen, known, now_s)
    if not seen.answers:
        return _hung(uuid, known, seen, now_s)
    known = msgspec.structs.replace(known, hung_s=None)
    pids = tuple(server.pid for server in seen.servers)
    found = msgspec.structs.replace(known, control=seen.control, server=pids[0] if pids else 0)
    if known.control != seen.control:
        found = msgspec.structs.replace(found, since_s=now_s, fault_s=None)
        if known.control:
            return Decision(None, found, _daemon_ended(uuid, known.control))
        known = found
    faulty = next((server.pid for server in seen.servers if server.status == "FAULT"), 0)
    if faulty:
        return _faulty(uuid, faulty, found, now_s)
    if known.server and known.server not in pids and known.fault_s is None:
        sentence = (
            f"the MPS server of GPU {uuid} (PID {known.server}) has ended, and with it the GPU work of all containers "
            "that share the GPU; the next program that uses the GPU gets a new server"
        )
        return Decision(None, found, Trouble("server", sentence))
    steady = now_s - found.since_s >= STEADY_S
    return Decision(None, msgspec.structs.replace(found, fault_s=None, failures=0 if steady else found.failures))


def started(memory: Memory, control: int, server: int, now_s: float) -> Memory:
    """What is known after a daemon was started."""
    return msgspec.structs.replace(memory, control=control, server=server, since_s=now_s, fault_s=None, hung_s=None)


def _without_control(uuid: str, seen: Seen, known: Memory, now_s: float) -> Decision:
    trouble = _daemon_ended(uuid, known.control) if known.control else None
    if now_s < known.retry_s:
        return Decision(None, msgspec.structs.replace(known, control=0, server=0), trouble)
    # A server that has outlived its daemon takes no clients.
    return Decision("restart" if seen.servers else "start", _failed(known, now_s), trouble)


def _hung(uuid: str, known: Memory, seen: Seen, now_s: float) -> Decision:
    since = now_s if known.hung_s is None else known.hung_s
    if now_s - since < HUNG_S:
        return Decision(None, msgspec.structs.replace(known, hung_s=since))
    sentence = (
        f"the MPS control daemon of GPU {uuid} (PID {seen.control}) does not answer and is started again, which ends "
        "the GPU work of all containers that share the GPU"
    )
    return Decision("restart", _failed(known, now_s), Trouble("hung", sentence))


def _faulty(uuid: str, server: int, found: Memory, now_s: float) -> Decision:
    if found.fault_s is None:
        sentence = (
            f"a program on GPU {uuid} has caused a fatal fault, which ends the GPU work of all containers that share "
            f"the GPU by MPS (server {server}); they must start again, and the GPU takes no new programs until they "
            f"have ended, for {FAULT_PATIENCE_S:g} s at most"
        )
        return Decision(None, msgspec.structs.replace(found, fault_s=now_s), Trouble("fault", sentence))
    if now_s - found.fault_s < FAULT_PATIENCE_S:
        return Decision(None, found)
    return Decision("restart", _failed(found, now_s))


def _failed(known: Memory, now_s: float) -> Memory:
    wait_s = min(FIRST_RETRY_S * 2.0 ** min(known.failures, 10), MAX_RETRY_S)
    return Memory(failures=known.failures + 1, retry_s=now_s + wait_s)


def _daemon_ended(uuid: str, pid: int) -> Trouble:
    sentence = (
        f"the MPS control daemon of GPU {uuid} (PID {pid}) has ended, and with it the GPU work of all containers that "
        "share the GPU; the agent starts it again, and the containers must start again, too"
    )
    return Trouble("daemon", sentence)
