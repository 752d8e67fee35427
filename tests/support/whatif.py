"""Small clusters for `why`, `what-if` and `when`; and users that follow the advice."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Any

import msgspec

from services.placement import messages as m
from services.placement.explain.steps import finish
from services.placement.queries import questions
from shared.contracts.explain import (
    Advice,
    Counterfactual,
    PodExplanation,
    ScaleExplanation,
    WhenExplanation,
    WorldExplanation,
)
from shared.contracts.queries import AdviseQuery, ScaleQuery, WhatIfQuery, WhenQuery, WhyQuery
from shared.model import names
from shared.model.affinity import Toleration
from shared.model.kube_object import Meta
from shared.model.objects import Pod, PodStatus, Taint
from shared.model.units import mib, milli
from tests.support import build
from tests.support.harness.placement import Placement

NOW = 1_800_000_000.0
"""Seconds since 1970, when queries are made."""


def time_of(seconds_ago: float) -> str:
    return datetime.fromtimestamp(NOW - seconds_ago, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def run(placement: Placement, *pods: Pod, started_s_ago: float = 0) -> list[Pod]:
    """Places, binds and starts these pods."""
    placement.facts(*pods)
    bound = [placement.bind(pod) for pod in pods]
    running = [
        msgspec.structs.replace(build.newer(pod), status=PodStatus(phase="Running", start_time=time_of(started_s_ago)))
        for pod in bound
    ]
    placement.facts(*running)
    return running


def end(placement: Placement, pod: Pod) -> None:
    """The pod is deleted, and its node releases its GPUs."""
    held = placement.core.book.pods[pod.metadata.uid]
    node, grant_id = held.charged, held.grant_id
    placement.gone(held.pod)
    placement.send(m.ReleaseSeen(node, grant_id))


def why(placement: Placement, name: str, **rest: int) -> PodExplanation:
    answer = finish(questions.why(placement.core, WhyQuery(namespace="team", name=name, **rest), placement.now, NOW))
    assert answer.explanation is not None, answer.error
    return answer.explanation


def world(placement: Placement, **query: Any) -> WorldExplanation:
    answer = finish(questions.what_if(placement.core, WhatIfQuery(**query), NOW))
    assert answer.world is not None, answer.error
    return answer.world


def scale(placement: Placement, **query: Any) -> ScaleExplanation:
    answer = finish(questions.scale_(placement.core, ScaleQuery(**query), NOW))
    assert answer.scale is not None, answer.error
    return answer.scale


def when(placement: Placement, name: str) -> WhenExplanation:
    answer = finish(questions.when_(placement.core, WhenQuery(namespace="team", name=name), NOW))
    assert answer.when is not None, answer.error
    return answer.when


def advise(placement: Placement, name: str = "", **query: Any) -> Advice:
    answer = finish(
        questions.advise_(placement.core, AdviseQuery(namespace="team" if name else "", name=name, **query), NOW)
    )
    assert answer.advice is not None, answer.error
    return answer.advice


def _limits(pod: Pod, **changes: str) -> Pod:
    container = pod.spec.containers[0]
    resources = msgspec.structs.replace(container.resources, limits=container.resources.limits | changes)
    return _spec(pod, containers=(msgspec.structs.replace(container, resources=resources),))


def _spec(pod: Pod, **changes: Any) -> Pod:
    return msgspec.structs.replace(pod, spec=msgspec.structs.replace(pod.spec, **changes))


def _noted(pod: Pod, key: str, value: str) -> Pod:
    return msgspec.structs.replace(
        pod, metadata=msgspec.structs.replace(pod.metadata, annotations=pod.metadata.annotations | {key: value})
    )


def follow(pod: Pod, told: Counterfactual) -> Pod:
    """The pod as a user rewrites it after reading the sentence, and nothing else."""
    number = next((int(n) for n in re.findall(r"\d+", told.sentence)), 0)
    limits = pod.spec.containers[0].resources.limits
    count = int(limits.get(names.RESOURCE_GPU, 1))
    match told.code:
        case "less-memory":
            found = re.fullmatch(r"fits with .* less GPU memory.*: ([\d.]+) (GiB|MiB)", told.sentence)
            assert found
            on_each = mib(f"{found[1]}{found[2][:2]}") if found[2] == "MiB" else int(float(found[1]) * 1024)
            changed = _limits(pod, **{names.RESOURCE_GPU_MEMORY: f"{on_each * count}Mi"})
        case "less-compute":
            changed = _limits(
                pod, **{names.RESOURCE_GPU_COMPUTE: str(int(limits[names.RESOURCE_GPU_COMPUTE]) - number * count)}
            )
        case "fewer-gpus":
            said = dict(re.findall(r"(kerf.dev/gpu-\w+): (\w+)", told.sentence))
            changed = _limits(pod, **{names.RESOURCE_GPU: str(count - number)}, **said)
        case "gpu-model":
            found = re.fullmatch(r"add (\S+) to kerf.dev/gpu-model", told.sentence)
            assert found
            changed = _noted(
                pod, names.ANNOTATION_GPU_MODEL, f"{pod.metadata.annotations[names.ANNOTATION_GPU_MODEL]}|{found[1]}"
            )
        case "isolation":
            changed = _noted(pod, names.ANNOTATION_ISOLATION, told.sentence.rpartition(" ")[2])
        case "less-cpu":
            container = pod.spec.containers[0]
            found = re.fullmatch(r"ask for (\S+) CPU less", told.sentence)
            assert found
            cpu = milli(container.resources.requests["cpu"]) - milli(found[1])
            resources = msgspec.structs.replace(container.resources, requests={"cpu": f"{cpu}m"})
            changed = _spec(pod, containers=(msgspec.structs.replace(container, resources=resources),))
        case "taint":
            key, _, effect = told.sentence.removeprefix("tolerate ").partition(":")
            changed = _spec(pod, tolerations=(Toleration(key=key, operator="Exists", effect=effect),))
        case "node-selector":
            changed = _spec(pod, node_selector={})
        case other:
            raise AssertionError(f"this user cannot follow {other}")
    name = f"{pod.metadata.name}-new"
    meta: Meta = msgspec.structs.replace(
        changed.metadata, name=name, uid=f"uid-team-{name}", resource_version=build.next_version()
    )
    return msgspec.structs.replace(changed, metadata=meta)


TAINT = Taint(key="dedicated", effect="NoSchedule")
