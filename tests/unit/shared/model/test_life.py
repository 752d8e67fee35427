"""How long a pod has to end."""

from __future__ import annotations

import msgspec
import pytest

from shared.model.life import DEFAULT_GRACE_S, grace_s
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
