"""The agent under any order of events, crashes and repeats: it never exceeds the GPU, and a release is final."""

from __future__ import annotations

from typing import Any

import msgspec
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from services.node_agent import messages as m
from services.node_agent.core import Agent
from services.node_agent.state import read, write
from shared.contracts.node_commands import Accepted, NodeSyncAnswer
from shared.model.suspension import Suspension
from tests.unit.services.node_agent.make import (
    GPU_MIB,
    NODE,
    ended,
    handed,
    inventory,
    node_grant,
    release,
    released,
    start,
    sync,
)

pods = st.sampled_from("abcd")
terms = st.integers(1, 4)
shapes = {"a": (600, 300, "G0"), "b": (500, 800, "G0"), "c": (1000, 1000, "G1"), "d": (400, 0, "G0")}


PAUSE = Suspension(action="pause", plan_id="p")


def given_to(pod: str, term: int, suspension: Suspension | None = None) -> Any:
    memory, compute, gpu = shapes[pod]
    came = node_grant(pod, term=term, memory=memory, compute=compute, gpu=gpu)
    parts = {name: msgspec.structs.replace(part, strategy="interposer") for name, part in came.grant.containers.items()}
    return msgspec.structs.replace(
        came, grant=msgspec.structs.replace(came.grant, containers=parts), suspension=suspension
    )


def devices(boot: str) -> m.InventorySeen:
    found = inventory(boot).inventory
    return m.InventorySeen(msgspec.structs.replace(found, strategies=(*found.strategies, "interposer")))


class Machine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.agent = Agent(NODE)
        self.saved = self.agent.checkpoint()
        self.released: set[str] = set()
        self.running: dict[str, str] = {}
        """The containers that really run: grant by pod."""
        self.newest_term = 0
        self.boot = 1
        self.paused: set[str] = set()
        """UIDs of the pods whose containers are really paused."""
        self.stubborn = False
        """Whether writing a control block fails now."""
        self.slow = False
        self.pending: list[m.SuspendSlices] = []
        """The suspension orders that are not carried out yet, in order."""
        self.do(devices("boot-1"))
        self.do(sync())

    def do(self, event: m.Input) -> list[m.Command]:
        """One event, and what the service does about it."""
        orders = self.agent.handle(event, 0.0)
        for order in orders:
            match order:
                case m.Save():
                    self.saved = self.agent.checkpoint()
                case m.Answer(body=NodeSyncAnswer() | Accepted() as body):
                    assert body.term >= self.newest_term
                    self.newest_term = body.term
                case m.SuspendSlices():
                    self.pending.append(order)
                    while self.pending and not self.slow:
                        orders = [*orders, *self.do_next()]
                case m.HandOver():
                    (self.paused.discard if order.suspension is None else self.paused.add)(order.uid)
                    assert order.grant_id not in self.released, "handed over after its release"
                    self.running[order.uid] = order.grant_id
        for grant_id in released(orders):
            self.released.add(grant_id)
            assert grant_id not in self.running.values(), "released while it runs"
        return orders

    def do_next(self) -> list[m.Command]:
        order = self.pending.pop(0)
        done = tuple(
            m.SuspendResult(task, "its control block cannot be written" if self.stubborn else "")
            for task in order.tasks
        )
        for task in () if self.stubborn else order.tasks:
            (self.paused.discard if task.suspension is None else self.paused.add)(task.uid)
        return self.do(m.SuspensionDone(order.request, done))

    @rule(pod=pods, term=terms, suspension=st.sampled_from([None, PAUSE]), stubborn=st.booleans(), slow=st.booleans())
    def grant(self, pod: str, term: int, suspension: Suspension | None, stubborn: bool, slow: bool) -> None:
        old, self.stubborn, self.slow = term < self.newest_term, stubborn, slow
        known = self.agent.store.get(f"g-{pod}")
        resumes = suspension is None and known is not None and known.grant.suspension is not None
        orders = self.do(m.GrantReceived(given_to(pod, term, suspension)))
        if isinstance(orders[-1], m.SuspendSlices):
            self.newest_term = term
            return
        assert isinstance(orders[-1], m.Answer)
        body = orders[-1].body
        assert isinstance(body, Accepted)
        taken = not old and f"g-{pod}" not in self.agent.checkpoint().tombstones
        assert body.ok == taken or (taken and resumes and bool(body.reason))
        assert body.suspension is None or f"u-{pod}" not in self.running or f"u-{pod}" in self.paused

    @rule()
    def tick(self) -> None:
        self.stubborn = self.slow = False
        while self.pending:
            self.do_next()
        self.do(m.Tick())

    @rule(pod=pods, term=terms)
    def release(self, pod: str, term: int) -> None:
        self.do(release(pod, term))

    @rule(chosen=st.sets(pods), term=terms, suspension=st.sampled_from([None, PAUSE]))
    def sync(self, chosen: set[str], term: int, suspension: Suspension | None) -> None:
        old, self.slow = term < self.newest_term, False
        orders = self.do(sync(*(given_to(pod, term, suspension) for pod in sorted(chosen)), term=term))
        reply = orders[-1].body if isinstance(orders[-1], m.Answer) else None
        assert isinstance(reply, NodeSyncAnswer)
        assert reply.accepted == (not old)
        if reply.accepted:
            assert {live.uid: live.grant_id for live in reply.live} == self.running

    @rule(pod=pods)
    def start(self, pod: str) -> None:
        orders = self.do(start(pod))
        assert handed(orders) != any(isinstance(order, m.RefuseStart) for order in orders)

    @rule(pod=pods)
    def end(self, pod: str) -> None:
        self.running.pop(f"u-{pod}", None)
        self.do(ended(pod))

    @rule(pod=pods)
    def book(self, pod: str) -> None:
        self.do(m.ReleasesBooked((f"g-{pod}",)))

    @rule()
    def crash(self) -> None:
        """The agent dies and restarts from its checkpoint; containers run on."""
        self.agent = Agent(NODE, read(write(self.saved), NODE))
        self._adopt()

    def _adopt(self) -> None:
        """What the strategies do when the agent starts."""
        self.pending.clear()
        for uid in self.running:
            (self.paused.discard if self.agent.store.ordered_suspension(uid) is None else self.paused.add)(uid)

    @rule()
    def reboot(self) -> None:
        self.boot += 1
        self.running.clear()
        self.pending.clear()
        self.agent = Agent(NODE, read(write(self.saved), NODE))
        self.do(devices(f"boot-{self.boot}"))

    @invariant()
    def never_over_the_device(self) -> None:
        memory: dict[str, int] = {}
        compute: dict[str, int] = {}
        for uid in self.running:
            mib, milli, gpu = shapes[uid[-1]]
            memory[gpu] = memory.get(gpu, 0) + mib
            compute[gpu] = compute.get(gpu, 0) + (0 if uid in self.paused else milli)
        assert all(amount <= GPU_MIB for amount in memory.values())
        assert all(amount <= 1000 for amount in compute.values())


TestAgent = Machine.TestCase
TestAgent.settings = settings(max_examples=150, stateful_step_count=40)
