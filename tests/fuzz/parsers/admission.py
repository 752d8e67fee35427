"""What an API server sends to the webhook: reviews of pods in every dialect."""

from __future__ import annotations

import base64
import copy
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import yaml

from services.admission import webhook
from services.admission.core import review
from services.admission.messages import Allowed, Policy, Request
from services.admission.patch import apply
from services.admission.profiles import DEBUG
from services.admission.rules import typed
from shared.model import names
from shared.model.request_reader import has_gpu_request, read_request
from tests.fuzz.parser import Parser, promise
from tests.fuzz.parsers.annotations import ANNOTATIONS
from tests.unit.services.admission.pods import asked

ROOT = Path(__file__).resolve().parents[3]
_POLICIES = {
    "": Policy(),
    "opted-in": Policy(
        plain_nvidia_namespaces=("*",), takeover_schedulers=("volcano", "kai-scheduler", "hami-scheduler")
    ),
    "debug": Policy(profile=DEBUG),
}
_ONLY_KERF = (names.ANNOTATION_GRANT, names.ANNOTATION_SUSPENDED, names.ANNOTATION_GPU_TIME, names.ANNOTATION_PARKED)


def parsers() -> tuple[Parser, ...]:
    examples = [asked(pod) for pod in _pods()]
    examples += [asked(pod, operation="UPDATE", oldObject=pod) for pod in _pods()[::5]]
    reviews = (
        Parser(
            name=f"webhook{f'-{name}' if name else ''}",
            form="json",
            examples=examples,
            read=_reader(policy),
            errors=(webhook.Malformed,),
            weight=4,
        )
        for name, policy in _POLICIES.items()
    )
    return (
        *reviews,
        Parser(
            name="webhook-bytes",
            form="bytes",
            examples=[msgspec.json.encode(example) for example in examples],
            read=_reader(Policy()),
            errors=(webhook.Malformed,),
        ),
    )


def _reader(policy: Policy) -> Callable[[bytes], object]:
    def read(body: bytes) -> object:
        asked = webhook.read(body)
        before = webhook.read(body).request.pod
        decided, payload = webhook.answer(asked, policy)
        response = msgspec.json.decode(payload)["response"]
        promise(response["allowed"] == isinstance(decided, Allowed), "the answer does not say what was decided")
        promise(asked.request.pod == before, "the review has changed its own input")
        if isinstance(decided, Allowed) and asked.request.operation == "CREATE":
            patch = msgspec.json.decode(base64.b64decode(response.get("patch", "W10=")))
            _check_created(asked.request, apply(asked.request.pod, patch), policy)
        return decided

    return read


def _check_created(asked: Request, final: dict[str, Any], policy: Policy) -> None:
    """What admission lets through has no grant that Kerf did not give, and stays as it is when it is reviewed again."""
    annotations = (final.get("metadata") or {}).get("annotations") or {}
    promise(not any(key in annotations for key in _ONLY_KERF), "a pod came with what only Kerf writes")
    again = review(msgspec.structs.replace(asked, pod=msgspec.json.decode(msgspec.json.encode(final))), policy)
    promise(isinstance(again, Allowed), f"the rewritten pod is refused: {again}")
    promise(isinstance(again, Allowed) and not again.patches, f"a second review changes the pod: {again}")

    pod = typed(final)
    if has_gpu_request(pod):
        read_request(pod)


def _pods() -> list[dict[str, Any]]:
    """The dialects' golden pods, and pods in Kerf's own words with every annotation that it reads."""
    files = sorted((ROOT / "tests" / "data" / "dialects").glob("*.yaml"))
    pods = [pod for file in files for pod in _of_kind(yaml.safe_load_all(file.read_text()))]
    limits: tuple[dict[str, Any], ...] = (
        {"kerf.dev/gpu": "2"},
        {"kerf.dev/gpu-memory": "16Gi", "kerf.dev/gpu-compute": "40"},
        {"kerf.dev/gpu-memory-percent": "50"},
        {"kerf.dev/mig-1g.10gb": "1"},
        {"aliyun.com/gpu-mem": "3", "aliyun.com/gpu-count": "1"},
        {"nvidia.com/gpu": 1},
        {"nvidia.com/mig-1g.10gb": 1},
        {"nvidia.com/gpu": 1, "nvidia.com/gpumem": 2000, "nvidia.com/gpucores": 30, "nvidia.com/priority": 1},
        {},
    )
    pods += [_pod(one, {}) for one in limits]
    pods += [_pod(limits[number % 4], {key: text}) for number, (key, text) in enumerate(ANNOTATIONS)]
    nv = "nvidia.com/container.main."
    for more in (
        {"gpu-fraction": "0.5", "gpu-fraction.limit": "0.8"},
        {"gpu-memory": "2000", "gpu-memory.limit": "4Gi", "gpu-fraction-num-devices": "2"},
        {f"{nv}gpu-memory.request": "2000Mi", f"{nv}gpu-memory.limit": "4Gi", f"{nv}gpu-compute.mode": "time-slicing"},
    ):
        pods.append(_pod({}, more, schedulerName="kai-scheduler"))
    for pod in pods[:3]:
        pods.append(
            copy.deepcopy(pod)
            | {"spec": pod["spec"] | {"initContainers": [{"name": "init", "restartPolicy": "Always"}]}}
        )
    return pods


def _of_kind(documents: Iterator[Any]) -> list[dict[str, Any]]:
    return [document for document in documents if document and document.get("kind") == "Pod"]


def _pod(limits: dict[str, Any], annotations: dict[str, str], **spec: Any) -> dict[str, Any]:
    container = {
        "name": "main",
        "image": "example",
        "env": [{"name": "RUNAI_GPU_MEMORY_LIMIT", "value": "4Gi"}] if spec else [],
        "resources": {"limits": limits, "requests": dict(limits)},
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": "train-0",
            "labels": {"kerf.dev/queue": "vision", "priorityClassName": "build"},
            "annotations": annotations,
            "ownerReferences": [{"kind": "ReplicaSet", "name": "r", "uid": "u", "controller": True}],
        },
        "spec": {"containers": [container], "tolerations": [], "priority": 100, **spec},
    }
