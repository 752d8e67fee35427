"""Invalid pods, each with its refusal code and a message that states what to change."""

from __future__ import annotations

from typing import Any

import pytest

from services.admission.core import review
from services.admission.messages import Policy, Refused, Request
from tests.unit.services.admission.pods import container, pod

GRANT = {"kerf.dev/grant": "{}"}


def noted(**annotations: str) -> dict[str, str]:
    return {f"kerf.dev/{key.replace('_', '-')}": value for key, value in annotations.items()}


def raw(**resources: Any) -> dict[str, Any]:
    return {"name": "main", "image": "example", "resources": resources}


BAD: list[tuple[str, dict[str, Any], str, str]] = [
    ("half a gpu", pod(container(gpu="0.5")), "fraction", "kerf.dev/gpu-compute (percent)"),
    ("half a gpu, as the API server writes it", pod(container(gpu="500m")), "fraction", "leave kerf.dev/gpu out"),
    ("half a gpu, as a YAML float", pod(container(gpu=0.5)), "fraction", "16Gi"),
    ("fraction of a percent", pod(container(compute="12.5")), "fraction", "kerf.dev/gpu-compute is 12.5"),
    ("half a byte", pod(container(memory="1500m")), "fraction", "whole numbers"),
    (
        "a limit below the request",
        pod(container(memory="8Gi"), annotations={"kerf.dev/gpu-memory-limit": "4Gi"}),
        "limit-below-request",
        "has the limit 4Gi, less than the container's resources request",
    ),
    (
        "a compute limit below the request",
        pod(container(compute=50), annotations={"kerf.dev/gpu-compute-limit": "30"}),
        "limit-below-request",
        "has the limit 30",
    ),
    (
        "a limit of whole GPUs",
        pod(container(gpu=1), annotations={"kerf.dev/gpu-memory-limit": "40Gi"}),
        "limit-not-allowed",
        "requests whole GPUs",
    ),
    (
        "a limit of a MIG instance",
        pod(container(**{"kerf.dev/mig-1g.10gb": 1}), annotations={"kerf.dev/gpu-memory-limit": "40Gi"}),
        "limit-not-allowed",
        "MIG instances, which cannot grow",
    ),
    (
        "a limit under hard isolation",
        pod(container(memory="8Gi"), annotations={"kerf.dev/gpu-memory-limit": "40Gi", "kerf.dev/isolation": "hard"}),
        "limit-not-allowed",
        "isolation is hard",
    ),
    (
        "a compute limit without compute",
        pod(container(memory="8Gi"), annotations={"kerf.dev/gpu-compute-limit": "40"}),
        "limit-not-allowed",
        "may use all GPU time that others leave",
    ),
    (
        "a compute limit beyond the GPU",
        pod(container(compute=50), annotations={"kerf.dev/gpu-compute-limit": "101"}),
        "bad-annotation",
        "at most 100",
    ),
    (
        "a limit that is no amount",
        pod(container(memory="8Gi"), annotations={"kerf.dev/gpu-memory-limit": "more"}),
        "bad-annotation",
        "'more' is not a Kubernetes quantity",
    ),
    (
        "a limit of a container without GPUs",
        pod(container(memory="8Gi"), annotations={"kerf.dev/gpu-memory-limit": "other=9Gi"}),
        "bad-annotation",
        "names container 'other', and the containers with GPUs are",
    ),
    ("negative gpus", pod(container(gpu=-1)), "negative", "cannot be negative"),
    ("negative memory", pod(container(memory="-16Gi")), "negative", "kerf.dev/gpu-memory is -16Gi"),
    ("words for a number", pod(container(gpu="two")), "not-a-quantity", "'two' is not a Kubernetes quantity"),
    ("memory with GB", pod(container(memory="16GB")), "not-a-quantity", "16Gi"),
    ("a percent sign", pod(container(compute="30%")), "not-a-quantity", "'30%'"),
    (
        "an exponent that cannot be computed",
        pod(container(gpu="1e999999999")),
        "not-a-quantity",
        "is not a Kubernetes quantity",
    ),
    ("a very long number", pod(container(memory="9" * 5000)), "not-a-quantity", "is not a Kubernetes quantity"),
    ("blank in the number", pod(container(memory="16 Gi")), "not-a-quantity", "'16 Gi'"),
    ("Python's underscore", pod(container(gpu="1_0")), "not-a-quantity", "'1_0'"),
    ("digits of another script", pod(container(gpu="٣")), "not-a-quantity", "write a number such as 2"),
    (
        "memory in MiB without unit",
        pod(container(memory="16384")),
        "memory-too-small",
        "write it with a unit, such as 16Gi",
    ),
    ("memory in petabytes", pod(container(memory="16Pi")), "memory-too-large", "in bytes, written like 16Gi"),
    (
        "more containers than are compared",
        pod(*(container(gpu=1) | {"name": f"c{i}"} for i in range(257))),
        "too-many-containers",
        "the pod has 257 containers; a pod with GPUs may have 256 at most",
    ),
    (
        "annotations that the API server refuses after the webhooks",
        pod(container(gpu=1), annotations={"a": "x" * (256 * 1024)}),
        "annotations-too-large",
        "have 262145 bytes; they may have 262144 at most",
    ),
    ("gpu count as memory", pod(container(gpu=16384)), "too-many-gpus", "counts GPUs, not memory"),
    ("compute over 100 of one gpu", pod(container(compute=150)), "compute-too-large", "at most 100"),
    ("compute over 200 of two gpus", pod(container(gpu=2, compute=201)), "compute-too-large", "at most 200"),
    ("compute in per mille", pod(container(memory="8Gi", compute=300)), "compute-too-large", "in percent of one GPU"),
    ("compute not even", pod(container(gpu=3, compute=50)), "compute-not-even", "use a multiple of 3"),
    ("memory not even", pod(container(gpu=3, memory="16Gi")), "memory-not-even", "cannot be divided over 3 GPUs"),
    ("zero gpus beside memory", pod(container(gpu=0, memory="16Gi")), "zero-gpus", "leave it out for one GPU"),
    ("zero gpus alone", pod(container(gpu=0)), "no-gpu-container", "at least 1"),
    (
        "request without limit",
        pod(raw(requests={"kerf.dev/gpu": 1})),
        "request-not-limit",
        "GPU resources need a limit",
    ),
    (
        "request less than limit",
        pod(raw(requests={"kerf.dev/gpu": 1}, limits={"kerf.dev/gpu": 2})),
        "request-not-limit",
        "has request 1 and limit 2",
    ),
    (
        "typo in the resource",
        pod(container(**{"kerf.dev/gpu-mem": "16Gi"})),
        "unknown-resource",
        "did you mean kerf.dev/gpu-memory?",
    ),
    ("typo: gpus", pod(container(**{"kerf.dev/gpus": 1})), "unknown-resource", "did you mean kerf.dev/gpu?"),
    (
        "typo: gpu-cores",
        pod(container(gpu=1, **{"kerf.dev/gpu-computes": 10})),
        "unknown-resource",
        "did you mean kerf.dev/gpu-compute?",
    ),
    (
        "a resource from nowhere",
        pod(container(**{"kerf.dev/tpu-chips-v5": 1})),
        "unknown-resource",
        "kerf.dev/tpu-chips-v5 is no resource of Kerf",
    ),
    (
        "pod-level gpus",
        pod(container(), resources={"limits": {"kerf.dev/gpu": 1}}),
        "pod-level-gpu",
        "name them in the limits of the container",
    ),
    (
        "pod-level beside a container's",
        pod(container(gpu=1), resources={"requests": {"kerf.dev/gpu-memory": "1Gi"}}),
        "pod-level-gpu",
        "pod-level resources",
    ),
    (
        "init larger than app",
        pod(container(memory="8Gi"), init=[container("init", memory="16Gi")]),
        "init-larger-than-app",
        "init container 'init'",
    ),
    (
        "init with more gpus",
        pod(container(gpu=1), init=[container("init", gpu=2)]),
        "init-larger-than-app",
        "share an app container's slice",
    ),
    ("init alone", pod(container(), init=[container("init", gpu=1)]), "init-larger-than-app", "at least as much"),
    (
        "init whole, app a slice",
        pod(container(memory="8Gi"), init=[container("init", gpu=1)]),
        "init-larger-than-app",
        "at least as much",
    ),
    (
        "static pod",
        pod(container(gpu=1), annotations={"kubernetes.io/config.mirror": "abc"}, nodeName="n1"),
        "static-pod",
        "make it a DaemonSet",
    ),
    ("nodeName set", pod(container(gpu=1), nodeName="n1"), "node-name-set", "nodeSelector kubernetes.io/hostname"),
    ("another scheduler", pod(container(gpu=1), schedulerName="volcano"), "other-scheduler", "only Kerf can place it"),
    ("spoofed grant", pod(container(gpu=1), annotations=GRANT), "spoofed-grant", "take it out"),
    (
        "spoofed gpu time",
        pod(container(gpu=1), annotations={"kerf.dev/gpu-time": "{}"}),
        "spoofed-grant",
        "kerf.dev/gpu-time is written by Kerf",
    ),
    ("turns", pod(container(gpu=1), annotations={"kerf.dev/turns": "yes"}), "bad-annotation", "allowed, never"),
    ("spoofed grant without gpus", pod(container(), annotations=GRANT), "spoofed-grant", "written by Kerf"),
    ("two slots", pod(container(gpu=1, slot=2)), "slot-count", "Leave it out, admission writes it"),
    ("zero slots", pod(container(gpu=1, slot=0)), "slot-count", "it is 1 for every container"),
    ("slot without gpu", pod(container(slot=1)), "slot-without-gpu", "asks for no GPU"),
    (
        "slot on the wrong container",
        pod(container("a", gpu=1), container("b", slot=1)),
        "slot-without-gpu",
        "container 'b'",
    ),
    (
        "debug container with gpu",
        pod(container(gpu=1), ephemeralContainers=[container("debug", gpu=1)]),
        "ephemeral-gpu",
        "targetContainerName",
    ),
    (
        "unknown isolation",
        pod(container(gpu=1), annotations=noted(isolation="strict")),
        "bad-annotation",
        "must be one of soft, firm, policed, hard",
    ),
    (
        "unknown topology",
        pod(container(gpu=2), annotations=noted(topology="yes")),
        "bad-annotation",
        "required, preferred",
    ),
    (
        "unknown policy",
        pod(container(gpu=2), annotations=noted(policy="pack")),
        "bad-annotation",
        "kerf, binpack, spread",
    ),
    (
        "unknown tier",
        pod(container(gpu=1), annotations=noted(tier="gold")),
        "bad-annotation",
        "standard, opportunistic",
    ),
    (
        "no model named",
        pod(container(gpu=1), annotations=noted(gpu_model=" | ")),
        "bad-annotation",
        "such as H200|H100",
    ),
    (
        "gang without size",
        pod(container(gpu=1), annotations=noted(gang="train")),
        "bad-gang",
        "number of pods in gang 'train'",
    ),
    ("size without gang", pod(container(gpu=1), annotations=noted(gang_size="8")), "bad-gang", "kerf.dev/gang is None"),
    (
        "gang size in letters",
        pod(container(gpu=1), annotations=noted(gang="train", gang_size="eight")),
        "bad-gang",
        "'eight'",
    ),
    (
        "gang of no pods",
        pod(container(gpu=1), annotations=noted(gang="train", gang_size="0")),
        "bad-gang",
        "from 1 to 10000",
    ),
    (
        "gang of 5000 digits",
        pod(container(gpu=1), annotations=noted(gang="train", gang_size="9" * 5000)),
        "bad-gang",
        "from 1 to 10000",
    ),
    (
        "gang with blanks",
        pod(container(gpu=1), annotations=noted(gang="my train", gang_size="2")),
        "bad-gang",
        "lower-case letters",
    ),
    (
        "unknown dialect",
        pod(container(gpu=1), annotations=noted(dialect="klingon")),
        "bad-annotation",
        "written by admission",
    ),
    (
        "a trace that is none",
        pod(container(gpu=1), annotations=noted(admission_traceparent="hello")),
        "bad-annotation",
        "W3C traceparent",
    ),
    ("two names alike", pod(container("a", gpu=1), container("a", gpu=1)), "duplicate-container", "each needs its own"),
    ("kerf and gpushare", pod(container(memory="3Gi", mem=3)), "mixed-dialects", "aliyun.com/gpu-mem"),
    ("kerf and nvidia", pod(container(gpu=1, nvidia=1)), "mixed-dialects", "keep one of them"),
    ("mixed over containers", pod(container("a", gpu=1), container("b", mem=3)), "mixed-dialects", "more than one way"),
    ("gpushare and nvidia", pod(container("a", mem=3), container("b", nvidia=1)), "mixed-dialects", "nvidia.com/gpu"),
    ("gpushare with a unit", pod(container(mem="3Gi")), "foreign-unit", "written without a unit"),
    ("gpushare, half a GiB", pod(container(mem="1500m")), "foreign-fraction", "whole numbers"),
    ("gpushare, negative", pod(container(mem=-3)), "negative", "cannot be negative"),
    ("gpushare, words", pod(container(mem="three")), "not-a-quantity", "'three'"),
    ("gpushare, not even", pod(container(mem=1, count=3)), "memory-not-even", "spread evenly"),
    (
        "limits as a list",
        pod({"name": "main", "resources": {"limits": ["kerf.dev/gpu"]}}),
        "malformed",
        "$.spec.containers[0].resources.limits",
    ),
    (
        "containers as an object",
        {"metadata": {}, "spec": {"containers": {"name": "a"}}},
        "malformed",
        "$.spec.containers",
    ),
    (
        "annotations that are no text",
        pod(container(gpu=1), annotations={"kerf.dev/gang-size": 8}),
        "malformed",
        "$.metadata.annotations",
    ),
    ("null as an ephemeral container", pod(container(gpu=1), ephemeralContainers=[None]), "malformed", "$[0]"),
    ("ephemeral containers as text", pod(container(gpu=1), ephemeralContainers="debug"), "malformed", "ephemeral"),
    (
        "resources of an ephemeral container as a list",
        pod(container(gpu=1), ephemeralContainers=[{"name": "debug", "resources": ["kerf.dev/gpu"]}]),
        "malformed",
        "$[0].resources",
    ),
    ("spec as text", {"metadata": {}, "spec": "gpu please"}, "malformed", "$.spec"),
]


