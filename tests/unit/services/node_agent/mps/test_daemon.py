"""How the agent finds the processes of an MPS daemon, and runs the programs of the host."""

from __future__ import annotations

from pathlib import Path

import pytest

from services.node_agent.cdi.host import Host
from services.node_agent.config import Config
from services.node_agent.log_files import LOG_BYTES, LOG_KEPT_BYTES
from services.node_agent.mps.daemon import Daemon, Process, Tools, find, tools_of

PIPE = Path("/run/kerf/mps/GPU-1/pipe")
POD = "1:name=systemd:/kubepods/burstable/pod0a1b2c3d-0000-4000-8000-000000000000/" + "f" * 64


def process(
    proc: Path, pid: int, *words: str, pipe: Path = PIPE, cgroup: str = "0::/kerf-mps", state: str = "S"
) -> None:
    folder = proc / str(pid)
    folder.mkdir(parents=True)
    (folder / "cmdline").write_bytes(b"".join(word.encode() + b"\0" for word in words))
    (folder / "environ").write_bytes(f"PATH=/bin\0CUDA_MPS_PIPE_DIRECTORY={pipe}\0".encode())
    (folder / "stat").write_text(f"{pid} (nvidia-cuda-mps) {state} 1 1\n")
    (folder / "cgroup").write_text(f"{cgroup}\n")


def test_daemon_and_servers_of_one_pipe_directory_are_found(tmp_path: Path) -> None:
    process(tmp_path, 30, "nvidia-cuda-mps-server")
    process(tmp_path, 20, "/usr/bin/nvidia-cuda-mps-control", "-d", "-multiuser-server")
    process(tmp_path, 40, "nvidia-cuda-mps-control", "-d", pipe=PIPE.parent / "other")
    process(tmp_path, 50, "nvidia-cuda-mps-control")
    process(tmp_path, 60, "python", "train.py")
    process(tmp_path, 70, "nvidia-cuda-mps-server", state="Z")
    (tmp_path / "meminfo").touch()
    assert find(PIPE, tmp_path) == (Process(20, True), Process(30, False))


def test_a_container_cannot_have_its_processes_ended_in_place_of_a_daemons(tmp_path: Path) -> None:
    """Name and environment are what a program says of itself; its cgroup is not."""
    process(tmp_path, 20, "nvidia-cuda-mps-control", "-d", cgroup=POD)
    assert find(PIPE, tmp_path) == ()


def test_an_agent_in_a_container_runs_the_hosts_program_in_the_hosts_mount_namespace(tmp_path: Path) -> None:
    (tmp_path / "proc/1/ns").mkdir(parents=True)
    (tmp_path / "proc/1/ns/mnt").touch()
    host = Host(root=tmp_path, driver_root="/run/nvidia/driver")
    tools = tools_of(host, "", cgroups=tmp_path, lock=tmp_path / "lock")
    assert tools.program == "/run/nvidia/driver/usr/bin/nvidia-cuda-mps-control"
    assert tools.prefix == ("nsenter", f"--mount={tmp_path}/proc/1/ns/mnt", "--")
    assert tools.environment["LD_LIBRARY_PATH"].startswith("/run/nvidia/driver/usr/lib64:")
    assert tools.environment["PATH"].startswith("/run/nvidia/driver/usr/bin:")
    own = tools_of(Host(), "/opt/control", cgroups=tmp_path, lock=tmp_path / "lock")
    assert (own.program, own.prefix, "LD_LIBRARY_PATH" in own.environment) == ("/opt/control", (), False)
    assert own.environment.keys() == {"PATH"}, "nothing of the agent, which has secrets in its environment"


@pytest.mark.parametrize(
    ("patterns", "shared"), [((), False), (("gpu-a-*",), True), (("gpu-b-*",), False), (("gpu-b-*", "*"), True)]
)
def test_the_operator_names_the_nodes_that_share_by_mps(patterns: tuple[str, ...], shared: bool) -> None:
    assert Config(node="gpu-a-7", mps_nodes=patterns).mps is shared


async def test_the_logs_of_a_daemon_are_cut(tmp_path: Path) -> None:
    """It writes down each question of the agent's, of which there are many in every round."""
    daemon = Daemon("GPU-1", tmp_path / "GPU-1", Tools(program=""))
    await daemon.shorten_logs()
    log = tmp_path / "GPU-1" / "log" / "control.log"
    log.parent.mkdir(parents=True)
    log.write_bytes(b"[2026-01-01 00:00:00.000 Control 1] Accepting connection...\n" * (LOG_BYTES // 40))
    await daemon.shorten_logs()
    assert log.stat().st_size <= LOG_KEPT_BYTES
