"""kerf.v1.sim.apply and .delete: kubectl's part for the simulated cluster."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from services.simulator.webhook import NotAdmitted
from services.simulator.workloads import ManifestError
from shared.bus.port import Bus, Incoming, Subscription
from shared.contracts import subjects
from shared.contracts.base import ContractError, decode, encode
from shared.contracts.commands import SimAnswer, SimApply, SimDelete

Json = dict[str, Any]


async def subscribe(
    bus: Bus,
    apply: Callable[[Json], Awaitable[list[str]]],
    delete: Callable[[str, str, str], None],
    log: Any,
) -> list[Subscription]:
    """Subscribes to both orders.

    `apply` creates or replaces an object and returns warnings; `delete` gets kind, namespace and name. Both raise
    ManifestError, `apply` NotAdmitted too.
    """

    async def apply_all(incoming: Incoming) -> None:
        try:
            order = decode(incoming.payload, SimApply)
        except ContractError as error:
            await bus.respond(incoming, encode(SimAnswer(refusals=(str(error),))))
            return
        applied, refusals = 0, []
        for raw in order.objects:
            try:
                document = _document_of(raw)
                for warning in await apply(document):
                    log.info("sim_warning", warning=warning)
                applied += 1
            except (ManifestError, NotAdmitted) as error:
                refusals.append(f"{_title(raw)}: {error}")
        await bus.respond(incoming, encode(SimAnswer(applied=applied, refusals=tuple(refusals))))

    async def delete_one(incoming: Incoming) -> None:
        try:
            order = decode(incoming.payload, SimDelete)
            delete(order.kind, order.namespace, order.name)
        except (ContractError, ManifestError) as error:
            await bus.respond(incoming, encode(SimAnswer(refusals=(str(error),))))
            return
        await bus.respond(incoming, encode(SimAnswer(applied=1)))

    # One at a time and in order, as the pods of a manifest are created; each waits for its webhook call.
    return [await bus.subscribe(subjects.SIM_APPLY, apply_all), await bus.subscribe(subjects.SIM_DELETE, delete_one)]


def _title(raw: Any) -> str:
    try:
        document = _document_of(raw)
    except ManifestError:
        return "object"
    meta = document.get("metadata")
    name = meta.get("name") or meta.get("generateName", "") if isinstance(meta, dict) else ""
    return f"{document.get('kind', 'object')} {name}".strip()


def _document_of(raw: msgspec.Raw) -> Json:
    """Raises ManifestError where it is no JSON object."""
    try:
        return msgspec.json.decode(raw, type=dict[str, Any])
    except msgspec.DecodeError as error:
        raise ManifestError(f"this is no object: {error}") from error
