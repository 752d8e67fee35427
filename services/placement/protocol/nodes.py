"""Placement's side of R6: which nodes have synced under this term, and which grants and releases they must answer."""

from __future__ import annotations

from collections.abc import Callable, KeysView

import msgspec

from services.placement import messages as m
from services.placement.protocol import labels
from services.placement.protocol.gpu_problems import GpuProblems
from services.placement.protocol.strangers import stranger
from shared.book.book import Book
from shared.book.states import UNANSWERED, GrantState, PodState
from shared.contracts.log import Decision
from shared.contracts.node_commands import (
    LiveSlice,
    NodeGrant,
    NodeRelease,
    NodeSync,
    NodeSyncAnswer,
    RemoteEnd,
)
from shared.model.gpu import NO_ERA, Era, Inventory
from shared.model.grant import serving_node
from shared.model.turn_terms import rehearsed

RESEND_S = 3.0
SYNCS_AT_ONCE = 200
"""Syncs of one input: those of thousands of nodes take longer than a lease. The others follow, ten times a second."""
LOOK_S = 0.5
"""How often the grants and nodes with something open are looked through for what is due."""
CHECK_TERM_S = 1.0
"""How often the log is read for its newest term because nodes mention another."""
SILENT_S = 10.0
"""After so long without a heartbeat a node gets no new slices. Running slices stay."""


