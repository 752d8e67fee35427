"""MIG instances on demand: none of others is touched, and none is left."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

INSTANCES, CALLS = "services/node_agent/mig/instances.py", "services/node_agent/mig/nvml.py"
CONTRACT = ("tests/contract/test_mig_on_demand.py",)
LEFT = "tests/unit/services/node_agent/mig/test_instances.py"
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
        old="        unheld = self._not_held()\n",
        new="        unheld = list(self._record.own)\n",
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
    Mutant(
        name="mig-left-is-offered",
        what="an instance that ends with its pod is offered as an administrator's when the layout is fixed again",
        file=INSTANCES,
        old="ending = {one.place for one in self._unheld}",
        new="ending = set[Place]()",
        tests=(f"{LEFT}::test_one_that_is_not_held_is_not_offered_before_it_is_destroyed",),
    ),
    Mutant(
        name="mig-destroyed-under-another-pod",
        what="an instance that another pod was given by its UUID is destroyed when its first pod has ended",
        file=INSTANCES,
        old=" and one.place not in named]",
        new="]",
        tests=(f"{LEFT}::test_one_that_another_pod_was_given_by_its_uuid_is_not_destroyed_under_that_pod",),
    ),
    Mutant(
        name="mig-read-while-destroyed",
        what="a container gets the ids of an instance that is just being destroyed",
        file=INSTANCES,
        old="        if all(one.place != place for one in self._record.own):\n            return await self._read(uuid)\n",
        new="        if True:\n            return await self._read(uuid)\n",
        tests=(f"{LEFT}::test_a_container_that_starts_while_its_instance_is_destroyed_is_refused",),
    ),
    Mutant(
        name="mig-gone-is-reported-late",
        what="an instance that was destroyed stays in the inventory until that is read the next time",
        file=INSTANCES,
        old="() if self.on_demand else self._record.own\n",
        new="()\n",
        tests=(f"{LEFT}::test_an_instance_that_is_left_is_offered_for_as_long_as_its_pod_holds_it",),
    ),
)
