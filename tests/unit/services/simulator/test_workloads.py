"""Workloads as pods."""

from __future__ import annotations

from typing import Any

import pytest

from services.simulator.workloads import ManifestError, pods_of


def workload(kind: str, **spec: Any) -> dict[str, Any]:
    template = {
        "metadata": {"labels": {"app": "web"}, "annotations": {"n": "1"}},
        "spec": {"containers": [{"name": "c"}]},
    }
    return {"kind": kind, "metadata": {"name": "web", "namespace": "team"}, "spec": {"template": template, **spec}}


@pytest.mark.parametrize(
    ("manifest", "names", "ordered"),
    [
        (workload("StatefulSet", replicas=3), ["web-0", "web-1", "web-2"], True),
        (workload("StatefulSet", replicas=2, podManagementPolicy="Parallel"), ["web-0", "web-1"], False),
        (workload("Deployment"), ["web-0"], False),
        (workload("Deployment", replicas=0), [], False),
        (workload("Job", completions=2), ["web-0", "web-1"], False),
        (workload("Job", completions=4, parallelism=2), ["web-0", "web-1"], False),
    ],
)
def test_each_kind_has_its_pods(manifest: Any, names: list[str], ordered: bool) -> None:
    pods, waits = pods_of(manifest)
    assert ([pod["metadata"]["name"] for pod in pods], waits) == (names, ordered)


def test_a_pod_has_its_templates_fields_and_its_owner() -> None:
    pod = pods_of(workload("StatefulSet"))[0][0]
    assert pod["metadata"]["namespace"] == "team"
    assert pod["metadata"]["annotations"] == {"n": "1"}
    assert pod["metadata"]["labels"] == {
        "app": "web",
        "apps.kubernetes.io/pod-index": "0",
        "statefulset.kubernetes.io/pod-name": "web-0",
    }
    assert pod["spec"] == {"containers": [{"name": "c"}], "hostname": "web-0"}
    owner = pod["metadata"]["ownerReferences"][0]
    assert (owner["kind"], owner["name"], owner["controller"]) == ("StatefulSet", "web", True)


@pytest.mark.parametrize(
    ("manifest", "wanted"),
    [
        ({"kind": "CronJob"}, "not known"),
        ({"kind": "Job"}, "metadata.name"),
        ({"kind": "Job", "metadata": {"name": "j"}}, r"spec\.template\.spec"),
        (workload("Deployment", replicas="3"), r"spec\.replicas"),
        (workload("Deployment", replicas=-1), r"spec\.replicas"),
        (workload("Job", parallelism=True), r"spec\.parallelism"),
    ],
)
def test_an_invalid_manifest_is_refused_with_the_field(manifest: Any, wanted: str) -> None:
    with pytest.raises(ManifestError, match=wanted):
        pods_of(manifest)


def test_a_gang_with_a_jobs_size_has_the_size_on_its_pods() -> None:
    job = workload("Job", parallelism=3)
    job["spec"]["template"]["metadata"]["annotations"] |= {"kerf.dev/gang": "web", "kerf.dev/gang-size": "owner"}
    pods, _ = pods_of(job)
    assert {pod["metadata"]["annotations"]["kerf.dev/gang-size"] for pod in pods} == {"3"}
