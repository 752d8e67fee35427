"""The annotation of a suspended pod, by its present and its former name."""

from __future__ import annotations

import pytest

from shared.book.states import pod_state
from shared.model import names
from shared.model.suspension import Suspension, annotated_suspension, encode_suspension
from tests.support import build

PAUSE = Suspension(action="pause", plan_id="plan")


@pytest.mark.parametrize("name", [names.ANNOTATION_SUSPENDED, names.ANNOTATION_PARKED])
def test_a_pod_is_suspended_by_either_name_of_the_annotation(name: str) -> None:
    pod = build.gpu_pod("p", gpus=1, annotations={name: encode_suspension(PAUSE)})
    assert pod_state(pod).suspension == PAUSE


def test_the_present_name_precedes_the_former_one() -> None:
    both = {names.ANNOTATION_SUSPENDED: "now", names.ANNOTATION_PARKED: "before"}
    assert annotated_suspension(both) == "now"


def test_an_annotation_that_cannot_be_read_suspends_nothing() -> None:
    pod = build.gpu_pod("p", gpus=1, annotations={names.ANNOTATION_SUSPENDED: "{"})
    assert pod_state(pod).suspension is None
