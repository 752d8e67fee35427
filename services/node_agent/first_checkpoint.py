"""The state that an agent starts with, also where there is no checkpoint: the host is new, or its checkpoint is lost.

Containers that run with slices tell which. To an agent without a checkpoint their GPUs would look free: it would report
them as released when their pods are deleted, while they still run.
"""

from __future__ import annotations

import secrets
from pathlib import Path

from services.node_agent.cdi.writer import is_of_pod, spec_files
from services.node_agent.checkpoint import CheckpointFile
from services.node_agent.config import Config
from services.node_agent.processes.pod_cgroups import PodCgroups
from services.node_agent.state import Checkpoint, CheckpointError

_NAMED_MOST = 5


def load(file: CheckpointFile, config: Config) -> Checkpoint:
    """What was saved last, or what a new host begins with.

    Raises CheckpointError if the file cannot be trusted, or if there is none and pods run, or may run, with GPUs of
    this node: they have a CDI spec of Kerf and processes in their cgroups. Whether a cgroup is left says nothing: the
    kubelet keeps it until the agent has unprepared the pod's ResourceClaims.
    """
    found = file.load(config.node)
    if found is not None:
        return found
    specs = spec_files(Path(config.cdi_dir)) if config.has_kubelet() else []
    if specs:
        _check_nothing_runs(file.path, specs, PodCgroups(Path(config.cgroup_dir)), config)
    return Checkpoint(node=config.node, checkpoint_id=secrets.token_hex(8))


def _check_nothing_runs(path: Path, specs: list[str], cgroups: PodCgroups, config: Config) -> None:
    missing = f"{path} is missing, and pods were handed GPUs here"
    if not cgroups.has_pod_cgroups():
        raise CheckpointError(
            f"{missing}: whether they still run cannot be seen, for there are no cgroups of pods in "
            f"{config.cgroup_dir}. Make sure that no GPU pod runs on node {config.node}, then delete {config.cdi_dir}/"
            "kerf-slice-*.json"
        )
    running = sorted(uid for uid in cgroups.populated() if any(is_of_pod(name, uid) for name in specs))
    if running:
        more = f" and {len(running) - _NAMED_MOST} more" if len(running) > _NAMED_MOST else ""
        raise CheckpointError(
            f"{missing} that still run (UIDs {', '.join(running[:_NAMED_MOST])}{more}): which GPUs are theirs is not "
            f"known any more. Drain the GPU pods of node {config.node}; the agent starts when they have ended"
        )
