"""`kerf drain` while agents and watchers come and go, and while placement has not heard of it yet."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from cli import cordon
from shared.bus.port import NoResponder, Unknown
from shared.contracts import queries, subjects
from shared.contracts.base import decode, encode
from shared.contracts.commands import Answer, Answers, EvictBatch
from shared.contracts.node_commands import CordonedPod, NodeCordon, NodeCordonAnswer
from shared.contracts.queries import InspectAnswer, InspectGpu, InspectNode, InspectPod

ORDER = NodeCordon(node="n", by="me")
POD = CordonedPod(uid="u", namespace="team", name="p", running=True)


class Bus:
    """Answers each subject with what was scripted for it, the last of it again and again."""

    def __init__(self, **scripted: list[Any]) -> None:
        self.scripted = {
            subjects.node_command("n", "cordon"): scripted["agent"],
            subjects.CMD_EVICT: scripted.get("watcher", []),
            queries.INSPECT.subject: scripted.get("placement", [on_book("draining")]),
        }
        self.evicted: list[str] = []

    async def request(self, subject: str, payload: bytes, *, timeout_s: float = 2.0) -> bytes:
        assert timeout_s > 0
        script = self.scripted[subject]
        said = script.pop(0) if len(script) > 1 else script[0]
        if isinstance(said, Exception):
            raise said
        if subject == subjects.CMD_EVICT:
            self.evicted += [one.name for one in decode(payload, EvictBatch).evictions]
        return encode(said)


def there(*pods: CordonedPod) -> NodeCordonAnswer:
    return NodeCordonAnswer(ok=True, gpus=("GPU-1",), pods=pods)


def on_book(state: str, *pods: InspectPod) -> InspectAnswer:
    gpu = InspectGpu(
        uuid="GPU-1",
        index=0,
        model="H200",
        state=state,
        memory_mib=1,
        allocated_memory_mib=0,
        allocated_compute_milli=0,
        pods=pods,
    )
    return InspectAnswer(nodes=(InspectNode(node="n", gpus=(gpu,)),))


ACCEPTED = Answers(answers=(Answer(uid="u", outcome="done"),))


@pytest.fixture
def drain(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    monkeypatch.setattr(cordon, "LOOK_S", 0.001)
    monkeypatch.setattr(cordon, "AGAIN_S", 0.001)

    async def run(bus: Any, timeout_s: float = 30.0) -> tuple[list[str], list[cordon.Left]]:
        return await cordon._drain(bus, ORDER, timeout_s, quiet=True)

    return run


@pytest.mark.parametrize("away", [NoResponder("no agent"), Unknown("no answer")])
async def test_an_agent_that_is_away_for_a_moment_ends_nothing(drain: Callable[..., Any], away: Exception) -> None:
    bus = Bus(agent=[there(POD), away, away, there()], watcher=[ACCEPTED])
    assert await drain(bus) == (["team/p"], [])
    assert bus.evicted == ["p"]


async def test_an_agent_that_is_not_there_at_first_is_a_failure_before_anything_was_done(
    drain: Callable[..., Any],
) -> None:
    with pytest.raises(cordon.Away, match="is not connected to this NATS, and was told nothing"):
        await drain(Bus(agent=[NoResponder("no agent")]))


async def test_a_pod_is_asked_to_go_again_when_a_watcher_is_back(drain: Callable[..., Any]) -> None:
    gone = NoResponder("no watcher")
    bus = Bus(agent=[there(POD), there(POD), there(POD), there(POD), there()], watcher=[gone, gone, ACCEPTED])
    assert await drain(bus) == (["team/p"], [])
    assert bus.evicted == ["p"]


async def test_what_is_left_at_the_end_is_told_with_why(drain: Callable[..., Any]) -> None:
    bus = Bus(agent=[there(POD)], watcher=[NoResponder("no watcher")])
    assert await drain(bus, 0.02) == ([], [cordon.Left("team", "p", "no watcher is connected to this NATS")])


async def test_a_leader_that_changes_while_a_node_is_drained_is_waited_for(
    drain: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cli.ask._LEADERLESS_S", 0.0)
    gone = NoResponder("no placement")
    assert await drain(Bus(agent=[there()], placement=[gone, gone, on_book("draining")])) == ([], [])
    (left,) = (await drain(Bus(agent=[there()], placement=[gone]), 0.02))[1]
    assert (left.name, "no placement leader" in left.why) == ("n", True)


async def test_a_node_is_not_drained_before_placement_has_heard_of_it(drain: Callable[..., Any]) -> None:
    """A Binding may be on its way: the pod would start on a GPU that was told to be empty."""
    coming = InspectPod(namespace="team", name="late", memory_mib=1, compute_milli=1, state="holding")
    reserved = InspectPod(namespace="team", name="next", memory_mib=1, compute_milli=1, state="reserved")
    looks = [on_book("healthy"), on_book("draining", coming), on_book("draining", reserved)]
    bus = Bus(agent=[there()], placement=looks)
    assert await drain(bus) == ([], [])
    assert len(looks) == 1, "it looked until nothing was coming"
    late = Bus(agent=[there()], placement=[on_book("draining", coming)])
    assert await drain(late, 0.02) == ([], [cordon.Left("team", "late", "holding there, by placement's book")])