@pytest.mark.parametrize(("manifest", "code", "phrase"), [case[1:] for case in BAD], ids=[case[0] for case in BAD])
def test_an_invalid_pod_is_refused_by_name(manifest: dict[str, Any], code: str, phrase: str) -> None:
    """Each refusal has a stable code and states what to write instead."""
    answer = review(Request(pod=manifest), Policy())
    assert isinstance(answer, Refused), answer
    assert (answer.code, phrase in answer.sentence) == (code, True), answer.sentence


BOUND = pod(container(gpu=1), annotations=noted(isolation="soft"), nodeName="n1", schedulerName="kerf")


@pytest.mark.parametrize(
    ("old", "new", "user", "code"),
    [
        (BOUND, pod(container(gpu=1), annotations=noted(isolation="hard"), nodeName="n1"), "alice", "bound-annotation"),
        (
            BOUND,
            pod(container(gpu=1), annotations=noted(isolation="soft", gang="g", gang_size="2"), nodeName="n1"),
            "alice",
            "bound-annotation",
        ),
        (
            BOUND,
            BOUND | {"metadata": BOUND["metadata"] | {"labels": {"kerf.dev/queue": "mine"}}},
            "alice",
            "bound-queue",
        ),
        (
            BOUND,
            pod(container(gpu=1), annotations=noted(isolation="soft") | GRANT, nodeName="n1"),
            "alice",
            "spoofed-grant",
        ),
        (pod(container(gpu=1), annotations=GRANT), pod(container(gpu=1)), "system:admin", "spoofed-grant"),
        (
            pod(container(gpu=1)),
            pod(container(gpu=1), annotations=noted(isolation="maximum")),
            "alice",
            "bad-annotation",
        ),
        (
            BOUND,
            BOUND | {"spec": BOUND["spec"] | {"ephemeralContainers": [container("debug", slot=1)]}},
            "alice",
            "ephemeral-gpu",
        ),
    ],
)
def test_a_change_that_would_make_pod_and_book_differ_is_refused(
    old: dict[str, Any], new: dict[str, Any], user: str, code: str
) -> None:
    """After creation only the watcher writes the grant. After binding the fields behind the decision are immutable."""
    answer = review(Request(pod=new, old=old, operation="UPDATE", user=user), Policy())
    assert isinstance(answer, Refused), answer
    assert answer.code == code


