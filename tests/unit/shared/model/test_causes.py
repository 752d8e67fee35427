from __future__ import annotations

from services.placement import messages as m
from shared.model.causes import Inputs
from tests.support import build
from tests.support.harness.placement import Placement


def test_commands_carry_the_number_of_the_present_input() -> None:
    inputs = Inputs()
    inputs.begin()
    assert [command.cause for command in inputs.mark([m.Again(), m.TakeSnapshot()])] == [1, 1]
    inputs.begin()
    assert inputs.mark([m.Again()])[0].cause == 2


def test_a_binding_names_the_append_that_it_follows_from() -> None:
    placement = Placement().nodes("n")
    before = placement.core.inputs.count
    commands = placement.facts(build.gpu_pod(gpus=1))
    causes = {type(command): command.cause for command in commands}
    assert causes[m.Append] == before + 1, "the fact that the pod exists"
    assert causes[m.SendBinds] == before + 2, "the answer that its decision is in the log"
