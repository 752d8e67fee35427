"""Each unit test has the name of what it tests, in the folder that mirrors it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
UNIT = ROOT / "tests" / "unit"
MIRRORED = {"chaos": ROOT / "tests"}
"""Where a folder of tests/unit is mirrored, if not at the root."""
SEVERAL = {
    "test_imports.py": "the imports of all packages",
    "test_security.py": "docs/security.md and the manifests",
    "services/preemptor/test_both_cores.py": "placement and the preemptor",
    "services/preemptor/test_faults.py": "placement and the preemptor, with faults",
    "services/preemptor/test_migrations_both_cores.py": "placement and the preemptor, with migrations",
    "services/preemptor/test_tables.py": "placement and the preemptor, by the rows of tables.py",
}
"""Tests of several services together, which have the name of what they do."""


def test_a_test_file_has_the_name_of_a_module_or_package() -> None:
    """`test_core_releases.py` tests `core.py`; a package may be tested as a whole, by its own name."""
    files = {path.relative_to(UNIT) for path in UNIT.rglob("test_*.py")}
    several = {Path(name) for name in SEVERAL}
    assert several <= files
    assert sorted(str(path) for path in files - several if not _has_subject(path)) == []


def _has_subject(path: Path) -> bool:
    folder = MIRRORED.get(path.parts[0], ROOT) / path.parent
    tested = {folder.name, *(entry.stem for entry in folder.iterdir() if entry.is_dir() or entry.suffix == ".py")}
    subject = path.stem.removeprefix("test_")
    return any(subject == one or subject.startswith(f"{one}_") for one in tested)


def test_tests_of_one_group_run_in_one_process(tmp_path: Path) -> None:
    """Tests that share a control plane, a node or a port count on it, and pytest-xdist does not say when it stops."""
    names = [f"test_{number}" for number in range(8)]
    body = "def {}(worker_id): open({!r}, 'a').write(worker_id + '\\n')"
    lines = ["import pytest", "pytestmark = pytest.mark.xdist_group('one')"]
    lines += [body.format(name, str(tmp_path / "workers")) for name in names]
    (tmp_path / "test_group.py").write_text("\n".join(lines))
    command = [sys.executable, "-m", "pytest", "-q", "-n", "2", "--dist", "loadgroup", "--rootdir", str(tmp_path)]
    subprocess.run([*command, str(tmp_path / "test_group.py")], check=True, cwd=tmp_path, stdout=subprocess.DEVNULL)
    workers = (tmp_path / "workers").read_text().split()
    assert (len(workers), len(set(workers))) == (len(names), 1)
