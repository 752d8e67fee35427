"""A manifest of an API version that is gone gets an answer that says what to change."""

from __future__ import annotations

from pathlib import Path

import pytest

from cli.apply import read_manifests
from cli.output import Failure

GPUSHARE = """
apiVersion: apps/v1beta1
kind: StatefulSet
metadata: {name: binpack-1, labels: {app: binpack-1}}
spec:
  replicas: 3
  serviceName: binpack-1
  podManagementPolicy: Parallel
  template:
    metadata: {labels: {app: binpack-1}}
    spec:
      containers:
      - {name: binpack-1, image: cheyang/gpu-player:v2, resources: {limits: {aliyun.com/gpu-mem: 3}}}
"""
"""The StatefulSet of gpushare's own talk (AliyunContainerService/gpushare-scheduler-extender, docs/userguide.md)."""


def test_gpushares_statefulset_as_it_was_shown_is_answered_with_what_to_write(tmp_path: Path) -> None:
    file = tmp_path / "statefulset.yaml"
    file.write_text(GPUSHARE)
    with pytest.raises(Failure, match=r"StatefulSet binpack-1: apps/v1beta1 is not served since Kubernetes 1\.16; "
                       r"write apiVersion: apps/v1 and add spec\.selector\.matchLabels") as refusal:  # fmt: skip
        read_manifests(str(file))
    selector = "  selector: {matchLabels: {app: binpack-1}}\n"
    file.write_text(GPUSHARE.replace("apps/v1beta1", "apps/v1") + selector)
    assert [document["kind"] for document in read_manifests(str(file))] == ["StatefulSet"], refusal.value
    file.write_text(GPUSHARE + selector)
    with pytest.raises(Failure, match=r"write apiVersion: apps/v1$"):
        read_manifests(str(file))
