"""PyTorch scripts of the workloads' names, in the same edits. None of them has been run on a GPU yet."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from typing import Any

from bench.workloads.place import Bench
from bench.workloads.runs import HALF_MILLI
from bench.workloads.workload import Workload

MEMORY_MIB = 8192
TIMEOUT_S = 180.0
SLOWEST = 2.5
"""How many times longer a script may take with half of the compute."""
WHOLE, SLICE = "whole GPU", "slice"


def measure(place: Bench, workload: Workload) -> dict[str, Any]:
    """Returns `torch`: the script's figures without Kerf, in a slice of the whole GPU and in a limited one.

    Or why there are none."""
    if not workload.script:
        return {"torch": "there is no script of this workload"}
    if place.device.fake:
        return {"torch": "not run: the fake driver runs no code"}
    python = _python()
    if not python:
        return {"torch": "not installed"}
    if workload.devices > len(place.gpus):
        return {"torch": f"not run: it needs {workload.devices} GPUs, and this machine has {len(place.gpus)}"}
    found: dict[str, Any] = {"without_kerf": _run(place, python, workload, 0, 0)}
    found[WHOLE] = _run(place, python, workload, place.device.memory_mib, 0)
    found[SLICE] = _run(place, python, workload, MEMORY_MIB, HALF_MILLI)
    return {"torch": found, "torch_problems": judge(found)}


def judge(found: dict[str, Any]) -> list[str]:
    """What is wrong with the runs of a script. Pure."""
    reference = found["without_kerf"]
    if "failure" in reference:
        return [f"without Kerf: {reference['failure']}"]
    wrong = []
    for name in (WHOLE, SLICE):
        got = found[name]
        if "failure" in got:
            wrong.append(f"{name}: {got['failure']}")
            continue
        if got["results"] != reference["results"]:
            wrong.append(f"{name}: its results differ from those without Kerf")
        if not got["refused"] or not got["goes_on"]:
            wrong.append(f"{name}: a tensor larger than the slice was not refused, or the program could not go on")
        if got["peak_mib"] > got["memory_mib"] or got["total_mib"] != got["memory_mib"]:
            wrong.append(
                f"{name}: it was shown {got['total_mib']} MiB and had {got['peak_mib']}; "
                f"its slice has {got['memory_mib']}"
            )
        if name == SLICE and got["seconds"] > reference["seconds"] * SLOWEST:
            wrong.append(f"{name}: it took {got['seconds']} s, and {reference['seconds']} s without Kerf")
    return wrong


def _python() -> str:
    """A Python whose PyTorch finds a GPU; empty: there is none."""
    script = "import torch; raise SystemExit(not torch.cuda.is_available())"
    for python in (sys.executable, "python3"):
        if not subprocess.run([python, "-c", script], capture_output=True, check=False).returncode:
            return python
    return ""


def _run(place: Bench, python: str, workload: Workload, memory_mib: int, compute_milli: int) -> dict[str, Any]:
    """`memory_mib` 0: without Kerf."""
    command = [python, "-m", f"bench.workloads.scripts.{workload.script}"]
    if not memory_mib:
        process = place.begin_program(command, None, None)
        return _finish(process) | {"memory_mib": place.device.memory_mib}
    with place.registry() as registry:
        slice_, share = place.slice_on("torch", workload.devices, memory_mib, compute_milli)
        edits = place.edits(registry, slice_, share)
        return _finish(place.begin_program(command, edits, registry.folder(slice_.key))) | {"memory_mib": memory_mib}


def _finish(process: subprocess.Popen[str]) -> dict[str, Any]:
    watchdog = threading.Timer(TIMEOUT_S, process.kill)
    watchdog.start()
    out, errors = process.communicate()
    watchdog.cancel()
    if process.returncode:
        return {"failure": f"it ended with status {process.returncode}: {errors.strip()[-400:]}"}
    return dict(json.loads(out.splitlines()[-1]))
