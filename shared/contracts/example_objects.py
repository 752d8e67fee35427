"""The pod, grant, node and other values that several examples share."""

from __future__ import annotations

import msgspec

from shared.contracts import events as e
from shared.contracts import metrics_queries as mq
from shared.contracts import node_commands as n
from shared.contracts import preemption as pre
from shared.contracts.explain import (
    Candidate,
    GangExplanation,
    GpuReason,
    Move,
    NodeExplanation,
    PodExplanation,
    Reason,
)
from shared.model.grant import ContainerGrant, GpuShare, Grant
from shared.model.kube_object import Meta
from shared.model.objects import Container, Gang, Pod, PodSpec, PodStatus, Resources

UID = "0e6f8e2a-8f1c-4b9e-9d53-0a6d6c9f0001"
UID_2 = "0e6f8e2a-8f1c-4b9e-9d53-0a6d6c9f0002"
GPU = "GPU-5a1c9a60-3f0e-4c53-8a53-3d1d0a8d7e11"
NODE, NAMESPACE, POD = "gpu-node-17.example", "team-a", "train-0"
TERM, SEQUENCE, VERSION = 1_795_254_276_947, 1_795_254_276_990, "48211"
GRANT_ID = "7f9c1b2e4d5a4c3e9a8b7c6d5e4f3a2b"
TRACEPARENT = "00-e287a75c803a035191590451586be93d-bb026e6a28a80af1-01"
WATCHER_EPOCH = "watcher-0-1-9f3ac1"

GRANT = Grant(
    grant_id=GRANT_ID,
    term=TERM,
    sequence=SEQUENCE,
    traceparent=TRACEPARENT,
    containers={
        "main": ContainerGrant(
            strategy="advisory", gpus=(GpuShare(node=NODE, uuid=GPU, memory_mib=16384, compute_milli=300),)
        )
    },
)

POD_OBJECT = Pod(
    metadata=Meta(
        name=POD,
        namespace=NAMESPACE,
        uid=UID,
        resource_version=VERSION,
        creation_timestamp="2026-11-21T09:00:00Z",
        labels={"app": "train"},
    ),
    spec=PodSpec(
        scheduler_name="kerf",
        containers=(
            Container(
                name="main",
                image="registry.example/train:1",
                resources=Resources(
                    limits={"kerf.dev/gpu-memory": "16Gi", "kerf.dev/gpu-compute": "30", "kerf.dev/slot": "1"}
                ),
            ),
        ),
    ),
    status=PodStatus(phase="Pending"),
)

NO_ROOM = Reason(
    code="gpu-full",
    sentence="no GPU has 16 GiB free",
    helps="free 4 GiB on one GPU, or ask for at most 12 GiB",
    nodes=3,
)
EXPLANATION = PodExplanation(
    namespace=NAMESPACE,
    name=POD,
    uid=UID,
    state="waiting",
    sentence="0 of 3 nodes fit: no GPU has 16 GiB free (3)",
    summary=(NO_ROOM,),
    helps=(NO_ROOM.helps,),
    nodes=(
        NodeExplanation(
            node=NODE,
            feasible=False,
            reasons=(NO_ROOM,),
            scores={"binpack": 71},
            total=71,
            gpus=(
                GpuReason(
                    uuid=GPU,
                    index=0,
                    model="NVIDIA-H200",
                    free_memory_mib=12288,
                    free_compute_milli=700,
                    fits=False,
                    missing="needs 16384 MiB, 12288 MiB free",
                    holders=("team-b/serve-1",),
                ),
            ),
        ),
    ),
    candidates=(
        Candidate(
            node="gpu-node-18.example",
            total=64,
            scores={"gpu-policy": -40},
            terms={"balance": -180, "prices": -96, "waste": 40, "groups": 0},
        ),
    ),
    waiting_s=12.5,
    ahead=2,
)

MOVE = Move(
    namespace="team-b",
    name="serve-1",
    source=NODE,
    target="gpu-node-18.example",
    gpu_milli=700,
    disturbed_gpu_seconds=1260,
)
GANG_OBJECT = Gang(
    metadata=Meta(name="jobset.jobset.x-k8s.io/train", namespace=NAMESPACE, uid=UID_2, resource_version="48100"),
    minimum=8,
    required="topology.kubernetes.io/rack",
)
GANG = GangExplanation(
    name="train",
    minimum=8,
    members=8,
    placed=0,
    need=8,
    fits=6,
    area="topology.kubernetes.io/rack=r1",
    misfit="train-6",
)
GANG_WAITS = "gang train: 6 of its 8 pods fit together in topology.kubernetes.io/rack=r1, and none is placed alone"

SLICE = n.LiveSlice(
    uid=UID,
    namespace=NAMESPACE,
    name=POD,
    container="main",
    grant_id=GRANT_ID,
    strategy="advisory",
    gpus={GPU: (16384, 300)},
)
BURSTING = GpuShare(
    node=NODE, uuid=GPU, memory_mib=16384, compute_milli=300, memory_limit_mib=24576, compute_limit_milli=600
)
NODE_GRANT = n.NodeGrant(
    term=TERM,
    uid=UID,
    namespace=NAMESPACE,
    name=POD,
    grant=msgspec.structs.replace(
        GRANT, containers={"main": ContainerGrant(strategy="interposer", gpus=(BURSTING,))}, restart_cost_s=600
    ),
)
ALTERNATIVE = pre.Alternative(nodes=("gpu-7",), action="evict", victims=2, price_gpu_seconds=5400, at_least=True)
PLAN = pre.Plan(
    plan_id="plan-7",
    deadline_s=120,
    price_gpu_seconds=1260,
    beneficiaries=(pre.Beneficiary(uid=UID, namespace=NAMESPACE, name=POD, node=NODE),),
    victims=(
        pre.Victim(
            uid=UID_2,
            namespace="team-b",
            name="serve-1",
            grant_id="5e4f3a2b7f9c1b2e4d5a4c3e9a8b7c6d",
            lost_gpu_seconds=1260,
        ),
    ),
)
DECIDED = e.PlacementDecided(
    uid=UID,
    namespace=NAMESPACE,
    name=POD,
    node=NODE,
    term=TERM,
    sequence=SEQUENCE,
    grant=GRANT,
    policy="binpack",
    scores={"gpu-policy": 71, "preferred-node": 12},
    feasible_nodes=3,
    waited_ms=4,
)
SPAN = mq.Span(
    trace_id=TRACEPARENT[3:35],
    span_id="50fa3fbcf765e019",
    parent_id=TRACEPARENT[36:52],
    name="placement.rejected",
    service="placement",
    start_ns=1_795_254_276_990_000_000,
    end_ns=1_795_254_276_990_080_000,
    attributes={"k8s.pod.name": POD, "kerf.reason": "no GPU has 16 GiB free"},
    events=("3x gpu-full: no GPU has 16 GiB free",),
    links=(),
    error="",
)
