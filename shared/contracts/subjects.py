"""Names on the bus. Tokens hold no dots, blanks or wildcards: node names and namespaces pass through `token`."""

from __future__ import annotations

from shared.contracts.base import ContractError

VERSION = "kerf.v1"

STREAM_LOG = "KERF_LOG"
LOG_TERM = f"{VERSION}.log.term"
LOG_READY = f"{VERSION}.log.ready"
LOG_DECISIONS = f"{VERSION}.log.decisions"
LOG_ALL = f"{VERSION}.log.>"

STREAM_EVENTS = "KERF_EVENTS"
EVENTS_ALL = f"{VERSION}.event.>"

KV_NODES = "kerf_nodes"
KV_LEADER = "kerf_leader"
KV_SPARED = "kerf_spared"
KV_MARK = "kerf_mark"
LOG_MARK = "log"
"""The one key of the bucket of the log's mark."""

FEED_ALL = f"{VERSION}.feed.*"
QUERY_SNAPSHOT = f"{VERSION}.query.snapshot"
QUERY_REACH = f"{VERSION}.query.reach"

CMD_BIND = f"{VERSION}.cmd.bind"
CMD_PATCH = f"{VERSION}.cmd.patch"
CMD_EVICT = f"{VERSION}.cmd.evict"
CMD_RESIZE = f"{VERSION}.cmd.resize"
CMD_RESERVE = f"{VERSION}.cmd.reserve"
CMD_ABANDON = f"{VERSION}.cmd.abandon"

REJECTED = f"{VERSION}.event.placement.rejected.>"
GRANTS_ENDED = f"{VERSION}.event.grant.ended.>"
PREEMPTIONS = f"{VERSION}.event.preemption.>"
SLICES_RELEASED = f"{VERSION}.event.slice.released.>"
SLICES_IMPAIRED = f"{VERSION}.event.slice.impaired.>"
"""Under the pod's namespace where the agent knows it, else under the node. For listeners: placement believes
RELEASES_ALL alone."""
RELEASES_ALL = f"{VERSION}.release.*"

HEARTBEAT_ALL = f"{VERSION}.beat.*"
HEARTBEAT_HOLLOW = f"{VERSION}.beat.hollow"
"""The heartbeat of a process that simulates nodes: one message for all of them."""
USAGE_ALL = f"{VERSION}.usage.*"
SPANS_ALL = f"{VERSION}.spans.*"

IDENTITY_ALL = f"{VERSION}.identity.*"

SIM_APPLY = f"{VERSION}.sim.apply"
SIM_DELETE = f"{VERSION}.sim.delete"

_PLAIN = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-")


def token(name: str) -> str:
    """One subject token for any name, reversibly: every byte but letters, digits and dashes becomes _hh."""
    if not name:
        raise ValueError("an empty name has no place in a subject")
    return "".join(c if c in _PLAIN else "".join(f"_{b:02x}" for b in c.encode()) for c in name)


def untoken(text: str) -> str:
    head, *rest = text.split("_")
    raw = head.encode() + b"".join(bytes.fromhex(part[:2]) + part[2:].encode() for part in rest)
    return raw.decode()


def feed(epoch: str) -> str:
    return f"{VERSION}.feed.{token(epoch)}"


def snapshot_of(epoch: str) -> str:
    """Later pages of a snapshot come from the watcher that began it."""
    return f"{QUERY_SNAPSHOT}.{token(epoch)}"


def event_in_namespace(entity: str, verb: str, namespace: str) -> str:
    return f"{VERSION}.event.{entity}.{verb}.ns.{token(namespace)}"


def event_on_node(entity: str, verb: str, node: str) -> str:
    return f"{VERSION}.event.{entity}.{verb}.node.{token(node)}"


def node_command(node: str, verb: str) -> str:
    """verb: grant, release, sync, cordon, hold, ack. `*` as node subscribes to those of all nodes."""
    return f"{VERSION}.cmd.node.{node if node == '*' else token(node)}.{verb}"


def heartbeat(node: str) -> str:
    return f"{VERSION}.beat.{token(node)}"


def usage(node: str) -> str:
    return f"{VERSION}.usage.{token(node)}"


def identity(node: str) -> str:
    """Where a node's agent asks the operator for its certificate."""
    return f"{VERSION}.identity.{token(node)}"


def release(node: str) -> str:
    """Where a node's agent reports that it has released a grant, until placement has booked it."""
    return f"{VERSION}.release.{token(node)}"


def ack(instance: str, of: str, node: str) -> str:
    """Where one node answers one leader's grants or syncs: the reply subject of its commands. of: grant, sync. `*` as
    node subscribes to the answers of all nodes."""
    return f"{VERSION}.ack.{token(instance)}.{of}.{node if node == '*' else token(node)}"


def is_no_inbox(reply: str) -> bool:
    """Whether a subject where an answer is wanted is one for other messages: of Kerf, but for `ack`, or of streams and
    buckets."""
    return reply.startswith(("kerf.", "$KV.", "$JS.", "$O.")) and not reply.startswith(f"{VERSION}.ack.")


def sender(subject: str) -> str:
    """The node that a subject ends with. It is the sender's claim where all agents share one NATS user: without an
    operator (docs/decisions, 0186)."""
    return untoken(subject.rsplit(".", 1)[1])


def check_sender(subject: str, *nodes: str) -> None:
    """Raises ContractError if an agent names another node than that of the subject, to which its NATS user is bound."""
    if any(node != sender(subject) for node in nodes):
        raise ContractError(f"{subject} speaks of {', '.join(nodes)}; an agent speaks of its own node alone")


def spans(service: str) -> str:
    return f"{VERSION}.spans.{token(service)}"


def candidate(key: str, holder: str) -> str:
    """Where a candidate for the leader lease `key` answers for as long as its process lives."""
    return f"{VERSION}.alive.{key}.{token(holder)}"
