"""The map of GPUs by which memory comes back to other ones, and which amended grants are moves."""

from __future__ import annotations

import msgspec
import pytest

from services.node_agent.moves import Move, MoveError, can_move, identity, mapped, place_of, why_not_a_move
from shared.model.gpu import Gpu
from shared.model.grant import ContainerGrant, GpuShare, Grant

MODELS = {"a": "H200", "b": "H200", "c": "H200", "d": "L4"}


def parts(text: str) -> dict[str, str]:
    return dict(pair.split("=") for pair in text.split(","))


@pytest.mark.parametrize(
    ("old", "new"), [("a", "b"), ("ab", "ba"), ("ab", "bc"), ("abc", "bca"), ("ab", "cb"), ("a", "a"), ("ad", "cd")]
)
def test_a_map_is_a_permutation_of_all_gpus_that_keeps_models(old: str, new: str) -> None:
    found = parts(mapped(list(old), list(new), MODELS))
    assert set(found) == set(found.values()) == set(MODELS)
    assert [found[uuid] for uuid in old] == list(new)
    assert all(MODELS[one] == MODELS[other] for one, other in found.items())
    assert all(found[uuid] == uuid for uuid in MODELS if uuid not in old and uuid not in new)


@pytest.mark.parametrize(("old", "new"), [("a", "d"), ("a", "e"), ("e", "a"), ("ab", "c"), ("ab", "cc"), ("aa", "bc")])
def test_another_model_another_count_and_unknown_gpus_have_no_map(old: str, new: str) -> None:
    with pytest.raises(MoveError):
        mapped(list(old), list(new), MODELS)


def test_a_process_that_is_where_it_shall_be_needs_no_map_except_to_try_one() -> None:
    move = Move(before="a", after="b", models=MODELS)
    assert move.step("b") is None
    tried = msgspec.structs.replace(move, tries=True).step("b")
    assert tried is not None
    assert (tried.mapped, tried.before, tried.after) == (identity(MODELS), "b", "b")
    step = move.step("c")
    assert step is not None
    assert parts(step.mapped)["c"] == "b"


def share(uuid: str, mib: int = 10) -> GpuShare:
    return GpuShare(node="n", uuid=uuid, memory_mib=mib, compute_milli=100)


def grant(*containers: str, any_gpu: bool = True, mib: int = 10) -> Grant:
    return Grant(
        grant_id="g",
        term=1,
        any_gpu=any_gpu,
        containers={
            f"c{place}": ContainerGrant(strategy="interposer", gpus=tuple(share(uuid, mib) for uuid in uuids))
            for place, uuids in enumerate(containers)
        },
    )


def test_a_place_has_each_gpu_once_in_the_grants_order() -> None:
    assert place_of(grant("ba", "ac"), "n") == "b,a,c"
    assert place_of(grant("ba"), "m") == ""


@pytest.mark.parametrize(
    ("before", "after", "why"),
    [
        (grant("a", "a"), grant("b", "b"), ""),
        (grant("ab"), grant("ba"), ""),
        (grant("a"), grant("b", any_gpu=False), "their own GPUs alone"),
        (grant("a"), grant("b", mib=11), "other amounts"),
        (grant("a"), grant("bc"), "another number"),
        (grant("a"), grant("b", "b"), "other containers"),
        (grant("a", "a"), grant("b", "c"), "would come to two"),
        (grant("a", "b"), grant("c", "c"), "would come to one"),
    ],
)
def test_a_move_puts_each_gpu_in_another_ones_place_and_changes_nothing_else(
    before: Grant, after: Grant, why: str
) -> None:
    assert why in why_not_a_move(before, after)
    assert bool(why) == bool(why_not_a_move(before, after))


def gpu(uuid: str, model: str = "H200", *, mig: bool = False) -> Gpu:
    return Gpu(uuid=uuid, index=0, model=model, memory_mib=10, mig_enabled=mig)


def test_a_node_can_move_from_r580_on_between_gpus_of_one_model_without_mig() -> None:
    two = (gpu("a"), gpu("b"))
    assert can_move(two, "580.65.06")
    assert can_move(two, "1000.1")
    assert not any(can_move(two, version) for version in ("579.99", "95.1", "", "open"))
    assert not can_move((gpu("a"), gpu("b", "L4")), "580.1")
    assert not can_move((gpu("a"), gpu("b", mig=True)), "580.1")
    assert not can_move((gpu("a"),), "580.1")
