"""A preemptor whose book contains a cluster: nodes with GPUs, running pods and pending pods."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import msgspec

from services.preemptor import messages as m
from services.preemptor.config import Config
from services.preemptor.core import Core
from shared.contracts.commands import Answer, Outcome
from shared.contracts.facts import Gone, Put
from shared.contracts.preemption import Plan, Reserved
from shared.model.grant import ContainerGrant, GpuShare, Grant
from shared.model.kube_object import OwnerReference
from shared.model.objects import Pod, PodStatus
from shared.model.strategies import StrategyName
from tests.support import build

NOW = 1_800_000_000.0
TOTAL_MIB = 81_920


class Preemptor:
    """Feeds inputs; the caller carries out the commands, or answers plans by `reserve` and `evicted`."""

    def __init__(
        self,
        *nodes: str,
        gpus: int = 2,
        numbers: Iterator[int] | None = None,
        park_mib: int = 8 * TOTAL_MIB,
        **settings: Any,
    ) -> None:
        """`numbers`: of the plans. `park_mib`: what each host takes of checkpointed GPU memory."""
        self._numbers = itertools.count(1) if numbers is None else numbers
        self.config = Config(**settings)
        self.core = self._new_core()
        self.now = NOW
        self.pods: dict[str, Pod] = {}
        self.gpus = gpus
        for name in nodes:
            self.send(m.FactsSeen((Put(object=build.node(name)),)))
            self.send(m.InventorySeen(build.inventory(name, gpus=gpus, park_mib=park_mib)))

    def _new_core(self) -> Core:
        return Core(self.config, lambda: f"plan-{next(self._numbers)}")

    def restart(self) -> None:
        """Another preemptor begins with the same settings, and knows nothing."""
        self.core = self._new_core()

    def send(self, event: m.Input) -> list[m.Command]:
        return self.core.handle(event, self.now)

    def run(
        self,
        name: str,
        node: str,
        *gpus: int,
        memory_mib: int = 0,
        memory_limit_mib: int = 0,
        compute_milli: int = 0,
        priority: int = 0,
        ran_s: int = 0,
        strategy: StrategyName = "advisory",
        owners: tuple[OwnerReference, ...] = (),
        any_gpu: bool = False,
        **rest: Any,
    ) -> Pod:
        """Adds a running pod with these GPUs, whole or a share of each. `any_gpu`: see Grant."""
        shares = tuple(
            GpuShare(
                node=node,
                uuid=f"{node}-gpu-{i}",
                memory_mib=memory_mib or TOTAL_MIB,
                memory_limit_mib=memory_limit_mib,
                compute_milli=compute_milli if memory_mib else 1000,
            )
            for i in gpus
        )
        grant = Grant(
            grant_id=f"grant-{name}",
            term=1,
            containers={"c": ContainerGrant(strategy=strategy, gpus=shares)},
            any_gpu=any_gpu,
        )
        rest.setdefault("created", datetime.fromtimestamp(self.now - ran_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ"))
        ask = {"memory": f"{memory_mib * len(gpus)}Mi"} if memory_mib else {"gpus": len(gpus)}
        pod = build.bound(build.gpu_pod(name, priority=priority, **ask, **rest), node, grant)
        started = datetime.fromtimestamp(NOW - ran_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        meta = msgspec.structs.replace(pod.metadata, owner_references=owners or pod.metadata.owner_references)
        pod = msgspec.structs.replace(pod, metadata=meta, status=PodStatus(phase="Running", start_time=started))
        self.pods[name] = pod
        self.send(m.FactsSeen((Put(object=pod),)))
        return pod

    def wait(self, name: str, *, priority: int = 100, **rest: Any) -> Pod:
        """Adds a pending pod that placement has rejected."""
        pod = self.pods[name] = build.gpu_pod(name, priority=priority, **({"gpus": 1} | rest))
        self.send(m.FactsSeen((Put(object=pod),)))
        self.send(m.Rejected(pod.metadata.uid))
        return pod

    def plans(self, after_s: float = 1.0) -> list[Plan]:
        self.now += after_s
        return [command.plan for command in self.send(m.Tick()) if isinstance(command, m.Propose)]

    def victims(self) -> list[list[str]]:
        """Returns the victims' names of each plan that is proposed now."""
        return [sorted(victim.name for victim in plan.victims) for plan in self.plans()]

    def reserve(self, plan: Plan, *, ok: bool = True, reason: str = "no") -> list[str]:
        """Sends placement's answer; returns the names of the pods whose eviction is then requested."""
        answer = Reserved(plan_id=plan.plan_id, ok=ok, reason="" if ok else reason)
        return _asked(self.send(m.Answered(answer)))

    def evicted(self, plan: Plan, *names: str, **not_done: Outcome) -> list[str]:
        """Sends the outcome of evictions, by default accepted for all.

        Returns the names that are evicted then.
        """
        asked = {victim.name: victim.uid for victim in plan.victims if victim.name in names or not names}
        answers = tuple(Answer(uid=asked[name], outcome=outcome) for name, outcome in not_done.items())
        return _asked(self.send(m.Evicted(plan.plan_id, tuple(asked.values()), answers)))

    def gone(self, name: str) -> None:
        """The pod has ended, and its node has released its grant."""
        self.send(m.FactsSeen((Gone(object=self.pods.pop(name)),)))
        self.send(m.GrantOver(f"grant-{name}"))


def _asked(commands: list[m.Command]) -> list[str]:
    return [order.name for command in commands if isinstance(command, m.Execute) for order in command.evictions]
