"""CDI specs as files: which of them the runtime can use."""

from __future__ import annotations

from pathlib import Path

import pytest

from services.node_agent.cdi.spec import ContainerEdits
from services.node_agent.cdi.writer import SpecDir, spec_files


@pytest.fixture
def specs(tmp_path: Path) -> SpecDir:
    made = SpecDir(tmp_path, "kerf.dev/slice")
    for uid in ("a", "b"):
        made.write(("slot-1",), uid, "main", ContainerEdits(env=("A=1",)))
    return made


def usable(folder: Path) -> list[str]:
    """Those that a runtime reads."""
    return sorted(path.name for path in folder.iterdir() if path.suffix in (".json", ".yaml"))


def test_a_withdrawn_spec_is_of_no_use_to_the_runtime_until_it_is_written_again(specs: SpecDir, tmp_path: Path) -> None:
    specs.withdraw([("a", "main")])
    specs.withdraw([("a", "main")])
    assert usable(tmp_path) == ["kerf-slice-b-main-slot-1.json"]
    assert len(spec_files(tmp_path)) == 2, "it says that the pod was handed GPUs"
    specs.write(("slot-1",), "a", "main", ContainerEdits(env=("A=2",)))
    assert usable(tmp_path) == ["kerf-slice-a-main-slot-1.json", "kerf-slice-b-main-slot-1.json"]
    assert len(spec_files(tmp_path)) == 2


def test_nothing_to_withdraw_withdraws_nothing(specs: SpecDir, tmp_path: Path) -> None:
    specs.withdraw([])
    assert len(usable(tmp_path)) == 2


def test_a_withdrawn_spec_goes_with_its_container(specs: SpecDir, tmp_path: Path) -> None:
    specs.withdraw([("a", "main")])
    specs.keep_only([("b", "main")])
    assert spec_files(tmp_path) == usable(tmp_path) == ["kerf-slice-b-main-slot-1.json"]
