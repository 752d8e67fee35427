"""The real Karpenter starts as many nodes as Kerf needs, also for pods that mislead it by their sums.

Karpenter runs with the KWOK provider of its own project (kubernetes-sigs/karpenter `kwok/`); a node's kubelet and agent
are hollow. The NodePool and NodeOverlay are those of docs/examples/karpenter.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.autoscale.__main__ import never_fits, run, sixty_percent
from tests.support.cluster import binaries_or_skip
from tests.support.neighbours import controller_or_skip

pytestmark = pytest.mark.cluster


async def test_pods_that_only_seem_to_fit_on_nodes_get_nodes_and_none_is_started_in_excess(tmp_path: Path) -> None:
    """By sums 13 pods of 60 % fit on a node of eight GPUs. Without the taint the last ones would wait for ever."""
    binaries_or_skip("etcd", "kube-apiserver")
    controller_or_skip("karpenter")
    seen = await run(sixty_percent(12), 1, 120.0, tmp_path)
    assert (seen["pods_never_served"], seen["excess_nodes"], seen["nodes_started"]) == (0, 0, 2)
    assert seen["nodes_tainted"] > 0
    assert seen["capacity_wanted_events"] > 0
    assert seen["empty_nodes_removed_s"] is not None


async def test_a_pod_that_no_node_of_the_pool_can_take_has_no_nodes_started_without_end(tmp_path: Path) -> None:
    """Karpenter does not read kerf.dev/gpu-model. It starts a node once; Kerf must not tell it that this is full."""
    binaries_or_skip("etcd", "kube-apiserver")
    controller_or_skip("karpenter")
    seen = await run(never_fits(), 1, 25.0, tmp_path)
    assert (seen["pods_never_served"], seen["nodes_started"], seen["nodes_tainted"]) == (1, 1, 0)
