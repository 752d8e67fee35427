"""What of the kubelet's amounts is kept, with Kubernetes' own resize."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from shared.model.objects import Pod
from shared.model.pod_resize import is_infeasible, resizing, without_settled


def status(name: str, cpu: str, memory: str, *, allocated: str = "") -> dict[str, Any]:
    held = {"cpu": cpu, "memory": memory}
    return {"name": name, "allocatedResources": held | {"cpu": allocated or cpu}, "resources": {"requests": held}}


def pod(*statuses: dict[str, Any], init: tuple[dict[str, Any], ...] = (), **more: Any) -> Pod:
    container = {"name": "c", "resources": {"requests": {"cpu": "1", "memory": "1Gi"}, "limits": {"kerf.dev/gpu": "1"}}}
    sidecar = {"name": "s", "restartPolicy": "Always", "resources": {"requests": {"cpu": "1"}}}
    spec = {"containers": [container], "initContainers": [sidecar, {"name": "i"}], "resources": more.pop("own", None)}
    told = {"containerStatuses": statuses, "initContainerStatuses": init, **more}
    return msgspec.convert({"kind": "Pod", "metadata": {"name": "p"}, "spec": spec, "status": told}, Pod)


@pytest.mark.parametrize("seen", [
    pod(),
    pod({"name": "c"}),
    pod(status("c", "1000m", "1073741824")),
    pod(status("gone", "5", "1Gi")),
    pod(init=(status("s", "1", "1Gi"), status("i", "5", "1Gi"))),
    pod(own={"requests": {"cpu": "2"}}, resources={"requests": {"cpu": "2"}}, allocatedResources={"cpu": "2"}),
])  # fmt: skip
def test_amounts_that_the_spec_has_are_dropped(seen: Pod) -> None:
    assert resizing(without_settled(seen)) == ()


@pytest.mark.parametrize("seen", [
    pod(status("c", "2", "1Gi")),
    pod(status("c", "1", "2Gi")),
    pod(status("c", "1", "1Gi", allocated="2")),
    pod(status("c", "no quantity", "1Gi")),
    pod(init=(status("s", "2", "1Gi"),)),
    pod(own={"requests": {"cpu": "2"}}, resources={"requests": {"cpu": "3"}}, allocatedResources={"cpu": "2"}),
])  # fmt: skip
def test_amounts_that_differ_from_the_spec_are_kept(seen: Pod) -> None:
    kept = without_settled(seen)
    assert kept == seen
    assert resizing(kept) != ()


def test_only_the_containers_that_differ_are_kept() -> None:
    kept = without_settled(pod(status("c", "1", "1Gi"), init=(status("s", "2", "1Gi"),)))
    assert (kept.status.container_statuses, [one.name for one in kept.status.init_container_statuses]) == ((), ["s"])


@pytest.mark.parametrize(("told", "infeasible"), [
    ({}, False),
    ({"conditions": [{"type": "PodResizePending", "status": "True", "reason": "Infeasible"}]}, True),
    ({"conditions": [{"type": "PodResizePending", "status": "True", "reason": "Deferred"}]}, False),
    ({"conditions": [{"type": "PodResizeInProgress", "status": "True"}]}, False),
    ({"resize": "Infeasible"}, True),
    ({"resize": "Deferred"}, False),
])  # fmt: skip
def test_what_can_never_be_carried_out_is_told_in_two_ways(told: dict[str, Any], infeasible: bool) -> None:
    assert is_infeasible(pod(**told)) is infeasible
