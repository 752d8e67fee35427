"""The harness of workloads on the fake driver, and that it finds what is broken."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from bench.enforce.place import FAKE_UUID, Device
from bench.workloads import checks, torch_scripts
from bench.workloads.__main__ import measure, summary
from bench.workloads.cases import FIRST, LIMITED, NO_LIMITS, SECOND, measure_one
from bench.workloads.named import WORKLOADS
from bench.workloads.outcome import Outcome, Result, Stop
from bench.workloads.place import Bench, own_nodes
from bench.workloads.runs import in_slices, without_kerf
from services.node_agent.cdi.host import Host
from services.node_agent.cdi.spec import ContainerEdits
from shared.model.units import MIB


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    if shutil.which("cc") is None or shutil.which("make") is None:
        pytest.skip("no C compiler")
    if os.geteuid():
        pytest.skip("mount namespaces need root")
    folder = tmp_path_factory.mktemp("workloads")
    made = Bench(folder, Device("fake", FAKE_UUID, str(folder / "libcuda.so.1")))
    made.prepare()
    assert (made.problem, made.driver_edits) == ("", "applied")
    return made


def is_of_time(problem: str) -> bool:
    """Whether it is one of shares and times. These are measured once more: at its stops a program leaves the virtual
    clock until the harness has looked, and on a busy machine its neighbour goes on meanwhile for as long as that takes.
    """
    return "thousandths of the GPU's time" in problem or "that is expected" in problem


@pytest.mark.parametrize("name", WORKLOADS)
def test_a_workload_runs_in_a_slice_as_without_one(place: Bench, name: str) -> None:
    workload = WORKLOADS[name]
    found = measure_one(place, workload, short=True)
    if found["problems"] and all(is_of_time(problem) for problem in found["problems"]):
        found = measure_one(place, workload, short=True)
    assert found["problems"] == []
    for run in (NO_LIMITS, LIMITED, FIRST, SECOND):
        assert 0 < found[run]["memory_peak_mib"] <= found[run]["memory_mib"]
    assert found[LIMITED]["memory_mib"] == workload.memory_mib
    assert found["without_kerf"]["calls"] > 100


def test_a_container_gets_exactly_the_edits(place: Bench) -> None:
    """The library by ld.so.preload, the control block, the driver's files and nodes; nothing of it on the machine."""
    with place.registry() as registry:
        slice_, share = place.slice_on("seen", 1, 1024, 500)
        edits = place.edits(registry, slice_, share)
        script = "cat /etc/ld.so.preload; ls /run/kerf; ls /dev | grep nvidia; echo $KERF_GPU_MEMORY_MIB"
        process = place.begin_program(["sh", "-c", script], edits, registry.folder(slice_.key))
        out, _ = process.communicate(timeout=60)
    words = out.split()
    assert words[0] == "/run/kerf/libkerf.so"
    assert {"orders", "counters", "signal", "peers", "libkerf.so"} <= set(words)
    assert [word for word in words if word.startswith("nvidia")] == ["nvidia-uvm", "nvidia0", "nvidiactl"]
    assert words[-1] == "1024"
    assert not Path("/etc/ld.so.preload").exists() or "kerf" not in Path("/etc/ld.so.preload").read_text()


def test_a_machine_that_shows_no_driver_keeps_its_own_device_nodes(
    place: Bench, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "nvidia0").touch()
    (tmp_path / "nvidia-caps").mkdir()
    assert [node.path for node in own_nodes(tmp_path)] == [str(tmp_path / "nvidia0")]
    monkeypatch.setattr(place, "host", Host(root=tmp_path))
    monkeypatch.setattr(place, "driver_edits", "applied")
    with place.registry() as registry:
        slice_, share = place.slice_on("bare", 1, 1024, 500)
        edits = place.edits(registry, slice_, share)
    assert any(mount.container_path == "/etc/ld.so.preload" for mount in edits.mounts)
    assert place.driver_edits.startswith("not applied, the machine's own driver and device nodes are used: no NVIDIA")


