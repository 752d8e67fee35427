"""Which subject carries which message, which service publishes it and how long it is kept.

`python -m shared.contracts.generate` generates the AsyncAPI document from here; permissions of NATS users follow it.
Each name in braces in an address is one token, written by `subjects.token`.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from shared.contracts import commands as c
from shared.contracts import events as e
from shared.contracts import facts as f
from shared.contracts import log as lg
from shared.contracts import metrics_queries as mq
from shared.contracts import node_commands as n
from shared.contracts import preemption as pre
from shared.contracts import queries as q
from shared.contracts import samples as sm
from shared.contracts import subjects as s
from shared.contracts.envelope import Envelope
from shared.contracts.identity import IdentityAnswer, IdentityRequest
from shared.contracts.policy import QueuePolicy
from shared.model.gpu import Inventory

Kind = Literal["event", "command", "query", "feed", "log", "sample", "bucket"]
"""event: public, CloudEvents. command, query: request and reply. feed: numbered batches. log: placement's own. sample:
sent and forgotten. bucket: a key of a JetStream KV bucket."""

_NONE = "none"


class Channel(msgspec.Struct, frozen=True, kw_only=True):
    """One subject (or family of subjects) and what goes over it."""

    name: str
    address: str
    kind: Kind
    message: Any
    """The message's type; of events the type of `data` in the envelope."""
    reply: Any = None
    reply_address: str = ""
    """Where answers go when that is no inbox of the one request."""
    publisher: str
    receivers: str
    retention: str = _NONE
    description: str

    @property
    def parameters(self) -> tuple[str, ...]:
        """The names in braces."""
        return parameters_of(self.address)


def parameters_of(address: str) -> tuple[str, ...]:
    return tuple(part[1:-1] for part in address.split(".") if part.startswith("{"))


PARAMETERS = {
    "namespace": "A Kubernetes namespace as one token.",
    "node": "A node's name as one token: every byte but letters, digits and dashes is written _hh.",
    "epoch": "The watcher process that numbers the batches; another one after each start.",
    "instance": "The placement process that gave the order, as one token.",
    "service": "The name of a service.",
    "owner": "The uid of the owner whose pods were evicted.",
    "key": "The leader lease, such as placement.",
}

_EVENT_RETENTION = "KERF_EVENTS: file, 7 days, 2 GiB, duplicates dropped by Nats-Msg-Id within 2 minutes"
_LOG_RETENTION = "KERF_LOG: file, synced at every write, 24 hours, neither purged nor trimmed"


def _event(kind: type[e.Event], scope: Literal["namespace", "node"], publisher: str) -> Channel:
    """Docstrings of events are their descriptions."""
    tail = "ns.{namespace}" if scope == "namespace" else "node.{node}"
    return Channel(
        name=f"{kind.ENTITY}.{kind.VERB}",
        address=f"{s.VERSION}.event.{kind.ENTITY}.{kind.VERB}.{tail}",
        kind="event",
        message=kind,
        publisher=publisher,
        receivers="anyone",
        retention=_EVENT_RETENTION,
        description=(kind.__doc__ or "").strip(),
    )


def _node(
    verb: str,
    message: type,
    reply: type | None,
    description: str,
    *,
    reply_address: str = "",
    publisher: str = "placement",
) -> Channel:
    return Channel(
        name=f"node.{verb}",
        address=f"{s.VERSION}.cmd.node.{{node}}.{verb}",
        kind="command",
        message=message,
        reply=reply,
        reply_address=reply_address,
        publisher=publisher,
        receivers="node_agent",
        description=description,
    )


EVENTS: tuple[Channel, ...] = (
    _event(e.PlacementDecided, "namespace", "placement"),
    _event(e.PlacementRejected, "namespace", "placement"),
    _event(e.PodBound, "namespace", "placement"),
    _event(e.PodSuspended, "namespace", "placement"),
    _event(e.PodResumed, "namespace", "placement"),
    _event(e.GrantEnded, "namespace", "placement"),
    _event(e.TermTaken, "node", "placement"),
    _event(e.CapacityWanted, "node", "placement"),
    _event(e.NodeInventoried, "node", "node_agent"),
    _event(e.SliceEnforced, "namespace", "node_agent"),
    _event(e.SliceImpaired, "namespace", "node_agent"),
    _event(e.SliceReleased, "namespace", "node_agent"),
    _event(e.GpuStateChanged, "node", "node_agent"),
    _event(e.GangPlaced, "namespace", "placement"),
    _event(e.GangWaiting, "namespace", "placement"),
    _event(e.PolicyRead, "namespace", "placement"),
    _event(e.PreemptionProposed, "namespace", "preemptor"),
    _event(e.PreemptionReserved, "namespace", "placement"),
    _event(e.PreemptionExecuted, "namespace", "placement"),
    _event(e.PreemptionAbandoned, "namespace", "placement"),
)

