"""The MIG instances that containers get: found where the layout is fixed, made and destroyed where it is on demand.

On demand an instance is made for a pod when a container of it starts, and destroyed when none of its containers holds
the place any more: before another pod gets the place. The record is written first (`record`), so it knows its own
instances after any crash. It never destroys one of others, and none that a process uses. A GPU offers instances on
demand only after one was made and destroyed there under this driver, and only if the driver's profiles are those that
placement plans with.

Where the layout was on demand before it became fixed, instances of the agent's are left. A pod keeps its own until its
containers have ended, and then it is destroyed: it is offered for as long as it is held, because its holder may start
again, and not a moment longer.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import pynvml

from services.node_agent.mig import layout, nvml, record
from services.node_agent.mig.layout import Own, Place, place_of
from services.node_agent.mig.nvml import Ids, MigError
from services.node_agent.nvml_calls import text
from services.node_agent.worker import Hung, Worker
from shared.model.gpu import Gpu, Inventory
from shared.model.grant import GpuShare
from shared.model.mig import MigInstance
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
        held: Callable[[], Iterable[tuple[str, GpuShare]]],
        inventory: Callable[[], Inventory | None],
    ) -> None:
        """`file`: the record. `held` returns the shares that are handed over, each with its pod's UID.

        Raises OSError or msgspec.DecodeError if the record cannot be read: then the agent does not know which instances
        are its own.
        """
        self._ctx, self._held, self._inventory = ctx, held, inventory
        self.on_demand, self._file = on_demand, file
        self._record = record.load(file, boot_id)
        self._worker, self._reader = Worker(timeout_s), Worker(timeout_s)
        self._one, self._one_reader = asyncio.Lock(), asyncio.Lock()
        self._work: set[asyncio.Task[Ids]] = set()
        self._wake = asyncio.Event()
        self._unheld = frozenset(self._not_held())
        """The agent's instances that were not held when that was last looked at: `describe` runs in another thread."""
        self._not_destroyed: dict[Own, str] = {}
        self._unproven: dict[str, str] = {}
        """By GPU UUID: why it offers no instances on demand."""
        self._prove_at = 0.0
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
        if not gpu.mig_enabled:
            return gpu
        if not self.on_demand:
            ending = {one.place for one in self._unheld}
            return msgspec.structs.replace(
                gpu, mig_instances=tuple(one for one in gpu.mig_instances if _place(gpu, one) not in ending)
            )
        nothing = msgspec.structs.replace(gpu, mig_instances=())
        if self._record.proven.get(gpu.uuid) != text(pynvml.nvmlSystemGetDriverVersion()):
            return nothing
        before = self._record.own
        standing = nvml.standing(handle, nvml.profiles(handle))
        # One that is made or destroyed meanwhile is in one of the two records.
        own = [one for one in (*before, *self._record.own) if one not in self._not_destroyed]
        others = layout.foreign(gpu.uuid, standing, own)
        if others is None:
            return nothing
        return msgspec.structs.replace(gpu, mig_on_demand=True, mig_instances=others)

    async def ids(self, uid: str, shares: Iterable[GpuShare]) -> dict[Place, Ids]:
        """Returns the ids of the instances that a pod's shares name; makes those that are on demand.

        Raises Hung, and OSError or ValueError if an instance does not exist or cannot be made: then the container must
        not start.
        """
        found: dict[Place, Ids] = {}
        for share in shares:
            place = place_of(share)
            if place is None or share.mig is None:
                continue
            uuid = share.mig.uuid
            found[place] = await (self._found(uuid, place) if uuid else self._made(uid, place))
        return found

    async def _found(self, uuid: str, place: Place) -> Ids:
        if all(one.place != place for one in self._record.own):
            return await self._read(uuid)
        async with self._one:  # it may just be destroyed; later it is not, for the share was handed over before
            return await self._read(uuid)

    async def _read(self, uuid: str) -> Ids:
        async with self._one_reader:
            return await self._reader.call(lambda: _initialised(lambda: _ids_of(uuid)))

    async def _made(self, uid: str, place: Place) -> Ids:
        """As `_make`, which runs to its end even if the caller is cancelled: the kubelet may abandon a call midway, and
        what was made must be in the record."""
        task = asyncio.create_task(self._make(uid, place))
        self._work.add(task)
        task.add_done_callback(self._done)
        return await asyncio.shield(task)

    def _done(self, task: asyncio.Task[Ids]) -> None:
        self._work.discard(task)
        if not task.cancelled() and task.exception() is not None:
            self._ctx.log.warning("mig_instance_not_made", why=str(task.exception()))
        self.wake()

    # --- making and destroying, one at a time ----------------------------------------------------------------------

    async def _make(self, uid: str, place: Place) -> Ids:
        async with self._one:
            if not self.on_demand and all(one.place != place for one in self._record.own):
                raise MigError(
                    f"the grant is for a MIG instance on demand ({place.profile} on GPU {place.gpu}), and this agent's "
                    "setting mig is fixed; delete the pod to have it scheduled again"
                )
            await self._destroy_unheld()
            known = next((one for one in self._record.own if one.place == place), None)
            if known is not None and known.holder != uid:
                raise MigError(f"{self._not_destroyed.get(known, 'it is not destroyed')}; it was another pod's")
            if known is not None and not await self._timed("look", partial(nvml.stands, own=known), place.gpu):
                await self._drop(known)  # a reset of the GPU ended it
                known = None
            own = known or Own(place=place, holder=uid)
            if own.id is None:
                await self._begin(own)
                own = await self._gpu_instance(own)
            return await self._timed("make", partial(nvml.fill, own=own), place.gpu)

    async def _begin(self, own: Own) -> None:
        """Records what is about to be made. Raises MigError if somebody else has made it."""
        place = own.place
        there = await self._timed("look", lambda handle: nvml.standing(handle, nvml.profiles(handle)), place.gpu)
        if any(one.at(place) and not (own in self._record.own and one.belongs_to(own)) for one in there):
            raise MigError(
                f"somebody else has made MIG instance {place.profile} at slice {place.start} of GPU {place.gpu}; "
                "delete the pod to have it scheduled again"
            )
        await self._keep(own)

    async def _gpu_instance(self, own: Own) -> Own:
        """Makes the GPU instance and records its id."""
        gpu = own.place.gpu
        try:
            made = await self._timed("make", partial(nvml.make_gpu_instance, own=own), gpu)
        except (MigError, Hung):
            with contextlib.suppress(MigError, Hung):  # the first error says more; what may stand stays recorded
                if not await self._timed("look", partial(nvml.stands, own=own), gpu):
                    await self._drop(own)
            raise
        numbered = msgspec.structs.replace(own, id=made)
        await self._keep(numbered, instead_of=own)
        return numbered

    async def _destroy_unheld(self) -> None:
        """Destroys the agent's instances that are not held. One that fails is tried again later, and its slices are not
        offered until then."""
        unheld = self._not_held()
        self._unheld = frozenset(unheld)
        self._not_destroyed = {one: why for one, why in self._not_destroyed.items() if one in unheld}
        for one in unheld:
            try:
                await self._timed("destroy", partial(nvml.destroy, own=one), one.place.gpu)
                await self._drop(one)
            except (ValueError, OSError, Hung) as error:
                if self._not_destroyed.get(one) != str(error):
                    fields = msgspec.structs.asdict(one.place)
                    self._ctx.log.warning("mig_instance_not_destroyed", **fields, why=str(error))
                self._not_destroyed[one] = str(error)
                continue
            self._not_destroyed.pop(one, None)

    def _not_held(self) -> list[Own]:
        """The agent's instances that no container of their pod holds, and no container of another pod either: a
        grant that names an instance by its UUID is of that one, and of no place for one, from when the layout was
        fixed."""
        shares = list(self._held())
        held = {(uid, place_of(share)) for uid, share in shares}
        named = {place_of(share) for _, share in shares if share.mig is not None and share.mig.uuid}
        return [one for one in self._record.own if (one.holder, one.place) not in held and one.place not in named]

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
            trial = Own(place=place)
            await self._begin(trial)
            trial = await self._gpu_instance(trial)
            await self._timed("make", partial(nvml.fill, own=trial), gpu.uuid)
            await self._destroy_unheld()
            if trial in self._record.own:
                return self._not_destroyed.get(trial, "its trial instance was not destroyed")
            await self._save(msgspec.structs.replace(self._record, proven={**self._record.proven, gpu.uuid: driver}))
        except (ValueError, OSError, Hung) as error:
            return str(error)
        self._ctx.log.info("mig_proven", gpu=gpu.uuid, driver=driver)
        return ""

    # --- the loop ---------------------------------------------------------------------------------------------------

    async def _run(self, report: Callable[[], Awaitable[None]]) -> None:
        told = self._state()
        while True:
            async with self._one:
                await self._destroy_unheld()
            await self._prove_all()
            self._tell()
            if self._state() != told:
                told = self._state()
                await report()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._wake.wait(), TRY_AGAIN_S)
            self._wake.clear()

    def _state(self) -> tuple[dict[str, str], frozenset[Own], tuple[Own, ...]]:
        """What the inventory depends on. On demand the agent's own instances are in none."""
        return self._record.proven, frozenset(self._not_destroyed), () if self.on_demand else self._record.own

    async def _prove_all(self) -> None:
        inventory, now = self._inventory(), time.monotonic()
        if inventory is None or not inventory.driver_version or not self.on_demand or now < self._prove_at:
            return
        self._prove_at = now + TRY_AGAIN_S
        driver = inventory.driver_version
        unproven: dict[str, str] = {}
        for gpu in inventory.gpus:
            if not gpu.mig_enabled or self._record.proven.get(gpu.uuid) == driver:
                continue
            async with self._one:
                why = await self._prove(gpu, driver)
            if why and self._unproven.get(gpu.uuid) != why:
                self._ctx.log.warning("mig_not_proven", gpu=gpu.uuid, why=why)
            unproven |= {gpu.uuid: why} if why else {}
        self._unproven = unproven

    def _tell(self) -> None:
        troubles = [f"GPU {uuid} offers no MIG instances on demand: {why}" for uuid, why in self._unproven.items()]
        troubles += [f"not destroyed: {why}" for why in self._not_destroyed.values()]
        if troubles:
            self._ctx.health.set("mig", ok=True, detail="; ".join(troubles))
        else:
            self._ctx.health.clear("mig")

    async def _keep(self, own: Own, instead_of: Own | None = None) -> None:
        others = (one for one in self._record.own if one not in (own, instead_of))
        await self._save(msgspec.structs.replace(self._record, own=(*others, own)))

    async def _drop(self, own: Own) -> None:
        others = tuple(one for one in self._record.own if one != own)
        await self._save(msgspec.structs.replace(self._record, own=others))

    async def _save(self, changed: record.Record) -> None:
        """Raises MigError; then nothing has changed."""
        if changed == self._record:
            return
        try:
            await asyncio.to_thread(record.save, self._file, changed)
        except OSError as error:
            why = f"the record of MIG instances cannot be written; free some space in {self._file.parent}: {error}"
            raise MigError(why) from error
        self._record = changed

    async def _timed(self, step: str, do: Callable[[Any], T], gpu: str) -> T:
        begun = time.monotonic()
        result = await self._worker.call(lambda: _initialised(lambda: do(pynvml.nvmlDeviceGetHandleByUUID(gpu))))
        self._seconds.observe(time.monotonic() - begun, step)
        return result

    def _count(self) -> dict[tuple[str, ...], float]:
        counts: dict[tuple[str, ...], float] = {}
        for one in self._record.own:
            key = (one.place.gpu, one.place.profile)
            counts[key] = counts.get(key, 0.0) + 1
        return counts


def _place(gpu: Gpu, instance: MigInstance) -> Place:
    return Place(gpu=gpu.uuid, profile=instance.profile, start=instance.start)


def _ids_of(uuid: str) -> Ids:
    handle = pynvml.nvmlDeviceGetHandleByUUID(uuid)
    return pynvml.nvmlDeviceGetGpuInstanceId(handle), pynvml.nvmlDeviceGetComputeInstanceId(handle)


def _initialised(do: Callable[[], T]) -> T:
    """Raises MigError if NVML fails."""
    try:
        with _nvml():
            return do()
    except pynvml.NVMLError as error:
        raise MigError(f"NVML: {error}") from error


@contextlib.contextmanager
def _nvml() -> Iterator[None]:
    pynvml.nvmlInit()
    try:
        yield
    finally:
        pynvml.nvmlShutdown()
