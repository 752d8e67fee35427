"""What placement's core makes of damaged messages of nodes, users and the preemptor that decode all the same.

A message that decodes is applied. So no value in it may stop the leader, or break what holds after every input
(`tests.support.harness.invariants`): no GPU has more booked than it has.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Generator
from typing import Any

import msgspec

from services.placement import messages as m
from services.placement.explain.steps import finish
from services.placement.queries import Moment
from services.placement.queries.responder import ANSWERS
from shared.contracts import node_commands, preemption, queries
from shared.contracts.base import ContractError, decode, encode
from shared.contracts.examples import EXAMPLES
from shared.contracts.samples import UsageSample
from shared.kube.decoder import Decoder, Undecodable
from shared.kube.resources import REFLECTED
from shared.model.gpu import HostMemory, Inventory, Link, Nic
from shared.model.mig import MigInstance
from shared.model.network import NetworkLink, RemoteAbility
from shared.model.objects import Pod
from tests.fuzz.parser import Parser
from tests.fuzz.parsers.annotations import ANNOTATIONS
from tests.fuzz.parsers.cluster import pod_list
from tests.support import build
from tests.support.harness.placement import Placement

_STRATEGIES = ("exclusive", "advisory", "interposer", "mig", "remote", "time_slice")
_ASKS: tuple[tuple[dict[str, Any], dict[str, str]], ...] = (
    ({"kerf.dev/gpu": "1"}, {}),
    ({"kerf.dev/gpu": "2"}, {"kerf.dev/topology": "required"}),
    ({"kerf.dev/gpu": "2", "cpu": "2"}, {"kerf.dev/topology": "numa"}),
    ({"kerf.dev/gpu": "1", "cpu": "1"}, {"kerf.dev/topology": "host", "kerf.dev/nic": "1"}),
    ({"kerf.dev/gpu-memory": "8Gi"}, {"kerf.dev/gpu-capability-min": "8.0", "kerf.dev/gpu-prefer": "speed"}),
    ({"kerf.dev/gpu-memory": "4Gi", "kerf.dev/gpu-compute": "30"}, {"kerf.dev/gpu-use": "busy=60%,sm=40%"}),
    ({"kerf.dev/mig-1g.10gb": "1"}, {}),
)


def parsers() -> tuple[Parser, ...]:
    return (
        Parser(
            name="placement-inventory",
            form="json",
            examples=[_tree(one) for one in _inventories()],
            read=_inventory,
            errors=(ContractError,),
            weight=2,
        ),
        Parser(
            name="placement-pod",
            form="json",
            examples=[pod_list(key, text, node="") for key, text in ANNOTATIONS if "grant" not in key],
            read=_pod,
            errors=(Undecodable,),
            weight=2,
        ),
        Parser(
            name="placement-usage",
            form="json",
            examples=(_tree(EXAMPLES["UsageSample"]),),
            read=_from_a_node(UsageSample, m.Sampled),
            errors=(ContractError,),
        ),
        Parser(
            name="placement-sync-answer",
            form="json",
            examples=(_tree(EXAMPLES["NodeSyncAnswer"]) | {"node": "n"},),
            read=_from_a_node(node_commands.NodeSyncAnswer, m.SyncAnswered),
            errors=(ContractError,),
        ),
        Parser(
            name="placement-plan",
            form="json",
            examples=(_tree(EXAMPLES["Reserve"]),),
            read=_from_a_node(preemption.Reserve, lambda order: m.ReserveAsked(order.plan)),
            errors=(ContractError,),
        ),
        *(
            Parser(
                name=f"placement-query-{query.name}",
                form="json",
                examples=(_question(query.question),),
                read=functools.partial(_query, query),
                errors=(ContractError,),
            )
            for query in queries.QUERIES
            if query.name in ANSWERS
        ),
    )


def _tree(value: Any) -> Any:
    return msgspec.json.decode(encode(value))


def _question(kind: type[Any]) -> Any:
    """The example, about pods and nodes that are there."""
    asked = _tree(EXAMPLES[kind.__name__])
    there = {"namespace": "team", "name": "p0", "uid": "uid-team-p0", "node": "n"}
    return {key: there.get(key, value) for key, value in asked.items()}


def _inventories() -> list[Inventory]:
    plain = build.inventory(
        "n",
        gpus=4,
        links=tuple(Link(a=a, b=b, nvlinks=18, pcie="node") for a in range(4) for b in range(a + 1, 4)),
        nics=(Nic(name="mlx5_0", numa_node=0, pcie={0: "multiple"}, verbs="uverbs0", pods=2),),
        strategies=_STRATEGIES,  # type: ignore[arg-type]
        park_mib=1000,
    )
    gpus = tuple(
        msgspec.structs.replace(
            gpu,
            cpus="0-31,64-95" if gpu.index < 2 else "32-63",
            numa_node=gpu.index // 2,
            compute_capability="9.0",
            to_device_mb_s=50_000,
            from_device_mb_s=50_000,
            mig_enabled=gpu.index == 3,
            mig_on_demand=gpu.index == 3,
        )
        for gpu in plain.gpus
    )
    remote = RemoteAbility(address="10.0.0.1:7000", client=True, network={"m": NetworkLink(rtt_us=20, mib_s=9000)})
    made = msgspec.structs.replace(
        plain,
        gpus=gpus,
        remote=remote,
        idle_grants={"g": 1.0},
        woken_grants={"h": 2.0},
        dra=True,
        driver_version="580.65.06",
        cuda_version="13.0",
    )
    cut = msgspec.structs.replace(
        gpus[3], mig_on_demand=False, mig_instances=(MigInstance(profile="1g.10gb", start=0, uuid="MIG-1"),)
    )
    fixed = msgspec.structs.replace(made, gpus=(*gpus[:3], cut), host_memory=HostMemory(park_mib=5))
    return [made, fixed]


def _pods(prefix: str = "p") -> list[Pod]:
    return [
        build.pod(f"{prefix}{number}", limits=limits, annotations=annotations)
        for number, (limits, annotations) in enumerate(_ASKS)
    ]


def _inventory(data: bytes) -> object:
    """The node's agent says it twice, and pods of every kind are placed in between."""
    found = decode(data, Inventory)
    placement = Placement().nodes("m")
    placement.facts(build.node("n"))
    placement.send(m.InventorySeen(_inventories()[0]))
    placement.place(*_pods())
    placement.send(m.InventorySeen(msgspec.structs.replace(found, node="n")))
    placement.place(*_pods("late"))
    placement.tick()
    return found