LOG: tuple[Channel, ...] = (
    Channel(
        name="log.term",
        address=s.LOG_TERM,
        kind="log",
        message=lg.TermRecord,
        publisher="placement",
        receivers="placement",
        retention=_LOG_RETENTION,
        description="Begins a leader session. The sequence of this record is the term, and the fence of every later "
        "append.",
    ),
    Channel(
        name="log.ready",
        address=s.LOG_READY,
        kind="log",
        message=lg.ReadyRecord,
        publisher="placement",
        receivers="placement",
        retention=_LOG_RETENTION,
        description="From here on the log is complete under its term.",
    ),
    Channel(
        name="log.decisions",
        address=s.LOG_DECISIONS,
        kind="log",
        message=lg.DecisionBatch,
        publisher="placement",
        receivers="placement",
        retention=_LOG_RETENTION,
        description="Decisions, acknowledged before any of their Bindings is sent; and plans of preemption that are "
        "reserved, or over.",
    ),
)

FEED: tuple[Channel, ...] = (
    Channel(
        name="feed",
        address=f"{s.VERSION}.feed.{{epoch}}",
        kind="feed",
        message=f.FeedBatch,
        publisher="watcher",
        receivers="placement, preemptor",
        description="Kubernetes as facts in numbered batches, a heartbeat each second. A gap means: take a new "
        "snapshot.",
    ),
    Channel(
        name="query.snapshot",
        address=s.QUERY_SNAPSHOT,
        kind="query",
        message=f.SnapshotRequest,
        reply=f.SnapshotPage,
        publisher="placement, preemptor",
        receivers="watcher",
        description="Begins a snapshot; its first page names the epoch and the feed number from which to go on.",
    ),
    Channel(
        name="query.snapshot.page",
        address=f"{s.QUERY_SNAPSHOT}.{{epoch}}",
        kind="query",
        message=f.SnapshotRequest,
        reply=f.SnapshotPage,
        publisher="placement, preemptor",
        receivers="watcher",
        description="A later page, from the watcher that began the snapshot.",
    ),
    Channel(
        name="query.reach",
        address=s.QUERY_REACH,
        kind="query",
        message=f.ReachQuery,
        reply=f.ReachAnswer,
        publisher="watcher, placement, preemptor",
        receivers="watcher",
        description="Which watcher reaches the API server. One that is cut off leaves the work to it, and readers take "
        "their snapshots from it.",
    ),
)

COMMANDS: tuple[Channel, ...] = (
    Channel(
        name="identity",
        address=f"{s.VERSION}.identity.{{node}}",
        kind="command",
        message=IdentityRequest,
        reply=IdentityAnswer,
        publisher="node_agent",
        receivers="operator",
        description="Signs the certificate of the agent's node, for GPUs over the network.",
    ),
    Channel(
        name="cmd.bind",
        address=s.CMD_BIND,
        kind="command",
        message=c.BindBatch,
        reply=c.Answers,
        publisher="placement",
        receivers="watcher (queue group watcher)",
        description="Bindings with uid and resourceVersion as preconditions. The answer names those that are not done.",
    ),
    Channel(
        name="cmd.patch",
        address=s.CMD_PATCH,
        kind="command",
        message=c.PatchBatch,
        reply=c.Answers,
        publisher="placement",
        receivers="watcher (queue group watcher)",
        description="Touches, conditions, Events, node labels and deletions.",
    ),
    Channel(
        name="cmd.evict",
        address=s.CMD_EVICT,
        kind="command",
        message=c.EvictBatch,
        reply=c.Answers,
        publisher="placement, preemptor, node_agent, cli",
        receivers="watcher (queue group watcher)",
        description="Evictions through the Eviction API, which honours disruption budgets.",
    ),
    Channel(
        name="cmd.resize",
        address=s.CMD_RESIZE,
        kind="command",
        message=c.ResizePod,
        reply=c.Answers,
        publisher="preemptor, cli",
        receivers="watcher (queue group watcher)",
        description="What the slices of a running pod shall have. The answer says whether it was annotated.",
    ),
    Channel(
        name="cmd.reserve",
        address=s.CMD_RESERVE,
        kind="command",
        message=pre.Reserve,
        reply=pre.Reserved,
        publisher="preemptor",
        receivers="placement (the leader)",
        description="A plan of preemption: placement keeps its places, or says why not. Asked again it answers the "
        "same.",
    ),
    Channel(
        name="cmd.abandon",
        address=s.CMD_ABANDON,
        kind="command",
        message=pre.Abandon,
        reply=pre.Reserved,
        publisher="preemptor",
        receivers="placement (the leader)",
        description="A plan is cancelled; its reservation is released.",
    ),
    _node(
        "grant",
        n.NodeGrant,
        n.Accepted,
        "A grant that is true now: its pod was seen bound to this node.",
        reply_address=f"{s.VERSION}.ack.{{instance}}.grant.{{node}}",
    ),
    _node(
        "release",
        n.NodeRelease,
        n.Accepted,
        "The pod is gone: never hand this grant over again, and say that it is released when nothing of it runs.",
    ),
    _node(
        "sync",
        n.NodeSync,
        n.NodeSyncAnswer,
        "All grants of this node, once a term. The agent refuses older terms, and hands over no grant of an "
        "earlier term that is not named.",
        reply_address=f"{s.VERSION}.ack.{{instance}}.sync.{{node}}",
    ),
    _node(
        "cordon",
        n.NodeCordon,
        n.NodeCordonAnswer,
        "A GPU, or the whole node, takes no new slices, or takes them again; the answer names the pods on it.",
        publisher="cli",
    ),
    _node(
        "hold",
        n.NodeHold,
        n.NodeHoldAnswer,
        "Members of a gang are brought to a stop together, and held for a bounded time, before they are checkpointed.",
    ),
    _node("ack", n.ReleasesSeen, None, "These releases are booked; the agent stops repeating them."),
    Channel(
        name="sim.apply",
        address=s.SIM_APPLY,
        kind="command",
        message=c.SimApply,
        reply=c.SimAnswer,
        publisher="cli",
        receivers="watcher (simulated cluster)",
        description="Objects as in manifests, into the simulated cluster.",
    ),
    Channel(
        name="sim.delete",
        address=s.SIM_DELETE,
        kind="command",
        message=c.SimDelete,
        reply=c.SimAnswer,
        publisher="cli",
        receivers="watcher (simulated cluster)",
        description="One object out of the simulated cluster.",
    ),
)

