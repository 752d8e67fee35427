"""How long a pod has to end."""

from __future__ import annotations

import msgspec
import pytest

from shared.model.life import DEFAULT_GRACE_S, UNTOLD, grace_s, read_life
from shared.model.request import RequestError
from tests.support import build


@pytest.mark.parametrize(
    ("own", "given", "expected"),
    [(None, None, DEFAULT_GRACE_S), (600, None, 600), (0, None, 0), (-1, None, 0), (600, 5, 5), (5, 600, 600)],
)
def test_its_own_grace_period_or_the_one_that_it_was_deleted_with(
    own: int | None, given: int | None, expected: int
) -> None:
    pod = build.pod(termination_grace_period_seconds=own)
    deleted = msgspec.structs.replace(
        pod, metadata=msgspec.structs.replace(pod.metadata, deletion_grace_period_seconds=given)
    )
    assert grace_s(deleted) == expected


def test_a_pod_may_say_that_it_is_never_preempted() -> None:
    assert not read_life(build.pod(annotations={"kerf.dev/preemptible": "false"})).preemptible
    assert read_life(build.pod(annotations={"kerf.dev/preemptible": "true"})) == UNTOLD


@pytest.mark.parametrize(
    "annotations",
    [{"kerf.dev/preemptible": "never"}, {"kerf.dev/preemptible": "false", "kerf.dev/tier": "opportunistic"}],
)
def test_a_contradiction_on_preemption_is_refused(annotations: dict[str, str]) -> None:
    with pytest.raises(RequestError, match=r"kerf\.dev/preemptible"):
        read_life(build.pod(annotations=annotations))
