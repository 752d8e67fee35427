"""MIG instances on demand: none of others is touched, and none is left."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

INSTANCES, CALLS = "services/node_agent/mig/instances.py", "services/node_agent/mig/nvml.py"
CONTRACT = ("tests/contract/test_mig_on_demand.py",)
REAL_CALLS = ("tests/unit/services/node_agent/mig/test_nvml.py",)

MUTANTS = (
    Mutant(
        name="mig-without-intent",
        what="an instance is made before it is recorded, so a crash leaves one that is nobody's",
        file=INSTANCES,
        old="        await self._keep(own)\n\n    async def _gpu_instance",
        new="        self._record = msgspec.structs.replace(self._record, own=(*self._record.own, own))\n\n    async def _gpu_instance",
        tests=CONTRACT,
        survives="the id is recorded right after; only a crash between the two would show it",
    ),
    Mutant(
        name="mig-without-id",
        what="the id of an instance is not recorded",
        file=INSTANCES,
        old="await self._keep(numbered, instead_of=own)",
        new="self._record = msgspec.structs.replace(self._record, own=(numbered,))",
        tests=CONTRACT,
    ),
    Mutant(
        name="mig-takes-others",
        what="an instance that stands in the granted place is taken for the agent's own",
        file="services/node_agent/mig/layout.py",
        old="return self.at(own.place) and (self.empty if own.id is None else self.id == own.id)",
        new="return self.at(own.place)",
        tests=("tests/unit/services/node_agent/mig/test_layout.py",),
    ),
    Mutant(
        name="mig-for-another-pod",
        what="an instance of an earlier pod is given to the next one",
        file=INSTANCES,
        old="if known is not None and known.holder != uid:",
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
        old="unheld = [one for one in self._record.own if (one.holder, one.place) not in held]",
        new="unheld = list(self._record.own)",
        tests=CONTRACT,
    ),
    Mutant(
        name="mig-stuck-is-free",
        what="the slices of an instance that could not be destroyed are offered",
        file=INSTANCES,
        old="own = [one for one in (*before, *self._record.own) if one not in self._not_destroyed]",
        new="own = [*before, *self._record.own]",
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
        old="    if mine is not None:\n",
        new="    if False:\n",
        tests=REAL_CALLS,
    ),
)