QUERIES: tuple[Channel, ...] = tuple(
    Channel(
        name=f"query.{query.name}",
        address=query.subject,
        kind="query",
        message=query.question,
        reply=query.answer,
        publisher=query.publisher,
        receivers=query.receivers,
        description=query.description,
    )
    for query in q.QUERIES
)

SAMPLES: tuple[Channel, ...] = (
    Channel(
        name="beat",
        address=f"{s.VERSION}.beat.{{node}}",
        kind="sample",
        message=n.Beat,
        publisher="node_agent",
        receivers="placement",
        description="A sign of life every 2 seconds; under the token hollow one of a process that simulates many "
        "nodes.",
    ),
    Channel(
        name="release",
        address=f"{s.VERSION}.release.{{node}}",
        kind="sample",
        message=n.Released,
        publisher="node_agent",
        receivers="placement",
        description="The node has released a grant for good; said again until placement has booked it. Placement "
        "takes it for grants of the node in its subject alone.",
    ),
    Channel(
        name="usage",
        address=f"{s.VERSION}.usage.{{node}}",
        kind="sample",
        message=sm.UsageSample,
        publisher="node_agent",
        receivers="anyone",
        description="What is used on a node's GPUs, by slice, every few seconds.",
    ),
    Channel(
        name="spans",
        address=f"{s.VERSION}.spans.{{service}}",
        kind="sample",
        message=mq.SpanBatch,
        publisher="every service",
        receivers="metrics",
        description="Finished spans of sampled pods.",
    ),
)

BUCKETS: tuple[Channel, ...] = (
    Channel(
        name="bucket.nodes",
        address=f"$KV.{s.KV_NODES}.{{node}}",
        kind="bucket",
        message=Inventory,
        publisher="node_agent",
        receivers="placement, metrics",
        retention="KV kerf_nodes: file, the last value, no TTL",
        description="What a node has: the last inventory of its agent.",
    ),
    Channel(
        name="bucket.leader",
        address=f"$KV.{s.KV_LEADER}.{{key}}",
        kind="bucket",
        message=str,
        publisher="placement",
        receivers="placement",
        retention="KV kerf_leader: the last value, TTL 5 seconds",
        description="The leader lease: the holder's instance name as plain text. A hint; the fence is the log's term.",
    ),
    Channel(
        name="bucket.mark",
        address=f"$KV.{s.KV_MARK}.{s.LOG_MARK}",
        kind="bucket",
        message=lg.LogMark,
        publisher="placement",
        receivers="placement",
        retention="KV kerf_mark: in the servers' memory, the last value",
        description="The newest record of the log that its leader may have acted on. A log without it, or a server "
        "without a mark, has lost records.",
    ),
    Channel(
        name="bucket.spared",
        address=f"$KV.{s.KV_SPARED}.{{owner}}",
        kind="bucket",
        message=pre.Spared,
        publisher="preemptor",
        receivers="preemptor",
        retention="KV kerf_spared: file, the last value, until no pod is protected by it",
        description="Owners whose pods were evicted, and are protected for a while.",
    ),
)

CHANNELS: tuple[Channel, ...] = (*EVENTS, *LOG, *FEED, *COMMANDS, *QUERIES, *SAMPLES, *BUCKETS)


DOCUMENTS: tuple[type[msgspec.Struct], ...] = (QueuePolicy,)
"""What people write. Unlike messages these have no unknown fields: a slip of the pen is refused."""


def message_types() -> tuple[type[msgspec.Struct], ...]:
    """Every type that travels by itself, by name: the messages and replies of all channels and the envelope."""
    found = {
        kind.__name__: kind
        for channel in CHANNELS
        for kind in (channel.message, channel.reply)
        if isinstance(kind, type) and issubclass(kind, msgspec.Struct)
    }
    found[Envelope.__name__] = Envelope
    return tuple(found[name] for name in sorted(found))
