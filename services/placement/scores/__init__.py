"""The scores: what makes one feasible node better than another. One file each; a new score is one line here.
Other packages add scores by the entry point `kerf.scores`."""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

from services.placement.scores.base import ClusterScore, ColumnScore, NodeScore, Score
from services.placement.scores.cpu_apart import CpuApart, FullestCpu
from services.placement.scores.expected_slowdown import ExpectedSlowdown
from services.placement.scores.gpu_links import GpuLinks
from services.placement.scores.gpu_policy import GpuPolicy
from services.placement.scores.gpu_preference import GpuPreference
from services.placement.scores.host_bandwidth import HostBandwidth
from services.placement.scores.preferred_node import PreferNoSchedule, PreferredNode
from services.placement.scores.preferred_pods import PreferredPods, PreferredSpread
from shared import plugins

BUILT_IN: tuple[Score, ...] = (
    GpuPolicy(),
    ExpectedSlowdown(),
    GpuLinks(),
    CpuApart(),
    FullestCpu(),
    PreferredNode(),
    PreferNoSchedule(),
    GpuPreference(),
    HostBandwidth(),
    PreferredPods(),
    PreferredSpread(),
)


class Scores(NamedTuple):
    """By scope."""

    columns: tuple[ColumnScore, ...]
    node: tuple[NodeScore, ...]
    cluster: tuple[ClusterScore, ...]


@cache
def scores() -> Scores:
    """The built-in scores, then those of plug-ins. Raises plugins.PluginError."""
    every = (*BUILT_IN, *plugins.load("kerf.scores", Score, (one.name for one in BUILT_IN)))
    for one in every:
        if not isinstance(one, (ColumnScore, NodeScore, ClusterScore)):
            problem = "it is none of ColumnScore, NodeScore and ClusterScore; derive it from one of these"
            raise plugins.refuse("kerf.scores", one.name, problem)
    return Scores(
        tuple(one for one in every if isinstance(one, ColumnScore)),
        tuple(one for one in every if isinstance(one, NodeScore)),
        tuple(one for one in every if isinstance(one, ClusterScore)),
    )


__all__ = ["BUILT_IN", "Scores", "scores"]
