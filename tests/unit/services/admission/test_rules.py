"""The API server's own policies and the webhook know the same annotations."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args, get_type_hints

import pytest

from services.admission.rules import READ_ANNOTATIONS, check_life
from shared.model.request import TOPOLOGY_MODES, PodRequest, RequestError
from shared.model.request_reader import read_request
from tests.support import build

K8S = Path(__file__).parents[4] / "k8s"


def test_what_a_placement_was_decided_on_is_guarded_alike() -> None:
    policy = (K8S / "22-policy-grant.yaml").read_text()
    guarded = policy[policy.index("['kerf.dev/isolation'") : policy.index("].all(k,")]
    assert set(re.findall(r"'(kerf\.dev/[a-z-]+)'", guarded)) == set(READ_ANNOTATIONS)


def test_an_empty_annotation_is_none_that_is_missing() -> None:
    """Of most of them an empty one is refused by placement, and what is missing is not."""
    policy = (K8S / "22-policy-grant.yaml").read_text()
    compared = policy[policy.index("].all(k,", policy.index("['kerf.dev/isolation'")) :].splitlines()[1].strip()
    assert compared == "object.metadata.?annotations[?k] == oldObject.metadata.?annotations[?k])"


def test_choices_are_the_same_in_both() -> None:
    policy = (K8S / "21-policy-request.yaml").read_text()
    for annotation, choices in (
        ("topology-mode", TOPOLOGY_MODES),
        ("gpu-prefer", get_args(get_type_hints(PodRequest)["prefer"])[1:]),
    ):
        line = re.search(rf"notes\[\?'kerf\.dev/{annotation}'\]\.orValue\('[a-z0-9-]+'\) in \[([^\]]*)\]", policy)
        assert line is not None
        assert tuple(re.findall(r"'([a-z0-9-]+)'", line[1])) == choices


@pytest.mark.parametrize(
    ("key", "value", "fits"),
    [
        ("max-slowdown", "1", True),
        ("max-slowdown", "01.25", True),
        ("max-slowdown", "999.999", True),
        ("max-slowdown", "0.9", False),
        ("max-slowdown", "1.0004", False),
        ("max-slowdown", "1000", False),
        ("max-slowdown", "1e1", False),
        ("gpu-calls", "400.5", True),
        ("gpu-calls", "abc", False),
        ("gpu-transfer", "-1", False),
        ("gpu-use", "busy=60%, sm=40%,bandwidth=30.5%,request=6ms", True),
        ("gpu-use", "busy=60", False),
        ("gpu-use", "", False),
        ("gpu-use", "memory=12Gi", False),
    ],
)
def test_amounts_are_refused_alike_in_both_also_without_remote(key: str, value: str, fits: bool) -> None:
    policy = (K8S / "21-policy-request.yaml").read_text()
    line = next(line for line in policy.splitlines() if f"'kerf.dev/{key}'" in line and ".matches('" in line)
    pattern = re.search(r"\.matches\('(.*)'\)", line)
    assert pattern is not None
    assert bool(re.search(pattern[1], value)) == fits
    pod = build.gpu_pod("p", gpus=1, annotations={f"kerf.dev/{key}": value})
    if fits:
        assert read_request(pod) is not None
    else:
        with pytest.raises(RequestError) as refused:
            read_request(pod)
        assert refused.value.code == "bad-annotation"


@pytest.mark.parametrize(
    ("key", "value", "code"),
    [
        ("resize", "rubbish", "bad-resize"),
        ("resize", "memory=" + "9" * 2000, "bad-resize"),
        ("autoscale", "rubbish", "bad-annotation"),
        ("autoscale", "memory=1Gi.." + "9" * 2000, "bad-annotation"),
    ],
    ids=["resize", "long resize", "autoscale", "long autoscale"],
)
def test_sizes_are_refused_at_the_door(key: str, value: str, code: str) -> None:
    with pytest.raises(RequestError) as refused:
        check_life(build.gpu_pod("p", gpus=1, annotations={f"kerf.dev/{key}": value}))
    assert refused.value.code == code
    check_life(build.gpu_pod("p", gpus=1, annotations={"kerf.dev/resize": "memory=12Gi,compute=40"}))
