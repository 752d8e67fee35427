"""Plans that are proposed to a placement core, as the preemptor does, and the pods that they concern."""

from __future__ import annotations

from typing import Any

from services.placement import messages as m
from shared.contracts.facts import Gone
from shared.contracts.log import DecisionBatch, ReservationRecord
from shared.contracts.preemption import Beneficiary, Plan, Reserved, Victim
from shared.model.objects import Pod
from tests.support import build
from tests.support.harness.placement import Placement, only

DEADLINE_S = 60


def low(name: str, **rest: Any) -> Pod:
    return build.gpu_pod(name, **({"gpus": 1} | rest))


def high(name: str = "high", **rest: Any) -> Pod:
    return build.gpu_pod(name, **({"gpus": 1, "priority": 100} | rest))


class Proposals:
    """Pods that run and wait at a placement core. Nothing is evicted but by `release`."""

    def __init__(self, placement: Placement) -> None:
        self.placement = placement
        self.bound: dict[str, Pod] = {}
        """The running pods by name."""

    # --- pods ---------------------------------------------------------------------------------------------------

    def run(self, pod: Pod) -> Pod:
        self.placement.facts(pod)
        seen = self.bound[pod.metadata.name] = self.placement.bind(pod)
        return seen

    def run_on(self, node: str, *pods: Pod) -> None:
        """Binds these pods to that node, as if it were the only one."""
        others = [name for name in self.placement.core.book.nodes if name != node]
        self.placement.facts(*(build.node(name, unschedulable=True) for name in others))
        for pod in pods:
            self.run(pod)
        self.placement.facts(*(build.node(name) for name in others))

    def on(self, node: str) -> list[str]:
        return sorted(name for name, pod in self.bound.items() if pod.spec.node_name == node)

    def wait(self, *pods: Pod) -> None:
        """Adds pods that fit nowhere."""
        self.placement.facts(*pods)
        assert not {p.metadata.uid for p in pods} & self.placement.binds().keys()

    def node_of(self, pod: Pod) -> str:
        """Where placement has bound it; empty if it is pending."""
        order = self.placement.binds().get(pod.metadata.uid)
        return "" if order is None else order.node

    def release(self, name: str) -> None:
        """The pod was evicted and is gone, and its node has confirmed that."""
        pod = self.bound.pop(name)
        grant_id = self.grant_id(pod)
        self.placement.send(m.FactsSeen((Gone(object=pod),)))
        self.placement.send(m.ReleaseSeen(pod.spec.node_name, grant_id))

    def grant_id(self, pod: Pod) -> str:
        return self.placement.core.book.pods[pod.metadata.uid].grant_id

    # --- plans --------------------------------------------------------------------------------------------------

    def victim(self, name: str) -> Victim:
        pod = self.bound[name]
        return Victim(uid=pod.metadata.uid, namespace="team", name=name, grant_id=self.grant_id(pod))

    def plan(self, *victims: str, to: tuple[Pod, ...] = (), plan_id: str = "plan", nodes: tuple[str, ...] = ()) -> Plan:
        """Returns a plan that evicts the victims.

        `to`: the beneficiaries, by default `high()`; `nodes`: their places, by default the victims'.
        """
        return Plan(
            plan_id=plan_id,
            deadline_s=DEADLINE_S,
            beneficiaries=tuple(
                Beneficiary(uid=p.metadata.uid, namespace="team", name=p.metadata.name, node=node)
                for p, node in zip(
                    to or (high(),), nodes or [self.bound[v].spec.node_name for v in victims], strict=False
                )
            ),
            victims=tuple(map(self.victim, victims)),
        )

    def propose(self, plan: Plan) -> Reserved:
        return only(self.placement.send(m.ReserveAsked(plan)), m.AnswerPlan)[-1].answer

    def records(self) -> list[ReservationRecord]:
        return [r for _, record in self.placement.log if isinstance(record, DecisionBatch) for r in record.reservations]


def full_cluster(*nodes: str) -> Proposals:
    """Nodes of two GPUs, full of pods without priority."""
    cluster = Proposals(Placement().nodes(*(nodes or ("n",)), gpus=2))
    for number in range(2 * len(nodes or ("n",))):
        cluster.run(low(f"low{number}"))
    return cluster


def empty_cluster(*nodes: str) -> Proposals:
    """The same nodes, after all pods have ended."""
    cluster = full_cluster(*nodes)
    for name in list(cluster.bound):
        cluster.release(name)
    return cluster


def refused(cluster: Proposals, plan: Plan) -> str:
    """Proposes a plan that changes nothing; returns why."""
    before = cluster.placement.core.book.digest()
    answer = cluster.propose(plan)
    assert not answer.ok
    assert cluster.placement.core.book.digest() == before
    assert cluster.records() == []
    return answer.reason