@pytest.mark.parametrize(
    ("old", "new", "user"),
    [
        (BOUND, BOUND | {"metadata": BOUND["metadata"] | {"labels": {"a": "b"}}}, "alice"),
        (pod(container(gpu=1)), pod(container(gpu=1), annotations=noted(isolation="hard")), "alice"),
        (
            BOUND,
            pod(container(gpu=1), annotations=noted(isolation="soft") | GRANT, nodeName="n1"),
            "system:serviceaccount:kerf-system:kerf-watcher",
        ),
        (pod(container()), pod(container(), annotations=noted(isolation="whatever")), "alice"),
    ],
)
def test_a_harmless_change_passes(old: dict[str, Any], new: dict[str, Any], user: str) -> None:
    """Labels, a pending pod's wishes, the watcher's grant, and pods without GPUs are none of the webhook's business."""
    assert not isinstance(review(Request(pod=new, old=old, operation="UPDATE", user=user), Policy()), Refused)


def test_an_annotation_that_is_null_is_the_empty_text() -> None:
    """As Kubernetes' own decoder reads it: a grant that is null is one that Kerf did not write."""
    refused = review(Request(pod=pod(container(gpu=1), annotations={"kerf.dev/grant": None})), Policy())
    assert isinstance(refused, Refused)
    assert refused.code == "spoofed-grant"
