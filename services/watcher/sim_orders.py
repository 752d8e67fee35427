"""kerf.v1.sim.apply and .delete: kubectl's part for the simulated cluster."""

from __future__ import annotations

from typing import Any

from services.watcher.admit import NotAdmitted
from services.watcher.expand import ManifestError
from services.watcher.simulated import SimulatedSource, document_of
from shared.bus.port import Bus, Incoming, Subscription
from shared.contracts import subjects
from shared.contracts.base import ContractError, decode, encode
from shared.contracts.commands import SimAnswer, SimApply, SimDelete


async def subscribe(bus: Bus, source: SimulatedSource, log: Any) -> list[Subscription]:
    async def apply(incoming: Incoming) -> None:
        try:
            order = decode(incoming.payload, SimApply)
        except ContractError as error:
            await bus.respond(incoming, encode(SimAnswer(refusals=(str(error),))))
            return
        applied, refusals = 0, []
        for raw in order.objects:
            try:
                document = document_of(raw)
                for warning in await source.apply(document):
                    log.info("sim_warning", warning=warning)
                applied += 1
            except (ManifestError, NotAdmitted) as error:
                refusals.append(f"{_title(raw)}: {error}")
        await bus.respond(incoming, encode(SimAnswer(applied=applied, refusals=tuple(refusals))))

    async def delete(incoming: Incoming) -> None:
        try:
            order = decode(incoming.payload, SimDelete)
            source.delete(order.kind, order.namespace, order.name)
        except (ContractError, ManifestError) as error:
            await bus.respond(incoming, encode(SimAnswer(refusals=(str(error),))))
            return
        await bus.respond(incoming, encode(SimAnswer(applied=1)))

    # One at a time and in order, as the pods of a manifest are created; each waits for its webhook call.
    return [await bus.subscribe(subjects.SIM_APPLY, apply), await bus.subscribe(subjects.SIM_DELETE, delete)]


def _title(raw: Any) -> str:
    try:
        document = document_of(raw)
    except ManifestError:
        return "object"
    meta = document.get("metadata")
    name = meta.get("name") or meta.get("generateName", "") if isinstance(meta, dict) else ""
    return f"{document.get('kind', 'object')} {name}".strip()
