"""What limits slices have while it is looked at whether they can be shrunk."""

from __future__ import annotations

import asyncio
import contextlib
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from services.node_agent import messages as m
from services.node_agent.slice_resizer import SliceResizer, as_it_is_now
from services.node_agent.state import KnownGrant
from services.node_agent.strategies.slices import slice_of
from shared.model.suspension import Suspension
from shared.model.units import MIB
from tests.unit.services.node_agent.make import NODE, release, start
from tests.unit.services.node_agent.test_resizes import amended, shrinking, task_of
from tests.unit.services.node_agent.test_suspensions import share, slices

BEFORE_MIB, AFTER_MIB = 500, 100


class Limits:
    """A strategy's driver, with the limits that it was told. `fails_at`: which of its writes fails."""

    def __init__(self, fails_at: int = -1) -> None:
        self.mib: list[int] = []
        self._fails_at = fails_at

    def prepare(self, slice_: Any) -> None:
        if len(self.mib) == self._fails_at:
            raise OSError("disk full")
        self.mib.append(slice_.parts[0].memory_mib)


def shrink(limits: Limits, *nvml_mib: int) -> m.ResizeDone:
    """`nvml_mib`: what the pod has when NVML is asked, one after the other."""
    seen = list(nvml_mib)

    async def memory(uid: str) -> dict[str, tuple[int, int]]:
        return {"G0": (seen.pop(0), 0)}

    async def nothing() -> None:
        pass

    gpu = SimpleNamespace(uuid="G0", held_bytes=50 * MIB)
    suspender: Any = SimpleNamespace(
        alone_with=lambda _uids: contextlib.nullcontext(),
        drivers={"interposer": limits},
        registry=SimpleNamespace(read=lambda key: SimpleNamespace(damage="", gpus=[gpu])),
        memory=memory,
    )
    ctx: Any = SimpleNamespace(log=SimpleNamespace(info=lambda *words, **more: None))
    agent: Any = SimpleNamespace(store=SimpleNamespace(lease=lambda *key: True), node="n1")
    bursts: Any = None
    before = share("a", compute=300, memory=BEFORE_MIB).grant
    after = msgspec.structs.replace(amended("a", AFTER_MIB).grant)
    task = m.ResizeTask("g", "u-a", ("main",), before, after, shrinks=True)
    resizer = SliceResizer(ctx, agent, suspender, bursts, {}, resized=nothing)
    return asyncio.run(resizer.resize(m.ResizeSlices(task)))


def test_a_program_that_has_more_keeps_its_limit_all_the_time() -> None:
    limits = Limits()
    assert "390 MiB" in shrink(limits, 390).reason
    assert limits.mib == []


def test_a_program_that_takes_more_meanwhile_gets_its_limit_back() -> None:
    limits = Limits()
    done = shrink(limits, 90, 390)
    assert (limits.mib, done.is_partial) == ([AFTER_MIB, BEFORE_MIB], False)
    assert "390 MiB" in done.reason


def test_limits_that_could_not_be_written_back_are_told_of() -> None:
    limits = Limits(fails_at=1)
    done = shrink(limits, 90, 390)
    assert (limits.mib, done.is_partial) == ([AFTER_MIB], True)


def test_a_program_that_has_less_is_shrunk() -> None:
    limits = Limits()
    done = shrink(limits, 90, 90)
    assert (limits.mib, done.reason) == ([AFTER_MIB], "")


def test_a_container_that_is_still_being_prepared_gets_the_amounts_of_that_moment() -> None:
    core = slices(compute=300)
    core.handle(m.GrantReceived(share("a", compute=300)), 0.0)
    (order,) = [one for one in core.handle(start("a"), 0.0) if isinstance(one, m.HandOver)]
    before = slice_of(order.uid, order.container, order.share, None, NODE)
    asked = task_of(core.handle(m.GrantReceived(shrinking("a", AFTER_MIB)), 0.0))
    with pytest.raises(ValueError, match="being shrunk"):
        as_it_is_now(core, order, before, None)
    core.handle(m.ResizeDone(asked.request, asked.task), 0.0)
    assert as_it_is_now(core, order, before, None)[0].parts[0].memory_mib == AFTER_MIB


@pytest.mark.parametrize("action", ["pause", "checkpoint"])
def test_a_container_that_is_still_being_prepared_is_as_suspended_as_its_pod(action: str) -> None:
    """Others may have been given what it gives up."""
    core = slices(compute=300)
    core.handle(m.GrantReceived(share("a", compute=300)), 0.0)
    (order,) = [one for one in core.handle(start("a"), 0.0) if isinstance(one, m.HandOver)]
    before = slice_of(order.uid, order.container, order.share, None, NODE)
    assert as_it_is_now(core, order, before, None)[1] is None
    suspension = Suspension(plan_id="p", action=action)  # type: ignore[arg-type]
    core.handle(m.GrantReceived(msgspec.structs.replace(share("a", compute=300), suspension=suspension, number=9)), 0.0)
    if action == "pause":
        assert as_it_is_now(core, order, before, None)[1] == suspension
    else:
        with pytest.raises(ValueError, match="suspended by checkpoint"):
            as_it_is_now(core, order, before, None)
    core.handle(release("a"), 0.0)
    with pytest.raises(ValueError, match="being released"):
        as_it_is_now(core, order, before, None)


@pytest.mark.parametrize("memory_mib", [BEFORE_MIB, AFTER_MIB])
def test_a_served_slice_keeps_the_strategy_that_limits_it(memory_mib: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a slice of strategy `remote`, which has no driver, it ended the agent at its next look."""
    core = slices(compute=300)
    core.handle(m.GrantReceived(share("a", compute=300)), 0.0)
    (order,) = [one for one in core.handle(start("a"), 0.0) if isinstance(one, m.HandOver)]
    (gpu,) = order.share.gpus
    remote = msgspec.structs.replace(order.share, strategy="remote", serving=order.share.strategy)
    order = msgspec.structs.replace(order, share=remote.served)
    now = msgspec.structs.replace(remote, gpus=(msgspec.structs.replace(gpu, memory_mib=memory_mib),))
    monkeypatch.setattr(KnownGrant, "share", lambda *_: now)
    slice_, _ = as_it_is_now(core, order, slice_of(order.uid, order.container, order.share, None, NODE), None)
    assert (slice_.strategy, slice_.parts[0].memory_mib) == (order.share.strategy, memory_mib)
