"""Attacks from inside a container, numbered as in docs/attacks.md.

An attack either gets no more than the slice, or the device has more memory in use than the control block counts. The
agent detects the latter with NVML.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import struct
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from services.node_agent.strategies.control_block import GpuRule, Rules
from tests.interposer.node import MIB, UUID, Container, Node, numbers

LIMIT = 100 * MIB
LOCK_AT = 0x40000000
Limited = Callable[[int], Container]


@pytest.mark.parametrize(
    "way", ["versioned", "namespace", "import", "unmapped", "partly", "sparse", "ipc", "retain", "unlock", "daemon"]
)
def test_the_attack_gets_no_more_than_the_limit(limited: Limited, way: str) -> None:
    (most,) = limited(LIMIT).run("attack", way)
    assert most <= LIMIT


def test_the_pool_of_another_gpu_is_charged_to_that_gpu(built: Path, tmp_path: Path) -> None:
    """Whatever the stream's GPU is. If the container does not have the other GPU, nothing is allocated."""
    node = Node(built, tmp_path / "node", devices=2)
    first = GpuRule(uuid=UUID, memory_limit_bytes=10 * LIMIT)
    both = node.container("both", Rules(gpus=(first, GpuRule(uuid=UUID[:-1] + "2", memory_limit_bytes=LIMIT))))
    (most,) = both.run("attack", "pool")
    assert LIMIT // 2 < most <= LIMIT
    assert node.container("one", Rules(gpus=(first,))).run("attack", "pool") == [0]


def test_older_forms_of_counted_calls_are_not_found_by_name_or_by_version(limited: Limited) -> None:
    """The fake driver exports them, as real drivers do, and they would allocate memory."""
    working, used = limited(LIMIT).run("attack", "first")
    assert (working, used) == (0, 0)


def test_newer_forms_of_counted_calls_are_not_found_and_waits_are_counted(limited: Limited) -> None:
    """Kerf's own form would be called with other arguments."""
    working, used = limited(LIMIT).run("attack", "later")
    assert (working, used) == (0, 0)


def test_the_orders_cannot_be_made_writable(limited: Limited) -> None:
    (errno_,) = limited(LIMIT).run("attack", "orders")
    assert os.strerror(errno_) == "Permission denied"


def test_contexts_without_end_are_refused(limited: Limited) -> None:
    (count,) = limited(LIMIT).run("attack", "contexts")
    assert count < 64


def test_each_further_context_of_a_process_is_charged_like_the_first(built: Path, tmp_path: Path) -> None:
    node = Node(built, tmp_path / "node", context_mib=20)
    container = node.container("a", Rules(gpus=(GpuRule(uuid=UUID, memory_limit_bytes=LIMIT),)), context_bytes=20 * MIB)
    assert container.run("attack", "contexts") == [LIMIT // (20 * MIB) - 1]


@pytest.mark.parametrize("way", ["environment", "scribble", "remap", "inside"])
def test_an_attack_that_cannot_be_stopped_shows_as_more_memory_on_the_device_than_counted(
    limited: Limited, way: str
) -> None:
    container = limited(LIMIT)
    (truth,) = container.run("attack", way)
    assert truth > LIMIT, "the fake driver allows it, as a real one would"
    assert container.read().gpus[0].peak_bytes <= LIMIT, "and the control block does not count it"


def test_a_program_without_the_interposer_shows_in_the_same_way(limited: Limited) -> None:
    """Static binaries, raw ioctl, Vulkan: for the control block they are the same."""
    container = limited(LIMIT)
    count, most, _, _ = numbers(container.node.bare("paths", "cuMemAlloc", str(8 * MIB)))
    assert (count * 8 * MIB, most) == (16384 * MIB, 16384 * MIB)
    assert container.read().gpus[0].account_bytes == 0


def test_the_linkers_own_list_holds_without_an_environment(limited: Limited, built: Path, tmp_path: Path) -> None:
    """/etc/ld.so.preload in a mount namespace: a program that clears its environment is limited, too."""
    unshare = shutil.which("unshare")
    if (
        os.geteuid()
        or unshare is None
        or subprocess.run([unshare, "-m", "true"], check=False, capture_output=True).returncode
    ):
        pytest.skip("needs the right to make a mount namespace")
    container = limited(LIMIT)
    etc = tmp_path / "etc"
    shutil.copytree("/etc", etc, symlinks=True, ignore_dangling_symlinks=True)
    (etc / "ld.so.preload").write_text(f"{built}/enforcement/test/libkerf.so\n")
    inside = container.node.environment | {
        "KERF_DIRECTORY": str(container.control_block.folder),
        "LD_LIBRARY_PATH": str(built / "enforcement"),
        "LD_PRELOAD": "/nowhere.so",
    }
    script = f"mount --bind {etc} /etc && exec {built}/programs/attack environment"
    done = subprocess.run(
        [unshare, "-m", "sh", "-c", script], env=inside, capture_output=True, text=True, timeout=60, check=True
    )
    assert int(done.stdout) == LIMIT // (8 * MIB) * 8 * MIB


def test_the_shipped_library_ignores_the_variable_that_tests_use(limited: Limited, built: Path) -> None:
    container = limited(1 << 40)
    program = container.start("view", LD_PRELOAD=str(built / "enforcement" / "libkerf.so"))
    words = program.communicate(timeout=60)[1]
    assert "kerf: no control block of this container's slice (/run/kerf)" in words
    assert program.returncode == 3


def test_more_processes_than_slots_are_refused(limited: Limited) -> None:
    container = limited(LIMIT)
    counters = container.raw()
    for place in range(256):
        counters.process[place].state = 1
    with (container.control_block.folder / "counters").open("r+b") as file:
        os.pwrite(file.fileno(), bytes(counters), 0)
        fcntl.fcntl(file, fcntl.F_SETLK, struct.pack("hhqqi", fcntl.F_WRLCK, os.SEEK_SET, LOCK_AT, 256, 0))
        program = container.start("view")
        assert "too many processes in this container" in program.communicate(timeout=60)[1]
    assert container.read().full == 1


def test_counting_under_a_capture_runs_nothing(built: Path, tmp_path: Path) -> None:
    """Captured launches are neither timed nor gated: they are no work until their graph is launched, and that launch
    is."""
    node = Node(built, tmp_path / "node", clients=1)
    container = node.container("a", Rules(gpus=(GpuRule(uuid=UUID, compute_milli=100),)))
    hooked, straight, differs = container.run("idle", "10000")
    assert differs == 1
    assert hooked > 0
    assert straight > 0
    assert container.read().gpus[0].launches == 0
