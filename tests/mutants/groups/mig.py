"""MIG instances on demand: none of others is touched, and none is left."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

INSTANCES, CALLS = "services/node_agent/mig/instances.py", "services/node_agent/mig/nvml.py"
CONTRACT = ("tests/contract/test_mig_on_demand.py",)
REAL_CALLS = ("tests/unit/services/node_agent/mig/test_nvml.py",)

MUTANTS = (
    Mutant(
        name="mig-record-after",
        what="an instance is recorded after it was made, so a crash leaves one that is nobody's",
        file=INSTANCES,
        old="""            await self._save(msgspec.structs.replace(self._record, own=(*self._record.own, place)))
        return await self._timed("make", lambda handle: nvml.make(handle, place), place.gpu)""",
        new="""        ids = await self._timed("make", lambda handle: nvml.make(handle, place), place.gpu)
        await self._save(msgspec.structs.replace(self._record, own=(*self._record.own, place)))
        return ids""",
        tests=CONTRACT,
    ),
    Mutant(
        name="mig-takes-others",
        what="an instance that stands in the granted place is taken for the agent's own",
        file=INSTANCES,
        old='if await self._timed("look", lambda handle: nvml.stands(handle, place), place.gpu):',
        new="if False:",
        tests=CONTRACT,
    ),
    Mutant(
        name="mig-old-boot",
        what="the record of an earlier boot still counts",
        file="services/node_agent/mig/record.py",
        old="return found if found.boot_id == boot_id else Record(boot_id=boot_id, proven=found.proven)",
        new="return found",
        tests=CONTRACT,
    ),
    Mutant(
        name="mig-destroys-held",
        what="instances of running containers are destroyed",
        file=INSTANCES,
        old="unheld = set(self._record.own) - {place_of(share) for share in self._held()}",
        new="unheld = set(self._record.own)",
        tests=CONTRACT,
    ),
    Mutant(
        name="mig-stuck-is-free",
        what="the slices of an instance that could not be destroyed are offered",
        file=INSTANCES,
        old="own = [place for place in self._record.own if place not in self._not_destroyed]",
        new="own = list(self._record.own)",
        tests=CONTRACT,
    ),
    Mutant(
        name="mig-unproven",
        what="a GPU offers instances on demand before one was made there",
        file=INSTANCES,
        old="if self._record.proven.get(gpu.uuid) != text(pynvml.nvmlSystemGetDriverVersion()):",
        new="if False:",
        tests=CONTRACT,
    ),
    Mutant(
        name="mig-in-use",
        what="an instance is destroyed without a look at its processes",
        file=CALLS,
        old="        if users:\n",
        new="        if False:\n",
        tests=REAL_CALLS,
    ),
    Mutant(
        name="mig-half",
        what="a second instance is made instead of completing the half of one",
        file=CALLS,
        old="gi = next((gi for gi in _gpu_instances(handle, profile) if _standing(gi, place.profile).at(place)), None)",
        new="gi = None",
        tests=REAL_CALLS,
    ),
)
