"""The servers that this node runs for containers of other nodes (strategy `remote`). Pure.

A serving grant whose pod is bound makes a lease by itself, through the same device gate as a container of this node.
What may start is asked at a start alone: a server that an earlier agent started is looked for first, and stays.
Its server is started again if it ends by itself. The lease ends, and with it the grant, only when the server has been
seen to end after a release was ordered, when the GPU is gone, or when the node has rebooted.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from services.node_agent import gone_gpus, start_checks
from services.node_agent import messages as m
from services.node_agent.gpu_state.node_gpus import NodeGpus
from services.node_agent.grant_store import GrantStore, Key
from services.node_agent.state import KnownGrant, Lease
from shared.contracts.events import SliceImpaired

AGAIN_S = 2.0
"""How often a server that cannot be started, or ended, is tried again."""
GIVE_UP_S = 60.0
"""After so long without a server the grant is given back for good, so that its pod gets a GPU elsewhere."""
REBOOTED = "the node of its GPU rebooted"

Release = Callable[[str, str, str, float], list[m.Command]]
"""Publishes the release of a grant of which nothing runs: grant id, pod's UID, reason, now."""


class _Server(msgspec.Struct):
    state: str = ""
    """looking, starting, up, ending; empty: to be started."""
    is_known: bool = False
    """Whether this process has started it, or has looked for it."""
    again_at: float = 0.0
    failing_since: float = -1.0
    """Since when it could not be started; negative: it could."""
    why: str = ""
    """Why the grant is given back, if this node itself does that."""
    refusal: str = ""
    """The last one that was reported."""