def test_where_mount_namespaces_are_not_allowed_the_library_is_preloaded(
    place: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(place, "problem", "unshare of the mount namespace failed")
    assert measure_one(place, WORKLOADS["cuda-graphs"], short=True)["problems"] == []
    assert summary(place, {})["edits"].startswith("not applied, the library was preloaded instead: unshare")


def without_library(edits: ContainerEdits) -> ContainerEdits:
    kept = tuple(mount for mount in edits.mounts if mount.container_path != "/etc/ld.so.preload")
    return msgspec.structs.replace(edits, mounts=kept)


def test_a_container_without_the_library_is_found(place: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(place, "tamper", without_library)
    wrong = "\n".join(measure_one(place, WORKLOADS["torch-training"], short=True)["problems"])
    for sentence in (
        "bytes by the driver's figure; its slice has",
        "cuMemGetInfo showed",
        "requests beyond the slice returned 0",
        "the account was",
        "thousandths of the GPU's time; its share is 500",
    ):
        assert sentence in wrong


@pytest.mark.parametrize(
    ("memory_mib", "milli", "sentence"),
    [
        (2080, 500, "by the driver's figure; its slice has"),
        (2048, 600, "thousandths of the GPU's time"),
        (2047, 500, "cuMemGetInfo showed"),
    ],
)
def test_wrong_limits_are_found(place: Bench, memory_mib: int, milli: int, sentence: str) -> None:
    """A slice that got other limits than it should have."""
    workload = WORKLOADS["torch-training"]
    reference = without_kerf(place, workload, workload.short_rounds)
    ran = in_slices(place, workload, workload.short_rounds, memory_mib=memory_mib, compute_milli=milli)[0]
    told = msgspec.structs.replace(ran, memory_bytes=2048 * MIB, compute_milli=500)
    wrong = checks.problems(reference, {"slice": told}, fake=True, workload=WORKLOADS["torch-training"])
    assert any(sentence in text for text in wrong), wrong


GOOD = Result(
    results=("1",), timed_ns=1000, gpu_ns=1000, beyond_result=2, refusal=2, got_bytes=8, unexpected=0, peak_bytes=(10,),
    calls=(("main", "init", "cuMemAlloc", 0, 4),),
)  # fmt: skip
STOP = Stop(at="start", processes=1, held=0, shown_total=10, device_bytes=(5,), account_bytes=(5,))
REFERENCE = Outcome(result=GOOD, stops=(STOP,))


def judged(*, compute_milli: int = 0, stop: Stop = STOP, **changes: object) -> list[str]:
    run = Outcome(
        stops=(stop,), result=msgspec.structs.replace(GOOD, **changes), memory_bytes=10, compute_milli=compute_milli,
        context_bytes=5,
    )  # fmt: skip
    return checks.problems(REFERENCE, {"run": run}, fake=True, workload=WORKLOADS["torch-training"])


def test_every_check_can_fail() -> None:
    assert judged() == []
    assert "results differ" in judged(results=("2",))[0]
    assert "results differ" in judged(results=())[0]
    assert "must not fail" in judged(unexpected=1)[0]
    assert "workers" in judged(workers_status=1)[0]
    assert (
        "returned 2 1 times, and 0 times"
        in judged(calls=(("main", "init", "cuMemAlloc", 0, 4), ("main", "init", "cuMemAlloc", 2, 1)))[0]
    )
    assert "returned 0 3 times, and 4 times" in judged(calls=(("main", "init", "cuMemAlloc", 0, 3),))[0]
    assert "driver's figure" in judged(peak_bytes=(11,))[0]
    assert "told no maximum" in judged(peak_bytes=())[0]
    assert "beyond the slice" in judged(beyond_result=0)[0]
    assert "beyond the slice" in judged(refusal=999)[0]
    assert "in pieces; its slice" in judged(got_bytes=11)[0]
    early = Outcome(
        stops=(msgspec.structs.replace(STOP, shown_total=64 * MIB),),
        result=GOOD,
        memory_bytes=64 * MIB,
        context_bytes=5,
    )
    assert (
        "refused too early"
        in checks.problems(REFERENCE, {"run": early}, fake=True, workload=WORKLOADS["torch-training"])[0]
    )
    assert "account was" in judged(stop=msgspec.structs.replace(STOP, account_bytes=(6,)))[0]
    assert "account was" in judged(stop=msgspec.structs.replace(STOP, account_bytes=()))[0]
    assert "driver's figure was" in judged(stop=msgspec.structs.replace(STOP, device_bytes=(6,)))[0]
    assert "showed [11]" in judged(stop=msgspec.structs.replace(STOP, shown_total=11))[0]
    assert "thousandths" in judged(compute_milli=500)[0]
    assert "expected" in judged(timed_ns=100_000_000)[0]
    assert checks.problems(
        REFERENCE, {"run": Outcome(failure="it hung")}, fake=True, workload=WORKLOADS["torch-training"]
    ) == ["run: it hung"]


def test_polling_counts_by_its_outcome() -> None:
    polled = (("main", "init", "cuEventQuery", 600, 7), ("main", "init", "cuEventQuery", 0, 3))
    other = (("main", "init", "cuEventQuery", 600, 9), ("main", "init", "cuEventQuery", 0, 2))
    assert [
        *checks.of_calls(msgspec.structs.replace(GOOD, calls=polled), msgspec.structs.replace(GOOD, calls=other))
    ] == []


def test_what_is_not_run_is_told(place: Bench) -> None:
    assert torch_scripts.measure(place, WORKLOADS["torch-training"]) == {
        "torch": "not run: the fake driver runs no code"
    }
    real = Bench(place.folder, Device("H200", "GPU-1", "libcuda.so.1"), gpus=place.gpus[:1])
    assert torch_scripts.measure(real, WORKLOADS["torch-training"]) == {"torch": "not installed"}
    assert measure_one(real, WORKLOADS["nccl-single-process"]) == {"not_run": "it needs 2 GPUs, and this machine has 1"}


def test_a_script_is_judged() -> None:
    good = {
        "results": ["1"],
        "seconds": 1.0,
        "refused": True,
        "goes_on": True,
        "peak_mib": 5,
        "total_mib": 8,
        "memory_mib": 8,
    }
    assert torch_scripts.judge({"without_kerf": good, "whole GPU": good, "slice": good}) == []
    for change in (
        {"results": ["2"]},
        {"refused": False},
        {"goes_on": False},
        {"peak_mib": 9},
        {"total_mib": 9},
        {"seconds": 3.0},
        {"failure": "x"},
    ):
        assert torch_scripts.judge({"without_kerf": good, "whole GPU": good, "slice": good | change})


def test_finished_cases_are_kept_and_problems_are_summed_up(place: Bench, tmp_path: Path) -> None:
    results = tmp_path / "results.json"
    results.write_text(
        json.dumps({"cuda-graphs": {"problems": ["slice: it hung"], "torch_problems": ["whole GPU: x"]}})
    )
    found = measure(place, ["cuda-graphs"], results)
    assert summary(place, found)["problems"] == ["cuda-graphs: slice: it hung", "cuda-graphs: whole GPU: x"]


def test_the_workloads_are_listed_and_an_unknown_one_is_named() -> None:
    command = [sys.executable, "-m", "bench.workloads", "--fake"]
    listed = subprocess.run([*command, "--list"], capture_output=True, text=True, check=True).stdout
    assert all(f"{name}: " in listed for name in WORKLOADS)
    wrong = subprocess.run([*command, "--case", "torch"], capture_output=True, text=True, check=False)
    assert wrong.returncode == 2
    assert "no workload torch;" in wrong.stderr