def _pod(data: bytes) -> object:
    placement = Placement().nodes("n", "m", gpus=4, strategies=_STRATEGIES)
    for pod in _DECODER.page(data).objects:
        placement.facts(pod)
    placement.tick()
    placement.tick(30.0)
    return placement


_DECODER = Decoder(next(resource for resource in REFLECTED if resource.kind == "Pod"))


def _from_a_node(kind: type[Any], to_input: Callable[[Any], m.Input]) -> Callable[[bytes], object]:
    def read(data: bytes) -> object:
        found = decode(data, kind)
        placement = Placement().nodes("n", gpus=4, strategies=_STRATEGIES)
        for pod in _pods()[:3]:
            placement.place(pod)
            if pod.metadata.uid in placement.binds():
                placement.bind(pod)
        placement.send(to_input(found))
        placement.tick()
        return found

    return read


def _query(query: Any, data: bytes) -> object:
    """As the responder answers it."""
    asked = decode(data, query.question)
    reply = ANSWERS[query.name](_led().core, asked, Moment(1.0, 1.0))
    return finish(reply) if isinstance(reply, Generator) else encode(reply)


@functools.cache
def _led() -> Placement:
    """Of queries, which change nothing, one for all."""
    placement = Placement().nodes("n", "m", gpus=4, strategies=_STRATEGIES)
    placement.place(*_pods())
    placement.place(build.pod("p", limits={"kerf.dev/gpu": "8"}))
    return placement
