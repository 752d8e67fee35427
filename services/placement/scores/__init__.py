"""The scores: what makes one feasible node better than another. One file each; a new score is one line here."""

from __future__ import annotations

from services.placement.scores.base import ClusterScore, ColumnScore, NodeScore
from services.placement.scores.cpu_apart import CpuApart, FullestCpu
from services.placement.scores.gpu_links import GpuLinks
from services.placement.scores.gpu_policy import GpuPolicy
from services.placement.scores.gpu_preference import GpuPreference
from services.placement.scores.preferred_node import PreferNoSchedule, PreferredNode
from services.placement.scores.preferred_pods import PreferredPods, PreferredSpread

COLUMN_SCORES: tuple[ColumnScore, ...] = (GpuPolicy(), GpuLinks(), CpuApart(), FullestCpu())
NODE_SCORES: tuple[NodeScore, ...] = (PreferredNode(), PreferNoSchedule(), GpuPreference())
CLUSTER_SCORES: tuple[ClusterScore, ...] = (PreferredPods(), PreferredSpread())

__all__ = ["CLUSTER_SCORES", "COLUMN_SCORES", "NODE_SCORES"]
