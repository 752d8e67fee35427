"""The jobs of a pod list: when they came, how long they ran, and what they asked for."""

from __future__ import annotations

from pathlib import Path

import msgspec

from bench.openb.trace import read_rows
from shared.model.units import WHOLE_GPU_MILLI

_COLUMNS = ("name", "num_gpu", "gpu_milli", "qos", "creation_time", "deletion_time", "scheduled_time")


class Job(msgspec.Struct, frozen=True):
    name: str
    created_s: int
    """Since the beginning of the trace."""
    run_s: int
    """How long it runs with its GPUs to itself; above 0."""
    gpus: int
    milli: int
    """Of each GPU; below 1000 only where `gpus` is 1."""
    qos: str
    host_mib: int = 0
    """Memory of the host that it asks for; 0 where the list says nothing of it."""

    @property
    def work_milli_s(self) -> int:
        """The share that it asks for times its run time."""
        return self.gpus * self.milli * self.run_s


class Jobs(msgspec.Struct, frozen=True):
    jobs: tuple[Job, ...]
    """In the order in which they came; of one second, by name."""
    without_gpu: int
    without_life: int
    """Left out: no end is known, or it is not after the start."""

    @property
    def work_milli_s(self) -> int:
        return sum(job.work_milli_s for job in self.jobs)


def read_jobs(path: Path, gpus: int) -> Jobs:
    """Jobs that could run on `gpus` GPUs. OSError where the file cannot be read; ValueError where it is no such list,
    has no job, or has one that is too large."""
    found: list[Job] = []
    without_gpu = without_life = 0
    for row in read_rows(path, _COLUMNS):
        name = row["name"]
        wanted = _number(row, "num_gpu")
        if not wanted:
            without_gpu += 1
            continue
        created = _number(row, "creation_time")
        if created is None:
            raise ValueError(f"{path}: pod {name} has no creation_time")
        scheduled, ended = _number(row, "scheduled_time"), _number(row, "deletion_time")
        run_s = 0 if ended is None else ended - (created if scheduled is None else scheduled)
        if run_s <= 0:
            without_life += 1
            continue
        milli = _number(row, "gpu_milli") or 0
        if not 0 < milli <= WHOLE_GPU_MILLI or (wanted > 1 and milli != WHOLE_GPU_MILLI):
            raise ValueError(f"{path}: pod {name} asks for {milli} thousandths of each of {wanted} GPUs")
        if wanted > gpus:
            raise ValueError(
                f"{path}: pod {name} asks for {wanted} GPUs and would wait for ever; name --gpus {wanted} or more"
            )
        found.append(Job(name, created, run_s, wanted, milli, row["qos"], int(row.get("memory_mib") or 0)))
    if not found:
        raise ValueError(f"{path} has no pod with a GPU and a life")
    return Jobs(tuple(sorted(found, key=lambda job: (job.created_s, job.name))), without_gpu, without_life)


def at_load(jobs: tuple[Job, ...], gpus: int, load: float) -> tuple[Job, ...]:
    """The same jobs, with their arrivals so much closer together, or further apart, that until the last one arrives
    they ask for `load` times what the GPUs can do. ValueError where all arrive at once."""
    first, last = jobs[0].created_s, jobs[-1].created_s
    if first == last:
        raise ValueError("all jobs arrive at once: their arrivals cannot be scaled")
    span_s = sum(job.work_milli_s for job in jobs) / (gpus * WHOLE_GPU_MILLI * load)
    factor = span_s / (last - first)
    return tuple(msgspec.structs.replace(job, created_s=round((job.created_s - first) * factor)) for job in jobs)


def _number(row: dict[str, str], column: str) -> int | None:
    """Whole seconds or parts; None where nothing stands there. ValueError where it is no number."""
    text = row[column]
    try:
        return round(float(text)) if text else None
    except ValueError:
        raise ValueError(f"pod {row['name']} has {text!r} in column {column}; a number belongs there") from None
