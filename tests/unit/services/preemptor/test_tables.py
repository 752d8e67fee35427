"""The rows of `tables.py`, each on its own cluster."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from functools import partial
from typing import Any

import msgspec
import pytest

from services.preemptor import messages as pm
from services.preemptor.memory_use import LOST_S, SEEN_FOR_S
from shared.contracts.samples import GpuUse, SliceUse, UsageSample
from shared.model.grant import ContainerGrant, GpuShare, Grant
from shared.model.kube_object import OwnerReference
from shared.model.objects import Pod, PodStatus
from shared.model.suspension import decode_suspension
from tests.support import build
from tests.support.harness.api_server import BUDGET, RACK
from tests.support.harness.cluster import Cluster
from tests.support.harness.nodes import GPU_MIB
from tests.unit.services.preemptor.tables import TABLE, Case

_ASK = re.compile(r"(\d+)|\((\d+)(?:,(\d+))?\)")
_RUNS = re.compile(r"(\w+)@(\w+):([\d,]*?)(\(.*\))?$")
SETTLES_S = 20
ENDS_IN_S = 5.0
_GRACE = re.compile(r"\bd(\d+)\b")


class _Words:
    """The options behind a pod's name and place."""

    def __init__(self, name: str, words: list[str]) -> None:
        self.name, self.notes, self.labels, self.spec = name, {}, {}, {}  # type: ignore[var-annotated]
        self.priority, self.ran_s, self.ending, self.uses_gib, self.grace_s = 0, 0, False, 0, 0
        for word in words:
            self._read(word)

    def _read(self, word: str) -> None:
        if word == "b":
            self.labels[BUDGET] = "kept"
        elif word == "o":
            self.notes["kerf.dev/tier"] = "opportunistic"
        elif word == "ending":
            self.ending = True
        elif word == "t":
            self.notes["kerf.dev/gang-topology"] = f"required={RACK}"
        elif word == "never":
            self.spec["preemption_policy"] = "Never"
        elif word.startswith("n:"):
            self.spec["node_selector"] = {"kubernetes.io/hostname": word[2:]}
        elif word.startswith("q:"):
            self.labels["kerf.dev/queue"] = word[2:]
        elif word[0] == "g":
            size, _, least = word[1:].partition("/")
            self.notes |= {"kerf.dev/gang": "g" if self.name < "h" else "h", "kerf.dev/gang-size": size} | (
                {"kerf.dev/gang-min": least} if least else {}
            )
        elif word[0] == "m":
            self.notes["kerf.dev/min-runtime"] = f"{word[1:]}s"
        elif word[0] == "d":
            self.grace_s = self.spec["termination_grace_period_seconds"] = int(word[1:])
        elif word[0] == "c":
            self.notes["kerf.dev/restart-cost"] = word[1:]
        elif word[0] == "u":
            self.uses_gib = int(word[1:])
        elif word[0] == "r":
            self.ran_s = int(word[1:])
        elif word[0] == "p":
            self.priority = int(word[1:])
        else:
            raise ValueError(f"{word!r} means nothing in a table")


def _asks(text: str, count: int = 1) -> dict[str, Any]:
    found = _ASK.fullmatch(text)
    assert found is not None, text
    if found[1]:
        return {"gpus": int(found[1])}
    asks: dict[str, Any] = {"memory": f"{int(found[2]) * count}Gi"}
    return asks | (
        {"compute": int(found[3]), "annotations": {"kerf.dev/isolation": "firm"}} if int(found[3] or 0) else {}
    )


