"""Which containers have a part of each GPU, for monitors: a metric to join with, and files that dcgm-exporter reads."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from shared.contracts.node_commands import LiveSlice
from shared.model.gpu import Inventory
from shared.service import Context
from shared.telemetry.metrics import Metrics

WRITE_S = 1.0
LABELS = ("uuid", "gpu", "namespace", "pod", "container", "strategy")


def register_metric(
    metrics: Metrics, inventory: Callable[[], Inventory | None], live: Callable[[], Iterable[LiveSlice]]
) -> None:
    metrics.observe_by(
        "kerf_gpu_pod_info",
        "1 for each container that has a part of a GPU; to be joined with other metrics of the GPU.",
        lambda: dict.fromkeys(pod_info(inventory(), live()), 1.0),
        labels=LABELS,
    )


async def keep_files(
    ctx: Context, folder: Path, inventory: Callable[[], Inventory | None], live: Callable[[], Iterable[LiveSlice]]
) -> None:
    """Keeps the files of a folder up to date, for ever."""
    written: dict[str, str] = {}
    while True:
        now = mapping(inventory(), live())
        if now != written:
            try:
                await asyncio.to_thread(write, folder, written, now)
            except OSError as error:
                ctx.health.set("job_mapping", ok=True, detail=f"{folder} cannot be written: {error}")
            else:
                ctx.health.clear("job_mapping")
                written = now
        await asyncio.sleep(WRITE_S)


def pod_info(inventory: Inventory | None, live: Iterable[LiveSlice]) -> list[tuple[str, ...]]:
    """The metric's labels, one set for each container and GPU. `gpu` is the GPU's index on its node, as DCGM has it;
    empty for a GPU that NVML does not list."""
    index = _indices(inventory)
    return [
        (uuid, str(index.get(uuid, "")), one.namespace, one.name, one.container, one.strategy)
        for one in live
        for uuid in one.gpus
    ]


def mapping(inventory: Inventory | None, live: Iterable[LiveSlice]) -> dict[str, str]:
    """By GPU index, the text of its file: a line namespace/pod/container for each container that has a part of it.

    The format of dcgm-exporter's `--hpc-job-mapping-dir`: a file for each GPU, named by its index, with one job a line.
    A GPU without containers has an empty file: a missing one would leave its last job in the metrics.
    """
    found: dict[str, list[str]] = {str(index): [] for index in _indices(inventory).values()}
    for _, index, namespace, pod, container, _ in pod_info(inventory, live):
        if index:
            found[index].append(f"{namespace}/{pod}/{container}")
    return {index: "".join(f"{line}\n" for line in sorted(lines)) for index, lines in found.items()}


def write(folder: Path, before: Mapping[str, str], now: Mapping[str, str]) -> None:
    """Brings the files of a folder from one mapping to the other. A reader sees each file whole. Raises OSError."""
    folder.mkdir(parents=True, exist_ok=True)
    for index, text in now.items():
        if before.get(index) != text:
            beside = folder / f".{index}.new"
            beside.write_text(text)
            beside.replace(folder / index)
    for index in before.keys() - now.keys():
        (folder / index).unlink(missing_ok=True)


def _indices(inventory: Inventory | None) -> dict[str, int]:
    return {} if inventory is None else {gpu.uuid: gpu.index for gpu in inventory.gpus}
