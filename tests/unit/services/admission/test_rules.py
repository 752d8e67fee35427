"""The API server's own policies and the webhook know the same annotations."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args, get_type_hints

from services.admission.rules import READ_ANNOTATIONS
from shared.model.request import TOPOLOGY_MODES, PodRequest

K8S = Path(__file__).parents[4] / "k8s"


def test_what_a_placement_was_decided_on_is_guarded_alike() -> None:
    policy = (K8S / "22-policy-grant.yaml").read_text()
    guarded = policy[policy.index("['kerf.dev/isolation'") : policy.index("].all(k,")]
    assert set(re.findall(r"'(kerf\.dev/[a-z-]+)'", guarded)) == set(READ_ANNOTATIONS)


def test_choices_are_the_same_in_both() -> None:
    policy = (K8S / "21-policy-request.yaml").read_text()
    for annotation, choices in (
        ("topology-mode", TOPOLOGY_MODES),
        ("gpu-prefer", get_args(get_type_hints(PodRequest)["prefer"])[1:]),
    ):
        line = re.search(rf"notes\[\?'kerf\.dev/{annotation}'\]\.orValue\('[a-z0-9-]+'\) in \[([^\]]*)\]", policy)
        assert line is not None
        assert tuple(re.findall(r"'([a-z0-9-]+)'", line[1])) == choices
