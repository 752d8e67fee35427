"""The names of the CDI devices of ResourceClaims."""

from __future__ import annotations

import re
from pathlib import Path

from services.node_agent.cdi.spec import ContainerEdits
from services.node_agent.cdi.writer import SpecDir, spec_files
from services.node_agent.handover.dra import _device_of
from shared.model.claims import entry_of

CLAIM, POD = "0a1b2c3d-0000-4000-8000-00000000000c", "0a1b2c3d-0000-4000-8000-00000000000p"


def test_a_claims_next_pod_has_another_device() -> None:
    """The spec of the pod before may still be there: its release may be under way. Runtimes take two devices of one
    name for a conflict, and give neither."""
    entry = entry_of("mine", "gpu")
    names = {_device_of(CLAIM, pod, one) for pod in (POD, "another") for one in (entry, entry_of("mine", "second"))}
    assert len(names) == 4
    assert _device_of(CLAIM, POD, entry) == _device_of(CLAIM, POD, entry), "a prepared claim is prepared again"


def test_the_longest_names_of_claim_and_request_fit_into_a_file_name(tmp_path: Path) -> None:
    entry = entry_of("c" * 63, "r" * 63)
    name = _device_of(CLAIM, POD, entry)
    assert re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.:-]*[A-Za-z0-9]", name), "as CDI's ValidateDeviceName has it"
    SpecDir(tmp_path, "kerf.dev/slice").write((name,), POD, entry, ContainerEdits())
    (file,) = spec_files(tmp_path)
    assert len(file) + len(".new") <= 255
