"""What an agent begins with: its checkpoint, or none. Where that is lost it waits until no pod with a slice runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from services.node_agent.cdi.spec import ContainerEdits
from services.node_agent.cdi.writer import SpecDir
from services.node_agent.checkpoint import CheckpointFile
from services.node_agent.config import Config
from services.node_agent.first_checkpoint import load
from services.node_agent.state import Checkpoint, CheckpointError
from tests.unit.services.node_agent.make import NODE, agent, grant

UIDS = [f"3f0c9b1e-7a55-4c1b-9a43-2f6f0f3a8d1{number}" for number in range(7)]


@pytest.fixture
def config(tmp_path: Path) -> Config:
    (tmp_path / "kubelet").mkdir()
    (tmp_path / "cgroup").mkdir()
    (tmp_path / "cgroup" / "cgroup.procs").touch()
    return Config(
        node=NODE,
        checkpoint_file=str(tmp_path / "state" / "agent.json"),
        kubelet_dir=str(tmp_path / "kubelet"),
        cdi_dir=str(tmp_path / "cdi"),
        cgroup_dir=str(tmp_path / "cgroup"),
    )


def begin(config: Config) -> Checkpoint:
    return load(CheckpointFile(Path(config.checkpoint_file)), config)


def cgroup_of(config: Config, uid: str) -> Path:
    return Path(config.cgroup_dir) / "kubepods" / "burstable" / f"pod{uid}"


def run(config: Config, *uids: str) -> None:
    """A pod with a slice, as an agent and the kubelet leave it."""
    for uid in uids:
        SpecDir(Path(config.cdi_dir), "kerf.dev/slice").write(("k1",), uid, "c", ContainerEdits(env=("A=1",)))
        folder = cgroup_of(config, uid) / "cri-containerd-0a"
        folder.mkdir(parents=True)
        (folder / "cgroup.procs").write_text("7\n")


def test_a_checkpoint_is_loaded_whatever_runs(config: Config) -> None:
    saved = agent(grant("a")).checkpoint()
    CheckpointFile(Path(config.checkpoint_file)).save(saved)
    run(config, UIDS[0])
    assert begin(config) == saved


def test_each_new_host_draws_an_id_of_its_own(config: Config) -> None:
    first, second = begin(config), begin(config)
    assert (first.node, first.known, first.term) == (NODE, (), 0)
    assert first.checkpoint_id
    assert first.checkpoint_id != second.checkpoint_id


def test_a_host_that_has_lost_its_checkpoint_offers_nothing_while_pods_run_with_slices(config: Config) -> None:
    run(config, UIDS[0])
    with pytest.raises(CheckpointError, match=rf"UIDs {UIDS[0]}\).*Drain the GPU pods of node {NODE}"):
        begin(config)
    (cgroup_of(config, UIDS[0]) / "cri-containerd-0a" / "cgroup.procs").write_text("")
    assert begin(config).checkpoint_id, "the kubelet keeps the cgroup until the agent has unprepared the claims"


def test_with_cgroup_v2_the_kernel_tells_whether_a_process_is_below(config: Config) -> None:
    run(config, UIDS[0])
    (cgroup_of(config, UIDS[0]) / "cgroup.events").write_text("populated 0\nfrozen 0\n")
    assert begin(config).checkpoint_id
    (cgroup_of(config, UIDS[0]) / "cgroup.events").write_text("populated 1\nfrozen 0\n")
    with pytest.raises(CheckpointError, match=UIDS[0]):
        begin(config)


def test_a_pod_without_a_slice_is_no_reason(config: Config) -> None:
    run(config, UIDS[0])
    for file in Path(config.cdi_dir).iterdir():
        file.unlink()
    SpecDir(Path(config.cdi_dir), "kerf.dev/slice").write(("k1",), UIDS[1], "c", ContainerEdits())
    assert begin(config).checkpoint_id


def test_where_the_end_of_pods_cannot_be_seen_they_may_run(config: Config) -> None:
    SpecDir(Path(config.cdi_dir), "kerf.dev/slice").write(("k1",), UIDS[0], "c", ContainerEdits())
    with pytest.raises(CheckpointError, match=rf"no cgroups of pods in {config.cgroup_dir}"):
        begin(config)
    (Path(config.cgroup_dir) / "kubepods").mkdir()
    assert begin(config).checkpoint_id


def test_the_error_names_some_pods_and_counts_the_others(config: Config) -> None:
    run(config, *UIDS)
    with pytest.raises(CheckpointError, match=rf"{UIDS[0]}, .*{UIDS[4]} and 2 more\)"):
        begin(config)


def test_without_a_kubelet_nothing_was_handed_over(config: Config) -> None:
    run(config, UIDS[0])
    Path(config.kubelet_dir).rmdir()
    assert begin(config).checkpoint_id
