"""All that a machine with a GPU can tell: `python -m bench.on_gpu --out DIR [--minutes 30] [--only NAME,...] [--list]`.

Each step is a command of its own with a limit of time. What it says is in DIR/results.json as soon as it has ended, and
a line goes to stdout. Steps of one group run at the same time; they measure nothing that others could disturb. The
steps stand in the order of their worth: when the minutes are over, the rest is left out, and said to be.

The machine needs a driver, a C compiler, root, the GPU for itself, and the packages of the agent. Where PyTorch is
installed for this Python, its steps run too.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

ROOT = Path(__file__).resolve().parents[2]
PY = sys.executable
MACHINE = """nvidia-smi; uname -a; cat /proc/driver/nvidia/version; free -m; nproc; ls -l /dev/nvidia*; id
grep -E 'Cap|Seccomp' /proc/self/status; cat /proc/self/cgroup; mount | grep -E 'cgroup|nvidia'; ldd --version | head -1
cat /proc/sys/kernel/yama/ptrace_scope; command -v nvidia-cuda-mps-control; ldconfig -p | grep -E 'libcuda|nvidia-ml'"""
ORDERLY_S = 15.0
WORKS = ("oom", "loader", "ipc", "nccl", "compile")
RATES = "step,graph,idle,copies"
SLICE_MIB, HALF = "8192", "500"


class Step(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    command: Sequence[str]
    limit_s: float
    more: Mapping[str, str] = {}


def _pytorch(name: str, kinds: str, limit_s: float, mib: str = "", milli: str = "0", **more: str) -> Step:
    """`mib`: in a slice of so much memory; `milli`: and so much compute, 0: all."""
    under = (PY, "-m", "bench.on_gpu.under", mib, milli) if mib else ()
    command = (*under, PY, "-m", "bench.on_gpu.pytorch", kinds, "--seconds", "2.5")
    return Step(name=name, command=command, limit_s=limit_s, more=more)


def _bench(name: str, limit_s: float, module: str, *words: str) -> Step:
    return Step(name=name, command=(PY, "-m", f"bench.{module}", *words, "--json"), limit_s=limit_s)


def _enforce(case: str, limit_s: float) -> Step:
    return _bench(f"enforce-{case}", limit_s, "enforce", "--seconds", "5", "--case", case)


GROUPS: tuple[tuple[Step, ...], ...] = (
    (Step(name="machine", command=("sh", "-c", MACHINE), limit_s=20),),
    (
        Step(name="smi", command=("nvidia-smi", "-q", "-x"), limit_s=20),
        Step(name="topology", command=("nvidia-smi", "topo", "-m"), limit_s=20),
    ),
    (_bench("canary", 60, "canary"),),
    (_bench("nvml", 20, "nvml"),),
    (
        *(_pytorch(f"pytorch-{what}", what, 75, SLICE_MIB) for what in WORKS),
        *(_pytorch(f"pytorch-{what}-bare", what, 75) for what in WORKS if what != "oom"),
        _pytorch("pytorch-oom-expandable", "oom", 75, SLICE_MIB, PYTORCH_CUDA_ALLOC_CONF="expandable_segments:True"),
        _pytorch("pytorch-oom-async", "oom", 75, SLICE_MIB, PYTORCH_CUDA_ALLOC_CONF="backend:cudaMallocAsync"),
    ),
    (_pytorch("rates-bare", RATES, 40),),
    (_pytorch("rates-slice", RATES, 40, SLICE_MIB),),
    (_pytorch("rates-half", RATES, 40, SLICE_MIB, HALF),),
    (_bench("checkpoints-once", 60, "checkpoints", "--mib", "4096", "--together", "1,4", "--once"),),
    (_bench("checkpoints", 240, "checkpoints", "--mib", "4096,16384", "--together", "1,4"),),
    (_bench("trainings", 520, "trainings", "--seconds", "300", "--turn", "25", "--beside", "8"),),
    (_enforce("shares", 70),),
    (_enforce("tiers", 40),),
    (_enforce("busy", 30),),
    (_enforce("locks", 60),),
    (_enforce("memory", 90),),
    (_enforce("idle", 40),),
    (_enforce("requests", 150),),
    (_enforce("hook", 60),),
    (_enforce("least", 30),),
    (_enforce("long", 40),),
    (_enforce("others", 60),),
    (_enforce("lengths", 400),),
    (_bench("workloads", 900, "workloads"),),
)


def run(steps: Sequence[Step], environment: Mapping[str, str], until_s: float) -> dict[str, dict[str, Any]]:
    """Runs these at the same time. Each has its own limit, and ends at `until_s` of the monotonic clock at the
    latest."""
    begun_s = time.monotonic()
    running = []
    with tempfile.TemporaryDirectory(prefix="kerf-step-") as name:
        for step in steps:
            out, errors = (Path(name) / f"{step.name}.{kind}" for kind in ("out", "err"))
            with out.open("w") as to, errors.open("w") as beside:
                process = subprocess.Popen(
                    step.command, cwd=ROOT, env={**os.environ, **environment, **step.more}, stdin=subprocess.DEVNULL,
                    stdout=to, stderr=beside, start_new_session=True,
                )  # fmt: skip
            running.append((step, process, out, errors))
        found = {}
        for step, process, out, errors in running:
            limit_s = min(step.limit_s, until_s - begun_s)
            try:
                status: int | str = process.wait(max(1.0, begun_s + limit_s - time.monotonic()))
            except subprocess.TimeoutExpired:
                status = f"not ended within {limit_s:.0f} s"
            except BaseException:
                _end([each for _, each, _, _ in running])
                raise
            _end([process])
            text = out.read_text(errors="replace")
            with contextlib.suppress(ValueError):
                text = json.loads(text)
            found[step.name] = {
                "status": status,
                "seconds": round(time.monotonic() - begun_s, 1),
                "command": " ".join(("python" if word == PY else word) for word in step.command),
                "out": text,
                "errors": errors.read_text(errors="replace")[-6000:],
            }
        return found


def _end(processes: Sequence[subprocess.Popen[bytes]]) -> None:
    """Ends them with all that they have started; first in order, so that an MPS daemon ends too."""
    for sign in (signal.SIGTERM, signal.SIGKILL):
        for process in processes:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, sign)
        until_s = time.monotonic() + ORDERLY_S
        for process in processes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(0.1, until_s - time.monotonic()))


def _without_pytorch(groups: Sequence[Sequence[Step]]) -> tuple[list[list[Step]], list[str]]:
    """The steps that do not need it, and the names of the others."""
    needs = ("bench.on_gpu.pytorch", "bench.trainings")
    left = [[step for step in group if not set(needs) & set(step.command)] for group in groups]
    kept = {step.name for group in left for step in group}
    return left, [step.name for group in groups for step in group if step.name not in kept]


def _ended_by(number: int, _: object) -> None:
    raise SystemExit(128 + number)


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    arguments.add_argument("--out", type=Path, default=Path("build/on-gpu"))
    arguments.add_argument("--minutes", type=float, default=45)
    arguments.add_argument("--only", default="", help="names of steps, or their beginnings, separated by commas")
    arguments.add_argument("--list", action="store_true")
    asked = arguments.parse_args()
    wanted = tuple(filter(None, asked.only.split(",")))
    groups = [[step for step in group if not wanted or step.name.startswith(wanted)] for group in GROUPS]
    if asked.list:
        for step in (step for group in groups for step in group):
            print(f"{step.name:24} {step.limit_s:4.0f} s  {' '.join(step.command[:8])[:90]!r}")
        return
    signal.signal(signal.SIGTERM, _ended_by)
    until_s = time.monotonic() + asked.minutes * 60
    asked.out.mkdir(parents=True, exist_ok=True)
    results = asked.out / "results.json"
    known: dict[str, Any] = json.loads(results.read_text()) if results.exists() else {}
    with tempfile.TemporaryDirectory(prefix="kerf-build-") as name:
        build = os.environ.get("KERF_BUILD", name)
        make = ["make", "-s", f"-j{os.cpu_count()}", "-C", "native/interposer", f"BUILD={build}"]
        subprocess.run(make, cwd=ROOT, check=True)
        environment = {"KERF_BUILD": build, "PYTHONFAULTHANDLER": "1"}
        if importlib.util.find_spec("torch") is None:
            groups, without = _without_pytorch(groups)
            known |= {name: {"status": "left out: PyTorch is not installed"} for name in without}
        for group in filter(None, groups):
            left_s = until_s - time.monotonic()
            if left_s < min(step.limit_s for step in group) / 2:
                known |= {step.name: {"status": "left out: the minutes were over"} for step in group}
                found = {}
            else:
                found = run(group, environment, until_s)
            known |= found
            with contextlib.suppress(KeyError, TypeError):  # what the slices are charged from now on, as on a node
                environment["KERF_CONTEXT_MIB"] = str(found["canary"]["out"]["proof"]["context_bytes"] >> 20)
            results.write_text(json.dumps(known, indent=1) + "\n")
            for ended, figures in found.items():
                print(f"{ended}: status {figures['status']}, {figures['seconds']} s", flush=True)


if __name__ == "__main__":
    main()