def _pod(cluster: Cluster, words: _Words, asks: dict[str, Any]) -> Pod:
    notes = asks.pop("annotations", {}) | words.notes
    created = datetime.fromtimestamp(cluster.clock.wall, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    make = partial(build.gpu_pod, **asks) if any(asks.values()) else build.pod
    pod = make(
        words.name,
        priority=words.priority,
        annotations=notes,
        labels=words.labels,
        created=created,
        **words.spec,
    )
    owner = OwnerReference(uid=f"owner-{words.name}", kind="ReplicaSet", name=words.name, controller=True)
    return msgspec.structs.replace(pod, metadata=msgspec.structs.replace(pod.metadata, owner_references=(owner,)))


def _run(cluster: Cluster, text: str) -> None:
    place, *rest = text.split()
    found = _RUNS.fullmatch(place)
    assert found is not None, place
    words, node, part = _Words(found[1], rest), found[2], found[4]
    gpus = [int(number) for number in found[3].split(",") if number]
    asks = _asks(part) if part else {"gpus": len(gpus)}
    mib = GPU_MIB if part is None else int(asks["memory"].removesuffix("Gi")) * 1024
    milli = 1000 if part is None else asks.get("compute", 0) * 10
    strategy = "exclusive" if part is None else "interposer" if "compute" in asks else "advisory"
    shares = tuple(GpuShare(node=node, uuid=f"{node}-gpu-{i}", memory_mib=mib, compute_milli=milli) for i in gpus)
    grant = Grant(
        grant_id=f"grant-{words.name}", term=1, containers={"c": ContainerGrant(strategy=strategy, gpus=shares)}
    )  # type: ignore[arg-type]
    pod = build.bound(_pod(cluster, words, asks), node, grant if gpus else None)
    started = datetime.fromtimestamp(cluster.clock.wall - words.ran_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    pod = msgspec.structs.replace(pod, status=PodStatus(phase="Running", start_time=started))
    if words.ending:
        until = datetime.fromtimestamp(cluster.clock.wall + (words.grace_s or ENDS_IN_S), UTC).strftime(
            "%Y-%m-%dT%H:%M:%SZ"
        )
        pod = msgspec.structs.replace(pod, metadata=msgspec.structs.replace(pod.metadata, deletion_timestamp=until))
    if gpus:
        cluster.nodes.grants[grant.grant_id] = grant
    cluster.api.ends_at[words.name] = words.ran_s + (words.grace_s or ENDS_IN_S) if words.ending else 1e9
    cluster.api.terminations.after_s[words.name] = words.grace_s
    cluster.api.show(pod)
    if words.uses_gib:
        _seen(cluster, pod, node, gpus, words.uses_gib * 1024)


def _seen(cluster: Cluster, pod: Pod, node: str, gpus: list[int], mib: int) -> None:
    """Sends samples of a pod's memory use for long enough to be believed, and one more at planning time."""
    meta = pod.metadata
    use = SliceUse(
        uid=meta.uid,
        namespace=meta.namespace,
        name=meta.name,
        memory_mib=mib,
        granted_memory_mib=0,
        granted_compute_milli=0,
        counted_mib=mib,
    )
    sample = UsageSample(
        node=node, at_ms=0, gpus=tuple(GpuUse(uuid=f"{node}-gpu-{i}", used_mib=mib, slices=(use,)) for i in gpus)
    )
    for ago_s in (SEEN_FOR_S, LOST_S, 0.0):
        cluster.preemptor.core.handle(pm.Sampled(sample), cluster.clock.wall - ago_s)


def _each(text: str) -> list[str]:
    return [part.strip() for part in text.split(";") if part.strip()]


@pytest.mark.parametrize("case", TABLE, ids=[case.what for case in TABLE])
def test_before_and_after(case: Case) -> None:
    moves = {"defragmentation_gpu_seconds_per_hour": 10**6, "reclaim_patience": 0} if case.consolidates else {}
    racks = dict(pair.split("=") for pair in case.racks.split()) or None
    cluster = Cluster(
        case.nodes,
        least={"kept": case.least} if case.least else None,
        queues=case.queues or None,
        racks=racks,
        shrinks=True,
        **moves,
    )
    for text in _each(case.runs):
        _run(cluster, text)
    waiting = []
    for text in _each(case.waits):
        name, ask, *rest = text.split()
        waiting.append(name)
        words = _Words(name, rest)
        cluster.api.ends_at[name] = 1e9
        cluster.api.show(_pod(cluster, words, _asks(ask)))
    while cluster.clock.now < SETTLES_S + max((int(word) for word in _GRACE.findall(case.runs)), default=0):
        cluster.step()
    assert sorted(name for _, name, _ in cluster.api.evictions) == sorted(case.evicted.split())
    live = {pod.metadata.name: pod for pod in cluster.api.live.values()}
    suspension = {
        name: decode_suspension(note).action
        for name, pod in live.items()
        if (note := pod.metadata.annotations.get("kerf.dev/suspended"))
    }
    assert suspension == dict(pair.split("=") for pair in case.suspends.split())
    assert {v.name: v.to for plan in cluster.plans.values() for v in plan.victims if v.to} == dict(
        pair.split("=") for pair in case.moves.split()
    )
    assert all(live[name].spec.node_name == node for name, node in (pair.split("=") for pair in case.moves.split()))
    assert {name for name in waiting if live[name].spec.node_name} == set(case.placed.split())
    assert cluster.placement.core.book.overbooked() == []


def test_the_table_has_at_least_60_distinct_rows() -> None:
    assert len({case.what for case in TABLE}) == len(TABLE) >= 60