class Nodes:
    def __init__(self, book: Book) -> None:
        self.book = book
        self.term = 0
        self.open = False
        """Whether nodes may be synced: only after every pending pod has been touched or re-adopted. Otherwise a pod
        that is bound, started and lost between a sync and its touch would be unknown to all (tests/model shows it)."""
        self.takes_turns: Callable[[PodState], bool] = lambda _: False
        """Whether a pod does, by its annotation or its queue."""
        self.before_sync: Callable[[str], None] = lambda _: None
        """Told the name of a node that is about to be synced."""
        self._eras: dict[str, Era] = {}
        self._problems = GpuProblems(book)
        self._synced: dict[str, int] = {}
        self._sync_sent: dict[str, float] = {}
        self._number = 0
        """The number of the newest order to a node; see NodeGrant.number."""
        self.first_number: dict[str, int] = {}
        """By node that must be synced: the number of the first sync since then. Answers to earlier ones are
        outdated."""
        self._given_back: dict[str, set[str]] = {}
        """By such a node: the grants that it has released since then. Releases and answers come by two ways, and an
        answer from before a release may come after it."""
        self._sync_number: dict[str, int] = {}
        """By node: the number of the newest sync."""
        self._addresses: dict[str, str] = {}
        """Where the clients of GPUs of other nodes were told to find them, by grant id."""
        self._named_unbound: set[str] = set()
        """Grants that a node has received in a sync before their pods were seen bound."""
        self._term_checked_at = self._looked_at = float("-inf")
        self.heartbeats: dict[str, float] = {}
        """By node: when its agent was heard for the last time."""
        self.labels = labels.NodeLabels(book)
        self._unanswered: dict[tuple[str, str], tuple[m.Command, float]] = {}
        """Grants and releases by grant id and node. Each grant has at most one of them open on a node, the newer."""
        self._void: set[str] = set()
        """Grants of living pods whose client node is gone or has given them back: the serving node has to, too."""
        self.barred: dict[str, str] = {}  # Why nothing of a node is given although its agent has answered.
        self.resizing: set[str] = set()
        """Nodes whose agents resize running slices."""

    @property
    def synced_count(self) -> int:
        return sum(1 for term in self._synced.values() if term == self.term)

    @property
    def unanswered_syncs(self) -> KeysView[str]:
        return self._sync_sent.keys()

    def is_synced(self, node: str) -> bool:
        return self._synced.get(node) == self.term

    def inventory(self, inventory: Inventory, now: float) -> list[m.Command]:
        node = inventory.node
        self.heartbeat((node,), now)  # an agent that was silent may say its inventory before its first heartbeat
        self.labels.note(node, now)
        self.book.put_inventory(inventory)
        out = self._problems.tell(inventory)
        if self._eras.get(node) != inventory.era:
            # Another boot or checkpoint: what it had is gone, and it must confirm that before it gets anything new.
            self._eras[node] = inventory.era
            self._unsync(node)
            self.book.set_agent_trouble(node, UNANSWERED)
            out += self._sync(node, now)
        return out

    def lost(self, node: str) -> None:
        self._eras.pop(node, None)
        self._unsync(node)
        self.book.retire_agent(node)

    def _unsync(self, node: str) -> None:
        """From now on only the answer to a later sync counts."""
        self._synced.pop(node, None)
        self.first_number.pop(node, None)
        self._given_back.pop(node, None)

    def heartbeat(self, nodes: tuple[str, ...], now: float) -> bool:
        """Notes heartbeats; True if a node that was silent may be used again."""
        back = False
        for node in nodes:
            silent = now - self.heartbeats.get(node, now) >= SILENT_S
            self.heartbeats[node] = now
            if silent and self.is_synced(node):
                self.book.set_agent_trouble(node, self.barred.get(node, ""))
                back = True
        return back

    def changed(self, name: str, now: float) -> list[m.Command]:
        """The Node object was created, changed or deleted."""
        node = self.book.nodes.get(name)
        if node is None or node.object is None:
            self._unsync(name)  # should it come back, its agent is asked again what runs there
            return []
        self.labels.note(name, now)
        if node.inventory is None or self.is_synced(name):
            return []
        return self._sync(name, now)

    def sync_all(self, now: float) -> list[m.Command]:
        self.first_number.clear()
        self._given_back.clear()
        names = [name for name, node in self.book.nodes.items() if node.inventory is not None]
        if self.open:
            self._sync_sent |= dict.fromkeys(names[SYNCS_AT_ONCE:], float("-inf"))
        return [command for name in names[:SYNCS_AT_ONCE] for command in self._sync(name, now)]

    def _sync(self, node: str, now: float) -> list[m.Command]:
        if not self.open or self.book.nodes[node].object is None:
            # While a node's object is gone its grants are freed; what its agent says meanwhile does not hold
            # afterwards.
            return []
        self.before_sync(node)
        self._sync_sent[node] = now
        number = self._next_number()
        self.first_number.setdefault(node, number)
        self._sync_number[node] = number
        state = self.book.nodes[node]
        known = [held for held in (*state.grants.values(), *state.clients.values()) if held.phase != "reserved"]
        self._named_unbound.update(held.grant_id for held in known if held.phase == "holding")
        return [
            m.SendSync(
                NodeSync(
                    term=self.term,
                    node=node,
                    grants=tuple(self.node_grant(held, node) for held in known),
                    number=number,
                )
            )
        ]

    def _next_number(self) -> int:
        self._number += 1
        return self._number

    def _answers_now(self, answer: NodeSyncAnswer) -> bool:
        """Whether it answers a sync of this term and boot, sent since the node had to be synced. An agent of an earlier
        version does not repeat the number."""
        node = self.book.nodes.get(answer.node)
        if (
            answer.term != self.term
            or self.is_synced(answer.node)
            or answer.node not in self.first_number
            or node is None
            or node.object is None
        ):
            return False
        return answer.boot_id == self._eras.get(answer.node, NO_ERA).boot_id and (
            not answer.number or answer.number >= self.first_number[answer.node]
        )

    def ahead(self, answer: NodeSyncAnswer, now: float) -> list[m.Command]:
        """A node refuses this term because it follows a higher one. The log says whether there is one."""
        trouble = f"its agent follows term {answer.term}, and the newest in the log is {self.term}"
        if answer.node in self._eras and answer.node in self.book.nodes:
            self._unsync(answer.node)
            self._sync_sent.setdefault(answer.node, now)
            self.book.set_agent_trouble(answer.node, trouble)
        if now - self._term_checked_at < CHECK_TERM_S:
            return []
        self._term_checked_at = now
        return [m.CheckTerm(f"node {answer.node}: {trouble}")]

    def synced(self, answer: NodeSyncAnswer, now: float) -> list[str] | None:
        """Books slices that run there and are unknown here; returns grants of this node that it had released before.
        None, and no change, if it does not answer the present sync."""
        if not self._answers_now(answer):
            return None
        self._synced[answer.node] = self.term
        self.heartbeats[answer.node] = now
        (self.resizing.add if answer.resizes else self.resizing.discard)(answer.node)
        self._sync_sent.pop(answer.node, None)
        unknown: dict[str, list[LiveSlice]] = {}
        ended = self._given_back.pop(answer.node, set())
        for slice_ in answer.live:
            # What a container here has of another node's GPU is for that node to tell, and takes nothing of this one.
            if slice_.grant_id not in self.book.grants and slice_.grant_id not in ended and not slice_.is_client:
                unknown.setdefault(slice_.grant_id, []).append(slice_)
        for slices in unknown.values():
            self.book.book_leaving(stranger(slices, answer.node))
        self.book.set_agent_trouble(answer.node, self.barred.get(answer.node, ""))
        return [
            grant_id
            for grant_id in answer.tombstones
            if (held := self.book.grants.get(grant_id)) is not None and answer.node in held.nodes
        ]

    def gave_back(self, node: str, grant_id: str) -> None:
        """The node has released a grant."""
        if node in self.first_number and not self.is_synced(node):
            self._given_back.setdefault(node, set()).add(grant_id)

    def granted(self, held: GrantState, now: float) -> list[m.Command]:
        self._named_unbound.discard(held.grant_id)
        self._next_number()
        return [self._order(held.grant_id, m.SendGrant(node, self.node_grant(held, node)), now) for node in held.nodes]

    def leaving(self, held: GrantState, now: float) -> list[m.Command]:
        self._named_unbound.discard(held.grant_id)
        orders = [self.release_at(node, held, now) for node in held.nodes]
        return orders if self.term else []

    def release_at(self, node: str, held: GrantState, now: float) -> m.Command:
        release = NodeRelease(term=self.term, uid=held.uid, grant_id=held.grant_id)
        return self._order(held.grant_id, m.SendRelease(node, release), now)

    def void_by_client(self, held: GrantState, now: float) -> list[m.Command]:
        """Its pod's node will never hand it over, or is gone: the node of its GPU has to release it."""
        if held.grant_id in self._void:
            return []
        self._void.add(held.grant_id)
        return [self.release_at(held.node, held, now)]

    def readdress(self, held: GrantState, now: float) -> list[m.Command]:
        """Tells the client again where its GPU is served, if that has changed."""
        address = self._address_of(held.node)
        if not address or self._addresses.get(held.grant_id, address) == address:
            return []
        self._next_number()
        return [self._order(held.grant_id, m.SendGrant(held.client, self.node_grant(held, held.client)), now)]

    def _order(self, grant_id: str, command: m.SendGrant | m.SendRelease, now: float) -> m.Command:
        self._unanswered[grant_id, command.node] = (command, now)
        return command

    def _address_of(self, node: str) -> str:
        known = self.book.nodes.get(node)
        return "" if known is None or known.inventory is None else known.inventory.remote.address

    def voided(self, decision: Decision, now: float) -> list[m.Command]:
        """A hold is void: its Binding can never succeed. A node that has received its grant is told to forget it."""
        if decision.grant is None or decision.grant.grant_id not in self._named_unbound:
            return []
        grant_id = decision.grant.grant_id
        self._named_unbound.discard(grant_id)
        release = NodeRelease(term=self.term, uid=decision.uid, grant_id=grant_id)
        nodes = {decision.node, serving_node(decision.grant) or decision.node}
        return [self._order(grant_id, m.SendRelease(node, release), now) for node in sorted(nodes)]

    def open_number(self, grant_id: str, node: str) -> int:
        """The number of the open order about a grant; 0: there is none."""
        command = self._unanswered.get((grant_id, node), (None, 0.0))[0]
        return command.grant.number if isinstance(command, m.SendGrant) else 0

    def acknowledged(self, grant_id: str, node: str) -> None:
        """The node has acknowledged the grant, or its release has been booked."""
        self._unanswered.pop((grant_id, node), None)

    def tick(self, now: float) -> list[m.Command]:
        out = self._due_syncs(now)
        if now - self._looked_at < LOOK_S:
            return out
        self._looked_at = now
        for key, (command, at) in list(self._unanswered.items()):
            if now - at < RESEND_S:
                continue
            if self._is_void_at(*key):
                del self._unanswered[key]
                continue
            said = self._as_of_now(command)
            self._unanswered[key] = (said, now)
            out.append(said)
        for held in self.book.leaving.values():
            if (held.grant_id, held.node) not in self._unanswered:
                out += self.leaving(held, now)
        for held in [self.book.grants[one] for one in self._void if one in self.book.grants]:
            if held.phase != "leaving" and (held.grant_id, held.node) not in self._unanswered:
                out.append(self.release_at(held.node, held, now))
        self._void &= self.book.remote.keys()
        self._addresses = {id_: at for id_, at in self._addresses.items() if id_ in self.book.remote}
        self._note_silent(now)
        return out

    def _due_syncs(self, now: float) -> list[m.Command]:
        out: list[m.Command] = []
        due = sorted((at, node) for node, at in self._sync_sent.items() if now - at >= RESEND_S)
        for _, node in due[:SYNCS_AT_ONCE]:
            state = self.book.nodes.get(node)
            if state is not None and state.inventory is not None and state.object is not None:
                out += self._sync(node, now)
            else:
                del self._sync_sent[node]
        return out

    def _note_silent(self, now: float) -> None:
        self.heartbeats = {node: at for node, at in self.heartbeats.items() if node in self.book.nodes}
        self._sync_number = {node: at for node, at in self._sync_number.items() if node in self.book.nodes}
        for node, at in self.heartbeats.items():
            if now - at >= SILENT_S and self.is_synced(node):
                self.book.set_agent_trouble(node, f"its agent has been silent for more than {SILENT_S:g} s")

    def _is_void_at(self, grant_id: str, node: str) -> bool:
        """Whether an order has no addressee: the node is gone, and no capacity waits for its answer."""
        held, known = self.book.grants.get(grant_id), self.book.nodes.get(node)
        return (held is None or held.node != node) and (known is None or known.object is None)

    def _as_of_now(self, command: m.Command) -> m.Command:
        """An order that is repeated. A node that has seen a renewed term refuses orders under the earlier one, and does
        nothing by an order that a later sync has overtaken: that was sent while this one was unanswered."""
        match command:
            case m.SendGrant(node, grant) if (grant.term, grant.number) < (self.term, self._sync_number.get(node, 0)):
                held = self.book.grants.get(grant.grant.grant_id)
                if held is None or node not in held.nodes:
                    return m.SendGrant(node, msgspec.structs.replace(grant, term=self.term))
                self._next_number()
                return m.SendGrant(node, self.node_grant(held, node))
            case m.SendRelease(node, release) if release.term != self.term:
                return m.SendRelease(node, msgspec.structs.replace(release, term=self.term))
        return command

    def node_grant(self, held: GrantState, node: str) -> NodeGrant:
        """What a node is told of a grant, under the number of the newest order. For a suspended pod: what it has given
        up, whatever its annotation says by now; otherwise what it has to give up by its annotation."""
        state = self.book.pods.get(held.uid)
        wanted = None if state is None else state.suspension
        remote = None
        if node == held.client:
            self._addresses[held.grant_id] = self._address_of(held.node)
            remote = RemoteEnd(role="client", peer=held.node, address=self._address_of(held.node))
        elif held.client:
            remote = RemoteEnd(role="serving", peer=held.client)
        return NodeGrant(
            term=self.term,
            uid=held.uid,
            namespace=held.namespace,
            name=held.name,
            grant=held.given,
            suspension=held.suspension or wanted,
            number=self._number,
            unbound=held.phase == "holding",
            remote=remote,
            shrink=held.shrink,
            turns=None if state is None else rehearsed(state.life.terms, takes_turns=self.takes_turns(state)),
        )
