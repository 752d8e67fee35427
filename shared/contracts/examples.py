"""One real example of every message: golden payloads that later versions must still read, and documentation by
example."""

from __future__ import annotations

from typing import Any

import msgspec

from shared.contracts import commands as c
from shared.contracts import events as e
from shared.contracts import facts as f
from shared.contracts import log as lg
from shared.contracts import metrics_queries as mq
from shared.contracts import node_commands as n
from shared.contracts import preemption as pre
from shared.contracts import queries as q
from shared.contracts import samples as sm
from shared.contracts.base import encode
from shared.contracts.envelope import Envelope, type_of
from shared.contracts.example_objects import (
    ALTERNATIVE,
    DECIDED,
    EXPLANATION,
    GANG,
    GANG_OBJECT,
    GANG_WAITS,
    GPU,
    GRANT,
    GRANT_ID,
    MOVE,
    NAMESPACE,
    NODE,
    NODE_GRANT,
    PLAN,
    POD,
    POD_OBJECT,
    SEQUENCE,
    SLICE,
    SPAN,
    TERM,
    TRACEPARENT,
    UID,
    UID_2,
    VERSION,
    WATCHER_EPOCH,
)
from shared.contracts.explain import Advice, KnownEnd, NodeTypeNeed, ScaleExplanation, WhenExplanation
from shared.contracts.identity import IdentityAnswer, IdentityRequest
from shared.contracts.policy import Amounts, QueueDefaults, QueuePolicy, QueueRule
from shared.model.gpu import Gpu, Inventory, Link, Nic
from shared.model.grant import encode_grant

