"""The agent under any order of events, crashes and repeats: never over the device, released is final."""

from __future__ import annotations

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from services.node_agent import messages as m
from services.node_agent.core import Agent
from services.node_agent.state import read, write
from shared.contracts.commands import Accepted, NodeSyncAnswer
from tests.unit.services.node_agent.make import GPU_MIB, NODE, ended, handed, inventory, node_grant, release, released, start, sync

pods = st.sampled_from("abcd")
terms = st.integers(1, 4)
shapes = {"a": (600, 300, "G0"), "b": (500, 800, "G0"), "c": (1000, 1000, "G1"), "d": (400, 0, "G0")}


def given_to(pod: str, term: int) -> Any:
    memory, compute, gpu = shapes[pod]
    return node_grant(pod, term=term, memory=memory, compute=compute, gpu=gpu)


class Machine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.agent = Agent(NODE)
        self.saved = self.agent.checkpoint()
        self.released: set[str] = set()
        self.running: dict[str, str] = {}
        """Grant by pod: containers that really run."""
        self.newest_term = 0
        self.boot = 1
        self.do(inventory("boot-1"))

    def do(self, event: m.Input) -> list[m.Command]:
        """One event, with what the service would do about it."""
        orders = self.agent.handle(event, 0.0)
        for order in orders:
            match order:
                case m.Save():
                    self.saved = self.agent.checkpoint()
                case m.Answer(body=NodeSyncAnswer() | Accepted() as body):
                    assert body.term >= self.newest_term
                    self.newest_term = body.term
                case m.HandOver():
                    assert order.grant_id not in self.released, "handed over after its release"
                    self.running[order.uid] = order.grant_id
        for grant_id in released(orders):
            self.released.add(grant_id)
            assert grant_id not in self.running.values(), "released while it runs"
        return orders

    @rule(pod=pods, term=terms)
    def grant(self, pod: str, term: int) -> None:
        old = term < self.newest_term
        orders = self.do(m.GrantCame(given_to(pod, term)))
        assert isinstance(orders[-1], m.Answer)
        assert isinstance(orders[-1].body, Accepted)
        assert orders[-1].body.ok == (not old and f"g-{pod}" not in self.agent.checkpoint().tombstones)

    @rule(pod=pods, term=terms)
    def release(self, pod: str, term: int) -> None:
        self.do(release(pod, term))

    @rule(chosen=st.sets(pods), term=terms)
    def sync(self, chosen: set[str], term: int) -> None:
        old = term < self.newest_term
        orders = self.do(sync(*(given_to(pod, term) for pod in sorted(chosen)), term=term))
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
        """The agent dies and comes back with what was saved; containers run on."""
        self.agent = Agent(NODE, read(write(self.saved), NODE))

    @rule()
    def reboot(self) -> None:
        self.boot += 1
        self.running.clear()
        self.agent = Agent(NODE, read(write(self.saved), NODE))
        self.do(inventory(f"boot-{self.boot}"))

    @invariant()
    def never_over_the_device(self) -> None:
        memory: dict[str, int] = {}
        compute: dict[str, int] = {}
        for uid in self.running:
            mib, milli, gpu = shapes[uid[-1]]
            memory[gpu] = memory.get(gpu, 0) + mib
            compute[gpu] = compute.get(gpu, 0) + milli
        assert all(amount <= GPU_MIB for amount in memory.values())
        assert all(amount <= 1000 for amount in compute.values())


TestAgent = Machine.TestCase
TestAgent.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
