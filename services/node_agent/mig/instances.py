"""The MIG instances that containers get: found where the layout is fixed, made and destroyed where it is on demand.

On demand an instance is made when the first container of its grant starts, and destroyed when no container holds its
place any more. The record is written first (`record`), so the agent knows its own instances after any crash. It never
destroys one of others, and none that a process uses. A GPU offers instances on demand only after one was made and
destroyed there under this driver, and only if the driver's profiles are those that placement plans with.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import pynvml

from services.node_agent.mig import layout, nvml, record
from services.node_agent.mig.layout import Place, place_of
from services.node_agent.mig.nvml import Ids
from services.node_agent.nvml_calls import text
from services.node_agent.worker import Hung, Worker
from shared.model.gpu import Gpu, Inventory
from shared.model.grant import GpuShare
from shared.service import Context

T = TypeVar("T")

TRY_AGAIN_S = 10.0
"""How long the agent waits before it tries again to destroy an instance, or to prove a GPU."""
STEPS_S = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)


class MigInstances:
    def __init__(
        self,
        ctx: Context,
        *,
        on_demand: bool,
        file: Path,
        boot_id: str,
        timeout_s: float,
        held: Callable[[], Iterable[GpuShare]],
        inventory: Callable[[], Inventory | None],
    ) -> None:
        """`file`: the record. `held` returns the shares that are handed over.

        Raises OSError or msgspec.DecodeError if the record cannot be read: then the agent does not know which instances
        are its own.
        """
        self._ctx, self._held, self._inventory = ctx, held, inventory
        self.on_demand, self._file = on_demand, file
        self._record = record.load(file, boot_id)
        self._worker = Worker(timeout_s)
        self._one = asyncio.Lock()
        self._wake = asyncio.Event()
        self._not_destroyed: dict[Place, str] = {}
        self._unproven: dict[str, str] = {}
        """By GPU UUID: why it offers no instances on demand."""
        self._seconds = ctx.metrics.histogram(
            "kerf_agent_mig_seconds", "Time to make or destroy a MIG instance.", ("step",), buckets=STEPS_S
        )
        ctx.metrics.observe_by(
            "kerf_agent_mig_instances",
            "MIG instances that the agent has made, by GPU and profile.",
            self._count,
            labels=("gpu", "profile"),
        )

    def start(self, report: Callable[[], Awaitable[None]]) -> None:
        """Begins to destroy what no container holds, and to prove GPUs. `report` reads the inventory again."""
        if self.on_demand or self._record.own:
            self._ctx.spawn(self._run(report), name="mig")

    def wake(self) -> None:
        """Says that containers have ended."""
        self._wake.set()

    def describe(self, gpu: Gpu, handle: Any) -> Gpu:
        """Returns the GPU with the instances that it offers. Blocks; raises pynvml.NVMLError."""
        if not self.on_demand or not gpu.mig_enabled:
            return gpu
        nothing = msgspec.structs.replace(gpu, mig_instances=())
        if self._record.proven.get(gpu.uuid) != text(pynvml.nvmlSystemGetDriverVersion()):
            return nothing
        own = [place for place in self._record.own if place not in self._not_destroyed]
        others = layout.foreign(gpu.uuid, nvml.standing(handle, nvml.profiles(handle)), own)
        if others is None:
            return nothing
        return msgspec.structs.replace(gpu, mig_on_demand=True, mig_instances=others)

    async def ids(self, shares: Iterable[GpuShare]) -> dict[Place, Ids]:
        """Returns the ids of the shares' instances; makes those of GPUs that are divided on demand.

        Raises Hung, and OSError or ValueError if an instance does not exist or cannot be made: then the container must
        not start.
        """
        found: dict[Place, Ids] = {}
        for share in shares:
            place = place_of(share)
            if place is None or share.mig is None:
                continue
            uuid = share.mig.uuid
            async with self._one:
                found[place] = await (self._call(lambda uuid=uuid: _ids_of(uuid)) if uuid else self._make(place))  # type: ignore[misc]
        return found

    # --- making and destroying, one at a time ----------------------------------------------------------------------

    async def _make(self, place: Place) -> Ids:
        if not self.on_demand and place not in self._record.own:
            raise ValueError(
                f"the grant is for a MIG instance on demand ({place.profile} on GPU {place.gpu}), and this agent's "
                "setting mig is fixed; delete the pod to have it scheduled again"
            )
        await self._destroy_unheld()
        if place not in self._record.own:
            if await self._timed("look", lambda handle: nvml.stands(handle, place), place.gpu):
                raise ValueError(
                    f"somebody else has made MIG instance {place.profile} at slice {place.start} of GPU {place.gpu}; "
                    "delete the pod to have it scheduled again"
                )
            await self._save(msgspec.structs.replace(self._record, own=(*self._record.own, place)))
        return await self._timed("make", lambda handle: nvml.make(handle, place), place.gpu)

    async def _destroy_unheld(self) -> None:
        """Destroys the agent's instances that no container holds. One that fails is tried again later, and its slices
        are not offered until then."""
        unheld = set(self._record.own) - {place_of(share) for share in self._held()}
        self._not_destroyed = {place: why for place, why in self._not_destroyed.items() if place in unheld}
        for place in sorted(unheld):
            try:
                await self._timed("destroy", lambda handle, place=place: nvml.destroy(handle, place), place.gpu)  # type: ignore[misc]
            except (ValueError, OSError, Hung) as error:
                if self._not_destroyed.get(place) != str(error):
                    self._ctx.log.warning("mig_instance_not_destroyed", **msgspec.structs.asdict(place), why=str(error))
                self._not_destroyed[place] = str(error)
                continue
            self._not_destroyed.pop(place, None)
            left = tuple(one for one in self._record.own if one != place)
            await self._save(msgspec.structs.replace(self._record, own=left))

    async def _prove(self, gpu: Gpu, driver: str) -> str:
        """Makes and destroys an instance on a GPU in MIG mode. Returns why it must offer none; empty if it may."""

        def look(handle: Any) -> tuple[str, Place | None]:
            offered = nvml.profiles(handle)
            standing = nvml.standing(handle, offered)
            if layout.foreign(gpu.uuid, standing, ()) is None:
                return "it has an instance of a profile that Kerf does not know", None
            return layout.problem(gpu, offered), layout.trial_place(gpu, standing)

        try:
            why, place = await self._timed("look", look, gpu.uuid)
            if not why and place is None:
                why = "instances of others leave no room for one"
            if why or place is None:
                return why
            await self._save(msgspec.structs.replace(self._record, own=(*self._record.own, place)))
            await self._timed("make", lambda handle: nvml.make(handle, place), gpu.uuid)
            await self._destroy_unheld()
        except (ValueError, OSError, Hung) as error:
            return str(error)
        if place in self._record.own:
            return self._not_destroyed.get(place, "its trial instance was not destroyed")
        await self._save(msgspec.structs.replace(self._record, proven={**self._record.proven, gpu.uuid: driver}))
        self._ctx.log.info("mig_proven", gpu=gpu.uuid, driver=driver)
        return ""

    # --- the loop ---------------------------------------------------------------------------------------------------

    async def _run(self, report: Callable[[], Awaitable[None]]) -> None:
        while True:
            before = (self._record, dict(self._not_destroyed))
            async with self._one:
                await self._destroy_unheld()
                await self._prove_all()
            self._tell()
            if (self._record, self._not_destroyed) != before:
                await report()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._wake.wait(), TRY_AGAIN_S)
            self._wake.clear()

    async def _prove_all(self) -> None:
        inventory = self._inventory()
        if inventory is None or not self.on_demand:
            return
        driver = inventory.driver_version
        candidates = {gpu.uuid: gpu for gpu in inventory.gpus if gpu.mig_enabled}
        self._unproven = {uuid: why for uuid, why in self._unproven.items() if uuid in candidates}
        for uuid, gpu in candidates.items():
            if self._record.proven.get(uuid) == driver:
                self._unproven.pop(uuid, None)
                continue
            why = await self._prove(gpu, driver)
            if why and self._unproven.get(uuid) != why:
                self._ctx.log.warning("mig_not_proven", gpu=uuid, why=why)
            self._unproven[uuid] = why
            if not why:
                del self._unproven[uuid]

    def _tell(self) -> None:
        troubles = [f"GPU {uuid} offers no MIG instances on demand: {why}" for uuid, why in self._unproven.items()]
        troubles += [f"not destroyed: {why}" for why in self._not_destroyed.values()]
        if troubles:
            self._ctx.health.set("mig", ok=True, detail="; ".join(troubles))
        else:
            self._ctx.health.clear("mig")

    async def _save(self, changed: record.Record) -> None:
        """Raises OSError; then nothing has changed."""
        if changed != self._record:
            await asyncio.to_thread(record.save, self._file, changed)
            self._record = changed

    async def _timed(self, step: str, do: Callable[[Any], T], gpu: str) -> T:
        begun = time.monotonic()
        result = await self._call(lambda: do(pynvml.nvmlDeviceGetHandleByUUID(gpu)))
        self._seconds.observe(time.monotonic() - begun, step)
        return result

    async def _call(self, do: Callable[[], T]) -> T:
        return await self._worker.call(lambda: _initialised(do))

    def _count(self) -> dict[tuple[str, ...], float]:
        counts: dict[tuple[str, ...], float] = {}
        for place in self._record.own:
            counts[place.gpu, place.profile] = counts.get((place.gpu, place.profile), 0.0) + 1
        return counts


def _ids_of(uuid: str) -> Ids:
    handle = pynvml.nvmlDeviceGetHandleByUUID(uuid)
    return pynvml.nvmlDeviceGetGpuInstanceId(handle), pynvml.nvmlDeviceGetComputeInstanceId(handle)


def _initialised(do: Callable[[], T]) -> T:
    """Raises ValueError if NVML fails."""
    try:
        with _nvml():
            return do()
    except pynvml.NVMLError as error:
        raise ValueError(f"NVML: {error}") from error


@contextlib.contextmanager
def _nvml() -> Iterator[None]:
    pynvml.nvmlInit()
    try:
        yield
    finally:
        pynvml.nvmlShutdown()