_EXAMPLES: tuple[Any, ...] = (
    # events
    DECIDED,
    e.PlacementRejected(uid=UID, namespace=NAMESPACE, name=POD, explanation=EXPLANATION),
    e.PodBound(
        uid=UID, namespace=NAMESPACE, name=POD, node=NODE, grant_id=GRANT_ID, created="2026-11-21T09:00:00Z", bound_ms=7
    ),
    e.PodSuspended(
        uid=UID,
        namespace=NAMESPACE,
        name=POD,
        node=NODE,
        grant_id=GRANT_ID,
        action="checkpoint",
        plan_id=PLAN.plan_id,
        turn_of="team-a/notebook-0",
        gpu_seconds=3_600,
    ),
    e.PodResumed(
        uid=UID,
        namespace=NAMESPACE,
        name=POD,
        node=NODE,
        grant_id=GRANT_ID,
        action="checkpoint",
        suspended_ms=640_000,
        moved=True,
    ),
    e.GrantEnded(
        uid=UID, namespace=NAMESPACE, name=POD, node=NODE, grant_id=GRANT_ID, reason="slice released by its node"
    ),
    e.CapacityWanted(
        scale=ScaleExplanation(
            sentence="3 pods wait for capacity; 1 more node of type p5.48xlarge (like gpu-17, 8 GPUs) would give all "
            "of them a place",
            waiting=3,
            needs=(NodeTypeNeed(name="p5.48xlarge", like="gpu-17", nodes=1, gpus=8, pods=3),),
        )
    ),
    e.TermTaken(term=TERM, holder="placement-0-1-4be02d", touched=3, readopted=2, seconds=0.41),
    e.NodeInventoried(
        node=NODE,
        gpus=8,
        memory_mib=1_150_976,
        models=("NVIDIA-H200",),
        unhealthy=1,
        generation=4,
        gpus_by_model={"NVIDIA-H200": 8},
    ),
    e.SliceEnforced(
        node=NODE,
        uid=UID,
        namespace=NAMESPACE,
        name=POD,
        container="main",
        grant_id=GRANT_ID,
        strategy="advisory",
        promise="soft",
        gpus={GPU: (16384, 300)},
        model="NVIDIA-H200",
        traceparent=TRACEPARENT,
    ),
    e.SliceImpaired(
        node=NODE,
        uid=UID,
        namespace=NAMESPACE,
        name=POD,
        container="main",
        gpu=GPU,
        reason="mps-fault",
        sentence="a program on the GPU has caused a fatal fault",
    ),
    e.SliceReleased(
        node=NODE,
        uid=UID,
        namespace=NAMESPACE,
        name=POD,
        grant_id=GRANT_ID,
        boot_id="3f6d2f8e-1d1e-4b5b-a6a4-5b4b8a1b0c11",
        reason="pod deleted",
    ),
    e.GpuStateChanged(node=NODE, uuid=GPU, state="unhealthy", reason="Xid 79: the GPU has fallen off the bus"),
    e.GangPlaced(
        namespace=NAMESPACE,
        name="train",
        pods=(POD, "train-1"),
        nodes=2,
        minimum=2,
        term=TERM,
        sequence=SEQUENCE,
        area="topology.kubernetes.io/rack=r1",
        waited_ms=310,
    ),
    e.PolicyRead(
        namespace="kerf-system",
        name="kerf-policy",
        accepted=False,
        queues=3,
        problem="queue vision: there is no queue 'reserch' that could be its parent",
    ),
    e.PreemptionProposed(plan=PLAN, alternatives=(ALTERNATIVE,)),
    e.PreemptionReserved(plan=PLAN, term=TERM),
    e.PreemptionExecuted(plan=PLAN, took_ms=2400),
    e.PreemptionAbandoned(plan=PLAN, reason="not all of its victims were gone after 120 s"),
    e.GangWaiting(namespace=NAMESPACE, name="train", sentence=GANG_WAITS, gang=GANG),
    Envelope(
        specversion="1.0",
        id="3f0ad2c1b5e64d0f8c7e6a5b4c3d2e1f",
        source="/kerf/placement/placement-0-1-4be02d",
        type=type_of(e.PlacementDecided),
        time="2026-11-21T09:00:00.004211Z",
        subject=f"{NAMESPACE}/{POD}",
        traceparent=TRACEPARENT,
        data=msgspec.Raw(encode(DECIDED)),
    ),
    # log
    lg.TermRecord(holder="placement-0-1-4be02d", reason="elected", session="placement-0-1-4be02d/1"),
    lg.LogMark(term=TERM, sequence=SEQUENCE, session="placement-0-1-4be02d/1"),
    lg.ReadyRecord(term=TERM),
    lg.DecisionBatch(
        term=TERM,
        decisions=(
            lg.Decision(uid=UID, namespace=NAMESPACE, name=POD, resource_version=VERSION, node=NODE, grant=GRANT),
        ),
        reservations=(lg.ReservationRecord(term=TERM, plan=PLAN, places={UID: pre.HeldPlace(node=NODE, grant=GRANT)}),),
    ),
    # feed
    f.FeedBatch(
        epoch=WATCHER_EPOCH,
        number=42,
        facts=(f.Put(object=POD_OBJECT), f.Gone(object=POD_OBJECT, certain=False)),
        log_sequence_seen=SEQUENCE,
    ),
    f.SnapshotRequest(snapshot="7c1e", page=1, fresh=True),
    f.SnapshotPage(
        epoch=WATCHER_EPOCH,
        snapshot="7c1e",
        number=42,
        page=1,
        pages=3,
        facts=(f.Put(object=GANG_OBJECT), f.Put(object=POD_OBJECT)),
        log_sequence_seen=SEQUENCE,
    ),
    f.ReachQuery(epoch=WATCHER_EPOCH),
    f.ReachAnswer(epoch=WATCHER_EPOCH),
    # commands
    c.BindBatch(
        term=TERM,
        sequence=SEQUENCE,
        binds=(
            c.Bind(
                uid=UID, namespace=NAMESPACE, name=POD, resource_version=VERSION, node=NODE, grant=encode_grant(GRANT)
            ),
        ),
    ),
    c.Answers(
        answers=(
            c.Answer(uid=UID, outcome="conflict", resource_version=VERSION, message="the object has been modified"),
        )
    ),
    c.PatchBatch(
        patches=(
            c.TouchPod(uid=UID, namespace=NAMESPACE, name=POD, token="1795254276947-1"),  # noqa: S106 - no secret: a value that changes
            c.ReportPending(
                uid=UID,
                namespace=NAMESPACE,
                name=POD,
                reason="Unschedulable",
                message=EXPLANATION.sentence,
                resource_version=VERSION,
            ),
            c.AnnounceEvent(
                uid=UID,
                namespace=NAMESPACE,
                name=POD,
                type="Warning",
                reason="GrantVoid",
                action="Placing",
                note="the granted GPU was replaced",
            ),
            c.LabelNode(node=NODE, labels={"nvidia.com/gpu.product": "NVIDIA-H200", "kerf.dev/old": None}),
            c.AdvertiseCapacity(node=NODE, amounts={"kerf.dev/gpu-compute": 800, "kerf.dev/quota-gpu-milli": 8000}),
            c.TaintNode(node=NODE, key="status-taint.cluster-autoscaler.kubernetes.io/kerf-no-room", present=True),
            c.NominateNode(uid=UID, namespace=NAMESPACE, name=POD, node=NODE, resource_version=VERSION),
            c.DeletePod(
                uid=UID_2,
                namespace=NAMESPACE,
                name="train-1",
                reason="its node does not exist",
                resource_version=VERSION,
            ),
            c.PublishSlice(
                node=NODE,
                generation=2,
                mark="8d1f",
                devices=(
                    c.SliceDevice(
                        name="gpu-0",
                        memory_mib=143_771,
                        texts={"uuid": GPU},
                        versions={"cudaComputeCapability": "9.0.0"},
                    ),
                ),
            ),
            c.SuspendPod(
                uid=UID,
                namespace=NAMESPACE,
                name=POD,
                suspension='{"action":"pause","plan_id":"plan-7"}',
                reason="makes room for team-b/serve-1",
                resource_version=VERSION,
            ),
            c.AmendGrant(
                uid=UID,
                namespace=NAMESPACE,
                name=POD,
                grant='{"version":1,"grant_id":"01jcq8z9w4-5","term":41,"amendment":1}',
                reason="its slices have 12 GiB (main) now",
                resource_version=VERSION,
            ),
            c.SelectNode(namespace=NAMESPACE, claim="data-train-0", node=NODE, volume="pv-7"),
            c.ReportPodGroup(
                uid=UID_2,
                namespace=NAMESPACE,
                name="train",
                scheduled=False,
                reason="Unschedulable",
                message="1 of the 2 pods of gang podgroup.scheduling.k8s.io/train are there",
            ),
        )
    ),
    c.ResizePod(namespace=NAMESPACE, name=POD, resize="memory=12Gi,compute=40", uid=UID),
    c.EvictBatch(
        evictions=(
            c.Evict(
                uid=UID,
                namespace=NAMESPACE,
                name=POD,
                reason="preempted by team-b/urgent",
                grace_period_seconds=30,
                resource_version=VERSION,
            ),
        )
    ),
    pre.Reserve(plan=PLAN),
    pre.Reserved(
        plan_id="plan-7",
        ok=False,
        reason="team-b/serve-1 is of no lower priority: no pod is preempted for one of equal priority",
    ),
    pre.PreemptQuery(namespace=NAMESPACE, name=POD),
    pre.Spared(
        owner="6f1d2c5e-5b0a-4b5e-9d37-2f4f4a1d9c10",
        namespace=NAMESPACE,
        since=(1_799_999_000.0,),
        asked={UID: (1_800_000_000.0, 0)},
        ended=(1_799_999_000.0,),
    ),
    pre.PreemptAnswer(plan=PLAN, sentence="1 pod would end, and lose 1260 GPU-seconds", alternatives=(ALTERNATIVE,)),
    pre.Abandon(plan_id="plan-7", reason="a disruption budget keeps team-b/serve-1"),
    NODE_GRANT,
    n.NodeRelease(term=TERM, uid=UID, grant_id=GRANT_ID),
    n.NodeSync(term=TERM, node=NODE, grants=(NODE_GRANT,)),
    n.NodeSyncAnswer(
        node=NODE,
        boot_id="3f6d2f8e-1d1e-4b5b-a6a4-5b4b8a1b0c11",
        term=TERM,
        accepted=True,
        live=(SLICE,),
        tombstones=("5e4f3a2b7f9c1b2e4d5a4c3e9a8b7c6d",),
    ),
    n.NodeHold(term=3, node=NODE, grant_ids=("g-1", "g-2"), hold_s=20),
    n.NodeHoldAnswer(node=NODE, ok=False, reason="its processes could not be stopped together in 1 attempts"),
    n.NodeCordon(node=NODE, gpu=GPU, by="ada@bastion", reason="fan is noisy"),
    n.NodeCordonAnswer(
        ok=True, gpus=(GPU,), pods=(n.CordonedPod(uid=UID, namespace=NAMESPACE, name=POD, running=True),)
    ),
    n.ReleasesSeen(grant_ids=(GRANT_ID,)),
    n.Accepted(ok=False, reason="GPU 0 would hold 150000 MiB of 143872", term=TERM, node=NODE, grant_id=GRANT_ID),
    n.Beat(nodes=(NODE,)),
    n.Released(grant_id=GRANT_ID, reason="its containers have ended"),
    c.SimApply(
        objects=(msgspec.Raw(b'{"apiVersion":"v1","kind":"Pod","metadata":{"name":"train-0","namespace":"team-a"}}'),)
    ),
    c.SimDelete(kind="Pod", namespace=NAMESPACE, name=POD),
    c.SimAnswer(
        applied=1,
        refusals=(
            "team-a/train-9: kerf.dev/gpu-memory is 16 bytes; write it with a unit, such as 16Gi (at least 1Mi)",
        ),
    ),
    # queries
    q.WhyQuery(namespace=NAMESPACE, name=POD, max_nodes=5),
    q.WhatIfQuery(
        pod=msgspec.Raw(
            b'{"metadata":{"name":"try"},"spec":{"containers":[{"name":"main","resources":{"limits":{"kerf.dev/gpu":"1"}}}]}}'
        ),
        max_nodes=5,
    ),
    q.ExplainAnswer(explanation=EXPLANATION),
    q.WhenQuery(namespace=NAMESPACE, name=POD),
    q.WhenAnswer(
        when=WhenExplanation(
            namespace=NAMESPACE,
            name=POD,
            state="known",
            sentence="in 40 min at the earliest, on gpu-node-17.example, when team-b/serve-1 has ended",
            in_s=2400,
            at="2026-11-21T09:40:12Z",
            node=NODE,
            counts_on=(KnownEnd(namespace="team-b", name="serve-1", node=NODE, in_s=2400, by="deadline"),),
            assumptions=("team-b/serve-1 runs until its deadline and no longer",),
            without_end=11,
        )
    ),
    q.AdviseAnswer(
        advice=Advice(
            sentence="1 move makes 1 more group of 8 idle GPUs",
            moves=(MOVE,),
            places_before=3,
            places_after=4,
            disturbed_gpu_seconds=1260,
            kept=("7 pods: gang",),
        )
    ),
    q.GrantQuery(uid=UID, node=NODE),
    q.GrantAnswer(found=NODE_GRANT),
    IdentityRequest(node=NODE, public_key="-----BEGIN PUBLIC KEY-----\n..."),
    IdentityAnswer(
        certificate="-----BEGIN CERTIFICATE-----\n...",
        authority="-----BEGIN CERTIFICATE-----\n...",
        grants_key="k0123456789abcdef0123456789abcdef0123456789abcdef",
        valid_until_s=1_797_592_000.0,
    ),
    q.InspectQuery(node=NODE),
    q.InspectAnswer(
        nodes=(
            q.InspectNode(
                node=NODE,
                address="10.0.0.17",
                synced=False,
                gpus=(
                    q.InspectGpu(
                        uuid=GPU,
                        index=0,
                        model="NVIDIA-H200",
                        state="healthy",
                        memory_mib=143872,
                        allocated_memory_mib=16384,
                        allocated_compute_milli=300,
                        containers=1,
                        pods=(
                            q.InspectPod(
                                namespace=NAMESPACE,
                                name=POD,
                                memory_mib=16384,
                                compute_milli=300,
                                state="bound",
                                containers=("main",),
                            ),
                        ),
                    ),
                ),
            ),
        )
    ),
    q.StatusAnswer(
        holder="placement-0-1-4be02d",
        leader=True,
        term=TERM,
        nodes=3,
        gpus=24,
        gpu_milli_total=24000,
        gpu_milli_allocated=21300,
        gpu_memory_mib_total=3_452_928,
        gpu_memory_mib_allocated=3_010_560,
        pods_bound=61,
        pods_holding=2,
        pods_waiting=1,
        pods_gated=4,
        pods_leaving=1,
        decisions=812,
        rejections=17,
        decide_us_p50=41.5,
        decide_us_p99=230.0,
        fragmentation_milli=700,
        double_bookings=0,
        waiting=(EXPLANATION,),
        synced_nodes=3,
        pods_suspended=1,
        suspended=(
            q.SuspendedPod(
                namespace=NAMESPACE,
                name=POD,
                node=NODE,
                action="checkpoint",
                since="2026-11-20T10:00:00Z",
                for_s=420,
                turn_of="team/short",
                gpu_seconds=7_200,
                level=2,
            ),
        ),
        on_host_mib=40_960,
        host_mib=524_288,
    ),
    mq.TraceQuery(namespace=NAMESPACE, name=POD, uid=UID),
    mq.TraceAnswer(trace_id=SPAN.trace_id, spans=(SPAN,)),
    mq.SpanBatch(spans=(SPAN,)),
    sm.UsageSample(
        node=NODE,
        at_ms=1_795_254_277_000,
        gpus=(
            sm.GpuUse(
                uuid=GPU,
                used_mib=15_020,
                foreign_mib=512,
                sm_milli=410,
                slices=(
                    sm.SliceUse(
                        uid=UID,
                        namespace=NAMESPACE,
                        name=POD,
                        container="main",
                        memory_mib=14_008,
                        granted_memory_mib=16384,
                        sm_milli=270,
                        granted_compute_milli=300,
                        processes=1,
                    ),
                ),
            ),
        ),
    ),
    # what people write
    QueuePolicy(
        queues=(
            QueueRule(name="research", limit=Amounts(gpus=24)),
            QueueRule(
                name="vision",
                parent="research",
                weight=2,
                guaranteed=Amounts(gpus=8),
                namespaces=("vision", "vision-dev"),
            ),
        ),
        default=QueueDefaults(limit=Amounts(gpus=2.5, memory="512Gi")),
        within_guarantee_from=1000,
    ),
    # buckets
    Inventory(
        node=NODE,
        boot_id="3f6d2f8e-1d1e-4b5b-a6a4-5b4b8a1b0c11",
        generation=4,
        strategies=("exclusive", "advisory"),
        driver_version="615.12",
        cuda_version="13.2",
        gpus=(
            Gpu(
                uuid=GPU,
                index=0,
                model="NVIDIA-H200",
                memory_mib=143872,
                compute_capability="9.0",
                pci_bus_id="0000:18:00.0",
                numa_node=0,
            ),
            Gpu(
                uuid="GPU-5a1c9a60-3f0e-4c53-8a53-3d1d0a8d7e12",
                index=1,
                model="NVIDIA-H200",
                memory_mib=143872,
                state="unhealthy",
                reason="Xid 79: the GPU has fallen off the bus",
                foreign_mib=512,
            ),
        ),
        links=(Link(a=0, b=1, nvlinks=18, pcie="node"),),
        nics=(Nic(name="mlx5_0", numa_node=0, pcie={0: "multiple", 1: "node"}, verbs="uverbs0", pods=4),),
    ),
)

EXAMPLES: dict[str, Any] = {
    type(example).__name__: example
    for example in (*_EXAMPLES, *(example for query in q.QUERIES for example in query.examples))
}
"""By the name of the message's type."""
