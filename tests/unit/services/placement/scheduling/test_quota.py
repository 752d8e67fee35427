"""What-if and the ResourceQuotas of a namespace."""

from __future__ import annotations

from typing import Any

import pytest

from shared.book.states import pod_state
from shared.model.kube_object import Meta
from shared.model.objects import Container, Pod, ResourceQuota, Resources
from tests.support import build
from tests.support.harness.placement import Placement


def quota(
    hard: dict[str, str], used: dict[str, str] | None = None, *, namespace: str = "team", **spec: Any
) -> ResourceQuota:
    meta = Meta(name="gpus", namespace=namespace, uid=f"uid-q-{namespace}", resource_version=build.next_version())
    return ResourceQuota(metadata=meta, spec={"hard": hard, **spec}, status={"hard": hard, "used": used or {}})


def asked(limits: dict[str, str], init: dict[str, str] | None = None) -> Pod:
    inits = (Container(name="i", resources=Resources(limits=init)),) if init else ()
    return build.pod("p", limits=limits, init_containers=inits)


@pytest.mark.parametrize(
    ("given", "pod", "sentence"),
    [
        (
            quota({"requests.kerf.dev/gpu-memory": "40Gi"}, {"requests.kerf.dev/gpu-memory": "30Gi"}),
            asked({"kerf.dev/gpu-memory": "16Gi"}),
            "ResourceQuota gpus has 10 GiB of kerf.dev/gpu-memory left, the pod asks for 16 GiB",
        ),
        (
            quota({"requests.kerf.dev/gpu": "0"}),
            asked({"kerf.dev/gpu": "1"}),
            "ResourceQuota gpus has 0 of kerf.dev/gpu left, the pod asks for 1",
        ),
        (
            quota({"requests.kerf.dev/gpu-memory": "16Gi"}),
            asked({"kerf.dev/gpu-memory": "10Gi"}, {"kerf.dev/gpu-memory": "10Gi"}),
            "",
        ),
        (quota({"requests.kerf.dev/gpu": "0"}, namespace="other"), asked({"kerf.dev/gpu": "1"}), ""),
        (quota({"requests.kerf.dev/gpu": "0"}, scopes=["BestEffort"]), asked({"kerf.dev/gpu": "1"}), ""),
        (
            quota({"requests.kerf.dev/gpu-memory": "1Gi"}, {"requests.kerf.dev/gpu-memory": "2Gi"}),
            asked({"kerf.dev/gpu": "1"}),
            "",
        ),
        (quota({"limits.cpu": "1", "requests.kerf.dev/mig-1g.5gb": "3"}), asked({"kerf.dev/gpu": "1"}), ""),
        (
            quota({"requests.kerf.dev/mig-1g.5gb": "3"}, {"requests.kerf.dev/mig-1g.5gb": "3"}),
            asked({"kerf.dev/mig-1g.5gb": "1"}),
            "ResourceQuota gpus has 0 of kerf.dev/mig-1g.5gb left, the pod asks for 1",
        ),
    ],
)
def test_what_if_for_a_new_pod_names_the_quota_that_it_would_exceed(
    given: ResourceQuota, pod: Pod, sentence: str
) -> None:
    placement = Placement(given).nodes("n")
    explanation = placement.core.explainer.why(pod_state(pod), max_nodes=1, exists=False)
    assert [(r.code, r.sentence) for r in explanation.summary if r.code == "quota"] == (
        [("quota", sentence)] if sentence else []
    )
    assert (explanation.state == "refused") == bool(sentence)


def test_a_pod_that_exists_has_been_counted_already() -> None:
    placement = Placement(quota({"requests.kerf.dev/gpu": "0"})).nodes("n")
    assert placement.place(build.gpu_pod("p", gpus=1)) == {"p": "n"}
