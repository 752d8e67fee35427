"""Pods and nodes as a watch shows them, each change at once; and what they take of every GPU."""

from __future__ import annotations

import asyncio
import contextlib
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import structlog

from shared.contracts.facts import Fact, Gone, Put
from shared.kube.client import connect
from shared.kube.reflector import Reflector
from shared.kube.resources import NODE, POD
from shared.model.grant import decode_grant, sum_shares
from shared.model.objects import Node, Pod

HAMI_ALLOCATED = "hami.io/vgpu-devices-allocated"
TERMINAL = ("Succeeded", "Failed")
Taken = dict[str, tuple[int, int]]
"""MiB and thousandths of the compute, by GPU."""


class View:
    """`checks` run at every change of a pod, in the order of the watch."""

    def __init__(self) -> None:
        self.pods: dict[str, Pod] = {}
        self.nodes: dict[str, Node] = {}
        self.checks: list[Callable[[], None]] = []
        self.failure = ""
        """What the first failed check said."""
        self._changed: list[asyncio.Event] = []

    def take(self, facts: list[Fact]) -> None:
        for fact in facts:
            if not isinstance(fact, Put | Gone):
                continue
            match fact.object:
                case Pod() as pod:
                    self._keep(self.pods, pod.metadata.uid, pod, fact)
                    self._check()
                case Node() as node:
                    self._keep(self.nodes, node.metadata.name, node, fact)
        for event in self._changed:
            event.set()

    @staticmethod
    def _keep(known: dict[str, Any], key: str, seen: Any, fact: Fact) -> None:
        if isinstance(fact, Put):
            known[key] = seen
        else:
            known.pop(key, None)

    def _check(self) -> None:
        for check in self.checks:
            try:
                check()
            except AssertionError as error:
                self.failure = self.failure or str(error)

    async def act(self, step: Callable[[], Awaitable[None]]) -> None:
        """Calls `step` after changes, until it is cancelled."""
        event = asyncio.Event()
        self._changed.append(event)
        while True:
            event.clear()
            await step()
            await event.wait()

    def named(self, namespace: str, prefix: str) -> list[Pod]:
        """Pods of a workload that have not ended and do not end, by the beginning of their name."""
        return [
            pod
            for pod in self.pods.values()
            if pod.metadata.namespace == namespace
            and pod.metadata.name.startswith(prefix)
            and pod.metadata.deletion_timestamp is None
            and pod.status.phase not in TERMINAL
        ]


@contextlib.asynccontextmanager
async def viewed(kubeconfig: Path) -> AsyncIterator[View]:
    view = View()
    transport = await connect(str(kubeconfig), user_agent="test-view")
    log = structlog.get_logger()
    reflectors = [Reflector(transport, resource, view.take, log) for resource in (NODE, POD)]
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(reflector.run()) for reflector in reflectors]
        for reflector in reflectors:
            await reflector.wait_synced()
        try:
            yield view
        finally:
            for task in tasks:
                task.cancel()
    await transport.close()


def is_ready(pod: Pod) -> bool:
    return any(one.type == "Ready" and one.status == "True" for one in pod.status.conditions)


def hami_devices(pod: Pod) -> list[tuple[str, int, int]]:
    """(GPU, MiB, percent of the cores) of HAMi's annotation, as Project-HAMi/HAMi docs/develop/protocol.md has it:
    `UUID,Type,MiB,cores:` a GPU, `;` after each container."""
    text = pod.metadata.annotations.get(HAMI_ALLOCATED, "").replace(";", ":")
    fields = [device.split(",") for device in text.split(":") if device]
    return [(uuid, int(mib), int(cores)) for uuid, _, mib, cores in fields]


def taken_of(pod: Pod) -> Taken:
    """What one pod that has not ended holds, by Kerf's annotation and by HAMi's."""
    taken: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    if pod.status.phase in TERMINAL:
        return {}
    for uuid, mib, cores in hami_devices(pod):
        taken[uuid][0] += mib
        taken[uuid][1] += 10 * cores
    if grant := pod.metadata.annotations.get("kerf.dev/grant"):
        for (_, uuid), (mib, milli) in sum_shares([decode_grant(grant)]).items():
            taken[uuid][0] += mib
            taken[uuid][1] += milli
    return {uuid: (mib, milli) for uuid, (mib, milli) in taken.items()}


def check_books(view: View, node_of: dict[str, str], memory_mib: int) -> None:
    """No GPU is given beyond what it has, by both systems together; and each is given by the system whose node it is
    on."""
    total: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    pods: dict[str, list[str]] = defaultdict(list)
    for pod in view.pods.values():
        name = f"{pod.metadata.namespace}/{pod.metadata.name}"
        for uuid, (mib, milli) in taken_of(pod).items():
            total[uuid][0] += mib
            total[uuid][1] += milli
            pods[uuid].append(name)
            assert uuid in node_of, f"{name} has GPU {uuid}, which no node has"
            assert not pod.spec.node_name or pod.spec.node_name == node_of[uuid], f"{name} has a GPU of another node"
        if hami_devices(pod) and pod.status.phase not in TERMINAL:
            assert "kerf.dev/grant" not in pod.metadata.annotations, f"{name} has GPUs of both systems"
            node = view.nodes.get(pod.spec.node_name)
            enrolled = node is not None and node.metadata.labels.get("kerf.dev/enrolled") == "true"
            assert not enrolled, f"{name} has HAMi's GPUs on {pod.spec.node_name}, which is Kerf's"
    for uuid, (mib, milli) in total.items():
        assert mib <= memory_mib, f"GPU {uuid} is booked twice: {mib} of {memory_mib} MiB, by {pods[uuid]}"
        assert milli <= 1000, f"GPU {uuid} is booked twice: {milli} of 1000 milli, by {pods[uuid]}"