class Servers:
    def __init__(self, node: str, store: GrantStore, gpus: NodeGpus, release: Release) -> None:
        self._node, self._store, self._gpus, self._release = node, store, gpus, release
        self._servers: dict[Key, _Server] = {}
        """By container, of servers that this process has ordered."""

    def handle(
        self, event: m.ServerStarted | m.ServerFound | m.ServerEnded | m.ServerStillRuns, now: float
    ) -> list[m.Command]:
        """What became of a server."""
        known = self._store.get(event.grant_id)
        server = self._servers.get((event.uid, event.container))
        if known is None or server is None:
            return []
        match event:
            case m.ServerStarted():
                return self._started(known, server, event, now)
            case m.ServerFound():
                return self._found(server, event)
            case m.ServerEnded():
                return self._ended(known, server, event, now)
        if server.state == "ending":  # its GPU stays taken, and the order is repeated
            server.state, server.again_at = "", now + AGAIN_S
        return []

    def due(self, now: float) -> list[m.Command]:
        """Starts and ends what is to be started and ended now."""
        out: list[m.Command] = []
        for known in self._store.known:
            if known.is_serving and not known.unbound:
                for container in known.grant.grant.containers:
                    out += self._one(known, container, now)
        for key in [key for key in self._servers if self._store.find_by_pod(key[0]) is None]:
            del self._servers[key]
        return out

    def _one(self, known: KnownGrant, container: str, now: float) -> list[m.Command]:
        key = (known.grant.uid, container)
        server = self._servers.setdefault(key, _Server())
        lease = self._store.lease(*key)
        if known.releasing:
            return self._end(known, container, server, now) if lease is not None else []
        if self._gpu_is_gone(known, container):
            return self._give_back(known, container, server, now, "its GPU is no longer on its node")
        if server.state in ("looking", "starting", "up") or now < server.again_at:
            return []
        after = Lease(uid=known.grant.uid, container=container, grant_id=known.grant_id, boot_id=self._gpus.boot_id)
        if lease == after and not server.is_known:  # of an earlier agent, and its server may run
            server.state = "looking"
            return [m.FindServer(known.grant.uid, container, known.grant_id, known.peer)]
        asked = m.StartRequested(known.grant.uid, container)
        why = start_checks.refusal(
            asked, known, self._store, self._gpus.inventory, self._gpus.by_uuid, self._node, serving=True
        )
        if why is not None:
            return self._failed(known, container, server, now, why)
        share = known.grant.grant.containers[container]
        server.state, server.is_known = "starting", True
        serve = m.Serve(known.grant.uid, container, known.grant_id, share, known.peer)
        if lease == after:
            return [serve]
        self._store.add_lease(after)
        event = start_checks.enforced_event(known, after, share, self._gpus.inventory, self._node)
        return [m.Save(), serve, event]

    def _started(self, known: KnownGrant, server: _Server, event: m.ServerStarted, now: float) -> list[m.Command]:
        if server.state != "starting":
            return []
        if event.reason:
            server.state = ""
            return self._failed(known, event.container, server, now, ("server-not-started", event.reason))
        server.state, server.failing_since, server.refusal = "up", -1.0, ""
        return []

    @staticmethod
    def _found(server: _Server, event: m.ServerFound) -> list[m.Command]:
        if server.state == "looking":
            server.state, server.is_known = "up" if event.runs else "", True
        return []

    def _ended(self, known: KnownGrant, server: _Server, event: m.ServerEnded, now: float) -> list[m.Command]:
        if event.by_itself:
            # Its slice stands, and it is started again. While its end is ordered, the answer to that order counts.
            if server.state != "up":
                return []
            server.state, server.again_at = "", now + AGAIN_S
            return [self._impaired(known, event, now)]
        if not known.releasing or self._store.end_lease(event.uid, event.container) is None:
            return []
        if self._store.is_running(known.grant_id):
            return [m.Save()]
        return [m.Save(), *self._release(known.grant_id, known.grant.uid, server.why or "its server has ended", now)]

    def end_boot(self, grant_ids: set[str], now: float) -> list[m.Command]:
        """The servers of the last boot are gone, and with them what their clients had on the GPU: those grants are
        given back for good."""
        self._servers.clear()
        out: list[m.Command] = []
        for grant_id in sorted(grant_ids):
            known = self._store.get(grant_id)
            if known is not None and known.is_serving:
                out += self._release(grant_id, known.grant.uid, REBOOTED, now)
        return out

    def _end(self, known: KnownGrant, container: str, server: _Server, now: float) -> list[m.Command]:
        if server.state == "ending" or now < server.again_at:
            return []
        server.state = "ending"
        return [m.EndServer(known.grant.uid, container, known.grant_id)]

    def _failed(
        self, known: KnownGrant, container: str, server: _Server, now: float, why: tuple[str, str]
    ) -> list[m.Command]:
        code, sentence = why
        server.again_at = now + AGAIN_S
        if server.failing_since < 0:
            server.failing_since = now
        if code in gone_gpus.REASONS or now - server.failing_since >= GIVE_UP_S:
            return self._give_back(known, container, server, now, f"its server cannot be started: {sentence}")
        if server.refusal == code:
            return []
        server.refusal = code
        return [m.RefuseStart(known.grant.uid, container, code, sentence)]

    def _give_back(
        self, known: KnownGrant, container: str, server: _Server, now: float, reason: str
    ) -> list[m.Command]:
        server.why = reason
        if self._store.is_running(known.grant_id):
            self._store.mark_releasing(known)
            server.again_at = now
            return [m.Save(), *self._end(known, container, server, now)]
        return [m.Save(), *self._release(known.grant_id, known.grant.uid, reason, now)]

    def _gpu_is_gone(self, known: KnownGrant, container: str) -> bool:
        """Not before the driver reports GPUs: after a boot it may load late."""
        gpus = self._gpus.by_uuid
        return bool(gpus) and any(part.uuid not in gpus for part in known.grant.grant.containers[container].gpus)

    def _impaired(self, known: KnownGrant, event: m.ServerEnded, now: float) -> m.Publish:
        (gpu, *_) = known.grant.grant.containers[event.container].gpus
        sentence = (
            f"the server of container {event.container} on node {self._node} ended by itself"
            f": {event.by_itself}; it is started again, and what the container had on the "
            "GPU is lost: its programs must start again"
        )
        impaired = SliceImpaired(
            node=self._node,
            uid=event.uid,
            namespace=known.grant.namespace,
            name=known.grant.name,
            container=event.container,
            gpu=gpu.uuid,
            reason="server-ended",
            sentence=sentence,
        )
        identity = f"impaired-{event.grant_id}-{event.container}-{self._gpus.boot_id}-{round(now * 1000)}"
        return m.Publish(impaired, identity, known.grant.namespace, known.grant.grant.traceparent)
