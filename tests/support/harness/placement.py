"""A placement core in an environment that answers immediately, for tests that are not about the environment."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from services.placement import messages as m
from services.placement.config import Config
from services.placement.core import Core
from shared.contracts.commands import Bind, Patch
from shared.contracts.events import Event
from shared.contracts.facts import Fact
from shared.contracts.log import LogMark, ReadyRecord, TermRecord
from shared.contracts.node_commands import NodeSyncAnswer
from shared.model.grant import decode_grant
from shared.model.objects import Pod
from shared.model.suspension import goes_to_host
from tests.support import build
from tests.support.harness.invariants import check

T = TypeVar("T")
Respond = Callable[[m.Command], list[m.Input]]
"""What the surroundings answer to a command."""


class Placement:
    """Feeds inputs, answers appends, snapshots and syncs, and keeps all commands of the core."""

    def __init__(
        self,
        *objects: Any,
        term: int = 100,
        records: tuple[Any, ...] = (),
        mark: int | None = None,
        answer: bool = True,
        seen: int = 0,
        respond: Callable[[m.Command, Respond], list[m.Input]] | None = None,
        begins: bool = True,
        **config: Any,
    ) -> None:
        """`records`: an earlier leader's; its term record is put before them. `mark`: the last of them by default; of
        an empty log that of the session that created it. `respond`: answers commands; it gets the default answers as
        its second argument. `begins`: takes its term now; if not, the caller sends `beginning`."""
        self._config = Config(**config)
        self.core = Core("tester", self._config)
        self.commands: list[m.Command] = []
        self._respond = respond
        self.objects: tuple[Fact, ...] = build.put(*objects)
        self.sequence = term
        self.log_sequence_seen = seen
        self.answer = answer
        self.now = 0.0
        self.log: list[Any] = []
        records = with_term(records)
        newest = records[-1][0] if records else 1
        self.beginning = m.TermTaken(
            term=term, records=records, mark=mark_of(records, newest if mark is None else mark)
        )
        if begins:
            self.send(self.beginning)

    def send(self, event: m.Input) -> list[m.Command]:
        """One input and all commands that follow from it."""
        commands: list[m.Command] = []
        todo = [event]
        while todo:
            caused = self.core.handle(todo.pop(0), self.now)
            check(self.core, caused)
            for command in caused:
                commands.append(command)
                if self.answer:
                    todo += self._answers(command) if self._respond is None else self._respond(command, self._answers)
        self.commands += commands
        return commands

    def _answers(self, command: m.Command) -> list[m.Input]:
        match command:
            case m.Append():
                self.sequence += 1
                self.log.append((self.sequence, command.record))
                return [m.Appended(self.sequence)]
            case m.TakeSnapshot():
                return [*m.parts_of(self.objects, 2), m.SnapshotSeen(self.objects, self.log_sequence_seen)]
            case m.SendSync():
                boot = self.core.book.nodes[command.sync.node].inventory
                answer = NodeSyncAnswer(
                    node=command.sync.node,
                    boot_id=boot.boot_id if boot else "",
                    term=command.sync.term,
                    accepted=True,
                    number=command.sync.number,
                )
                return [m.SyncAnswered(answer)]
            case m.SendGrant():
                grant = command.grant
                whole = not goes_to_host(grant.suspension)
                return [m.GrantAcknowledged(command.node, grant.grant.grant_id, number=grant.number, whole=whole)]
            case m.SendHold() if command.hold.hold_s:
                return [m.HoldAnswered(command.plan_id, command.gang, command.attempt, command.hold.node, ok=True)]
            case m.Again():
                return [m.Tick()]
            case m.Later():
                self.now += command.seconds
                return [m.Wake()]
        return []

    def facts(self, *objects: Any) -> list[m.Command]:
        return self.send(m.FactsSeen(build.put(*objects)))

    def gone(self, *objects: Any, certain: bool = True) -> list[m.Command]:
        return self.send(m.FactsSeen(build.gone(*objects, certain=certain)))

    def succeed(self, *objects: Any) -> None:
        """Another leader begins, without a term; a snapshot will contain these objects."""
        self.sequence += 1
        self.core, self.objects = Core("tester", self._config), build.put(*objects)

    def next_term(self) -> m.TermTaken:
        """The term of a leader that succeeds the one whose log this is."""
        term, records = self.sequence, with_term(tuple(self.log))
        self.log.append((term, TermRecord(holder="tester")))
        return m.TermTaken(term=term, records=records, mark=mark_of(records, records[-1][0]))

    def nodes(self, *names: str, **inventory: Any) -> Placement:
        """Nodes with GPUs, synced."""
        for name in names:
            self.facts(build.node(name))
            self.send(m.InventorySeen(build.inventory(name, **inventory)))
        return self

    def tick(self, seconds: float = 0.1) -> list[m.Command]:
        self.now += seconds
        return self.send(m.Tick())

    def bind(self, pod: Pod) -> Pod:
        """The pod as seen after the Binding that the core last sent for it."""
        order = self.binds()[pod.metadata.uid]
        seen = build.bound(pod, order.node, decode_grant(order.grant) if order.grant else None)
        self.facts(seen)
        return seen

    def binds(self) -> dict[str, Bind]:
        return {b.uid: b for c in self.commands if isinstance(c, m.SendBinds) for b in c.binds}

    def patches(self) -> list[Patch]:
        return [p for c in self.commands if isinstance(c, m.SendPatches) for p in c.patches]

    def events(self, kind: type[Event]) -> list[Any]:
        return [c.event for c in self.commands if isinstance(c, m.Publish) and isinstance(c.event, kind)]

    def place(self, *pods: Pod) -> dict[str, str]:
        """Node by pod name, for pods that were placed."""
        self.facts(*pods)
        binds = self.binds()
        return {p.metadata.name: binds[p.metadata.uid].node for p in pods if p.metadata.uid in binds}


def mark_of(records: tuple[Any, ...], sequence: int) -> LogMark | None:
    """The mark of the record with this sequence, whether it is in the log or not; None for 0."""
    record = next((record for at, record in records if at == sequence), None)
    term = sequence if isinstance(record, TermRecord) else getattr(record, "term", 1 if records else 0)
    return LogMark(term=term, sequence=sequence, session=getattr(record, "session", "")) if sequence else None


def with_term(records: tuple[Any, ...]) -> tuple[Any, ...]:
    """The same records with the term record of each `ready` before them, if none is there."""
    if any(isinstance(record, TermRecord) for _, record in records):
        return records
    whole: list[Any] = []
    ready = {record.term for _, record in records if isinstance(record, ReadyRecord)}
    for sequence, record in records:
        if record.term in ready:
            ready.discard(record.term)
            whole.append((record.term, TermRecord(holder="before")))
        whole.append((sequence, record))
    return tuple(whole)


def only(commands: Iterable[m.Command], kind: type[T]) -> list[T]:
    return [c for c in commands if isinstance(c, kind)]
