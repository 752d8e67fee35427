"""The canary on the fake driver: it proves a library that keeps the limits, and detects one that does not."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from services.node_agent.canary.run import LIMIT_BYTES, Canary, CanaryError, in_a_namespace
from services.node_agent.devices.nvml import NvmlDevices
from services.node_agent.strategies.interposer import CONTAINER_DIR
from tests.support.native import built
from tests.support.pod_cgroups import pod_tree
from tests.unit.services.node_agent.devices.machine import load

UUID = "GPU-00000000-0000-0000-0000-000000000001"
"""The UUID of the fake driver's first GPU."""


@pytest.fixture
async def nvml(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> NvmlDevices:
    load()
    (tmp_path / "machine").write_text(f"driver 580.1\ngpu 0 {UUID} GPU 16384 0000:01:00.0 0 9 0 0 0\n")
    monkeypatch.setenv("KERF_FAKE_NVML_STATE", str(tmp_path / "machine"))
    made = NvmlDevices(timeout_s=5.0, sysfs=Path("/nowhere"))
    await made.inventory("n", "b")
    return made


def canary(
    build: Path,
    tmp_path: Path,
    library: Path | None,
    driver: Path | None = None,
    *,
    limit: Any = None,
    cgroups: Path | None = None,
    **environment: str,
) -> Canary:
    def under(folder: Path, command: Sequence[str]) -> Sequence[str]:
        return ["env", *([f"LD_PRELOAD={library}"] if library else []), *command]

    return Canary(
        build=build,
        folder=tmp_path / "canary",
        libcuda=str(driver or build / "libcuda.so.1"),
        clock=lambda: 1 << 62,
        under=under,
        limit=limit,
        cgroups=cgroups,
        environment={"KERF_FAKE_CUDA": str(tmp_path / "world")} | environment,
    )


async def test_the_interposer_is_proven_on_every_allocation_path(build: Path, tmp_path: Path) -> None:
    proof = await canary(build, tmp_path, build / "test" / "libkerf.so").run(UUID, "580.1", "digest", 5)
    assert (proof.ok, proof.sentence, proof.turns_sentence) == (True, "", "")
    assert (proof.driver_version, proof.library, proof.max_memory_bytes, len(proof.paths)) == (
        "580.1",
        "digest",
        LIMIT_BYTES,
        9,
    )
    assert abs(proof.share_got_milli - 300) <= 20
    assert not (tmp_path / "canary").exists()


async def test_time_slicing_is_proven_by_two_slices_that_are_busy_at_once(build: Path, tmp_path: Path) -> None:
    """Of equal rank: the driver's time slices. Of different rank: the lower one gets only what its bound leaves it."""
    proof = await canary(build, tmp_path, build / "test" / "libkerf.so").run(UUID, "580.1", "digest", 5)
    assert proof.turns_sentence == ""
    first, second, higher, lower = proof.turns_milli
    assert (abs(first - 500) <= 50, abs(second - 500) <= 50) == (True, True)
    assert (higher > 900, lower < 100) == (True, True)
    assert not (tmp_path / "canary-first").exists()


async def test_the_length_of_the_kernel_is_measured_once_before_probes_run_at_once(build: Path, tmp_path: Path) -> None:
    """On a GPU two probes that measured it at once took each other's time for their own kernels', and one that waited
    for its turn measured it when the other had ended: their shares could not be told apart."""
    folder, log = tmp_path / "build", tmp_path / "log"
    folder.mkdir()
    (folder / "probe").write_text(
        f'#!/bin/sh\necho "$2 ${{KERF_PROBE_STEPS_PER_NS:-unknown}} ${{LD_PRELOAD:-without}}" >> {log}\n'
        f'exec {build / "probe"} "$@"\n'
    )
    (folder / "probe").chmod(0o755)
    proof = await canary(folder, tmp_path, build / "test" / "libkerf.so", build / "libcuda.so.1").run(
        UUID, "580.1", "digest", 5
    )
    assert proof.ok
    ran = [line.split() for line in log.read_text().splitlines()]
    assert [line for line in ran if line[0] == "calibrate"] == [["calibrate", "unknown", "without"]] * 2
    loops = [line[1] for line in ran if line[0] == "loop"]
    assert len(loops) == 5, "the share, and two pairs"
    assert set(loops) == {"1.0"}, "the fake driver's kernel takes the time that it is asked for"
    names = [line[0] for line in ran]
    assert max(at for at, name in enumerate(names) if name == "calibrate") < names.index("loop")


def compiler(folder: Path) -> None:
    """An empty library in place of the driver's compiler."""
    (folder / "jit.c").write_text("int kerf_no_compiler;\n")
    soname = "-Wl,-soname,libnvidia-ptxjitcompiler.so.1"
    made = folder / "libnvidia-ptxjitcompiler.so.580.1"
    subprocess.run(["cc", "-shared", soname, "-o", str(made), str(folder / "jit.c")], check=True)


async def test_a_driver_that_compiles_nothing_is_named_with_the_library_that_it_lacks(
    build: Path, tmp_path: Path
) -> None:
    """The agent sees the host's driver under another path, where the linker does not look."""
    driver = tmp_path / "libcuda.so.580.1"
    shutil.copy(build / "libcuda.so.1", driver)
    made = canary(build, tmp_path, build / "test" / "libkerf.so", driver, KERF_FAKE_CUDA_JIT="1")
    with pytest.raises(CanaryError, match=r"libnvidia-ptxjitcompiler\.so\.1 is missing"):
        await made.run(UUID, "580.1", "digest", 5)
    compiler(tmp_path)
    assert (await made.run(UUID, "580.1", "digest", 5)).sentence == ""


async def test_a_context_is_measured_by_what_nvml_reports_for_the_probe_itself(build: Path, tmp_path: Path) -> None:
    """Also while others use the GPU, which changes its free memory."""
    (tmp_path / "machine").write_text(
        f"driver 580.1\ngpu 0 {UUID} GPU 16384 0000:01:00.0 0 9 0 0 0\nprocess 0 self 417\n"
    )
    driver = {
        "KERF_FAKE_NVML_STATE": str(tmp_path / "machine"),
        "LD_LIBRARY_PATH": str(built("nvml")),
        "KERF_FAKE_CUDA_CONTEXT_MIB": "311",
    }
    proof = await canary(build, tmp_path, build / "test" / "libkerf.so", **driver).run(UUID, "580.1", "digest", 5)
    assert (proof.context_bytes, proof.seen_bytes) == (417 << 20, 417 << 20)


@pytest.mark.parametrize(
    ("managed", "state", "why"),
    [("1", "holds", ""), ("0", "managed-passes", "cuMemAllocManaged gave 1610612736 bytes, the driver's limit is")],
)
async def test_the_drivers_limit_is_proven_by_a_probe_without_the_library_in_a_cgroup_of_its_own(
    build: Path, tmp_path: Path, nvml: NvmlDevices, monkeypatch: pytest.MonkeyPatch, managed: str, state: str, why: str
) -> None:
    monkeypatch.setenv("KERF_FAKE_LIMITS", str(tmp_path / "limits"))
    with pod_tree("v2") as tree:
        made = canary(
            build,
            tmp_path,
            build / "test" / "libkerf.so",
            limit=nvml.limit_memory,
            cgroups=tree.root,
            KERF_FAKE_LIMITS_MANAGED=managed,
        )
        proof = await made.run(UUID, "580.1", "digest", 5)
        assert (proof.ok, proof.driver_limit, why in proof.driver_limit_sentence) == (True, state, True)
        assert [path.name for path in tree.root.iterdir() if path.is_dir()] == []
    assert (tmp_path / "limits").read_text() == ""


async def test_a_driver_and_a_host_without_such_limits_are_told_apart_from_limits_that_fail(
    build: Path, tmp_path: Path, nvml: NvmlDevices, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = build / "test" / "libkerf.so"
    proof = await canary(build, tmp_path, library, limit=nvml.limit_memory).run(UUID, "580.1", "digest", 5)
    assert proof.driver_limit == "none"
    assert proof.driver_limit_sentence == "the host has no cgroups of version 2 for pods"
    with pod_tree("v2") as tree:
        made = canary(build, tmp_path, library, limit=nvml.limit_memory, cgroups=tree.root)
        proof = await made.run(UUID, "580.1", "digest", 5)
        assert (proof.driver_limit, proof.driver_limit_sentence) == ("none", "NVML: Not Supported")
        monkeypatch.setenv("KERF_FAKE_LIMITS", str(tmp_path / "limits"))
        monkeypatch.setenv("KERF_FAKE_LIMITS_DEAF", "1")
        proof = await made.run(UUID, "580.1", "digest", 5)
        assert (proof.driver_limit, "was told a limit" in proof.driver_limit_sentence) == ("fails", True)


async def test_cgroups_that_the_agent_cannot_change_prove_no_limit_of_the_driver_and_leave_the_rest_proven(
    build: Path, tmp_path: Path, nvml: NvmlDevices
) -> None:
    """For example where an agent has the host's cgroups mounted read-only."""
    (tmp_path / "cgroups").write_text("no directory")
    library = build / "test" / "libkerf.so"
    made = canary(build, tmp_path, library, limit=nvml.limit_memory, cgroups=tmp_path / "cgroups")
    proof = await made.run(UUID, "580.1", "digest", 5)
    assert (proof.ok, proof.sentence, proof.driver_limit) == (True, "", "fails")
    assert "kerf-canary: Not a directory" in proof.driver_limit_sentence


async def test_the_canary_runs_on_the_gpu_that_it_is_given(build: Path, tmp_path: Path) -> None:
    uuid = UUID.removesuffix("1") + "2"
    made = canary(build, tmp_path, build / "test" / "libkerf.so", KERF_FAKE_CUDA_DEVICES="2")
    proof = await made.run(uuid, "580.1", "digest", 5)
    assert (proof.sentence, proof.gpu) == ("", uuid)


async def test_the_memory_of_contexts_and_pools_is_measured(build: Path, tmp_path: Path) -> None:
    """Measured without the interposer, which would report the smaller slice."""
    driver = {
        "KERF_FAKE_CUDA": str(tmp_path / "world"),
        "KERF_FAKE_CUDA_CONTEXT_MIB": "311",
        "KERF_FAKE_CUDA_POOL_KIB": "32768",
    }
    proof = await canary(build, tmp_path, build / "test" / "libkerf.so", **driver).run(UUID, "580.1", "digest", 5)
    assert (proof.sentence, proof.context_bytes, proof.pool_chunk_bytes) == ("", 311 << 20, 32 << 20)
    assert proof.seen_bytes == 0, "no NVML answers here"


async def test_the_canary_fails_without_the_interposer(build: Path, tmp_path: Path) -> None:
    """This is the purpose of the canary: it detects a library that is not preloaded, for whatever reason."""
    proof = await canary(build, tmp_path, None).run(UUID, "580.1", "digest", 5)
    assert not proof.ok
    assert "cuMemGetInfo shows" in proof.sentence


async def test_an_unreachable_driver_proves_and_disproves_nothing(build: Path, tmp_path: Path) -> None:
    with pytest.raises(CanaryError, match="ended with status 3"):
        await canary(build, tmp_path, None, tmp_path / "none.so").run(UUID, "580.1", "digest", 5)


@pytest.fixture
def place() -> Iterator[None]:
    """Where a container has its control block. The canary creates it in this host's own file system."""
    inside = Path(CONTAINER_DIR)
    stood = inside.exists()
    yield
    if not stood and inside.exists():
        inside.rmdir()


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts the control block where a container has it")
async def test_the_shipped_library_finds_its_page_in_a_mount_namespace(
    build: Path, tmp_path: Path, place: None
) -> None:
    """It knows no other path than /run/kerf, and reads none from the environment."""
    under = in_a_namespace(build / "libkerf.so")
    made = Canary(
        build=build,
        folder=tmp_path / "canary",
        libcuda=str(build / "libcuda.so.1"),
        clock=lambda: 1 << 62,
        under=under,
        environment={"KERF_FAKE_CUDA": str(tmp_path / "world")},
    )
    try:
        proof = await made.run(UUID, "580.1", "digest", 5)
    except CanaryError as error:
        if "unshare" in str(error):
            pytest.skip(f"mount namespaces are not available here: {error}")
        raise
    assert (proof.ok, proof.sentence, proof.turns_sentence) == (True, "", "")
