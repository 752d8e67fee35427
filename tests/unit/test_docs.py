"""What the documents name exists: settings, codes, links, commands."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest

from cli.__main__ import _parser
from shared.service import Lifecycle, load

ROOT = Path(__file__).parents[2]
DOCUMENTS = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md"), ROOT / "compose" / "README.md"])
SERVICES = ("placement", "watcher", "admission", "node_agent", "preemptor", "metrics")
_SOURCES = [path.read_text() for folder in ("services", "shared") for path in (ROOT / folder).rglob("*.py") if path.name != "examples.py"]


@pytest.mark.parametrize("service", SERVICES)
def test_every_setting_is_in_the_operators_guide(service: str) -> None:
    text = (ROOT / "docs" / "operators.md").read_text()
    own = text[text.index(f"\n{service}:\n") :]
    own = own[: own.index("\n\n", own.index("|---"))]
    assert {f.encode_name for f in msgspec.structs.fields(load(service).config_type)} == _named(own)


def test_every_setting_of_the_lifecycle_is_in_the_operators_guide() -> None:
    text = (ROOT / "docs" / "operators.md").read_text()
    own = text[text.index("Every service (lifecycle):") : text.index("`OTEL_EXPORTER_OTLP_ENDPOINT`")]
    assert {f.encode_name for f in msgspec.structs.fields(Lifecycle)} == _named(own)


def _named(table: str) -> set[str]:
    """The names in the first column."""
    rows = [line.split("|")[1] for line in table.splitlines() if line.startswith("| `")]
    return {name for row in rows for name in re.findall(r"`([a-z0-9_]+)`", row)}


def test_every_metric_is_in_the_operators_guide() -> None:
    text = (ROOT / "docs" / "operators.md").read_text()
    calls = re.compile(r'(?:counter|gauge|histogram|observe_by)\(\s*"(kerf_[a-z_0-9]+)"')
    made = {name for source in _SOURCES for name in calls.findall(source)}
    assert made
    # Prometheus adds _total to a counter's name.
    assert {name for name in made if f"`{name}`" not in text and f"`{name}_total`" not in text} == set()


def test_every_code_of_a_refusal_is_in_the_users_guide() -> None:
    text = (ROOT / "docs" / "users.md").read_text()
    codes = {code for source in _SOURCES for code in re.findall(r'RequestError\(\s*"([a-z-]+)"', source)}
    reasons = {code for source in _SOURCES for code in re.findall(r'Reason\(\s*code="([a-z-]+)"', source)}
    assert codes
    assert reasons
    assert {code for code in codes | reasons if f"`{code}`" not in text} == set()


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(document: Path) -> None:
    targets = re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", document.read_text())
    local = [target for target in targets if "://" not in target]
    assert [target for target in local if not (document.parent / target).exists()] == []


def test_the_commands_of_the_readme_are_commands() -> None:
    asked = re.findall(r"^\$ (?:\.venv/bin/)?kerf ([^#\n]+)", (ROOT / "README.md").read_text(), re.MULTILINE)
    assert asked
    for line in asked:
        assert _parser().parse_args(line.split()).run
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = {name for document in DOCUMENTS for name in re.findall(r"`make ([a-z-]+)", document.read_text())}
    assert named <= targets


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_the_tests_and_files_that_a_document_names_exist(document: Path) -> None:
    files = list((ROOT / "tests").rglob("test_*.py"))
    known = {path.stem for path in files} | {name for path in files for name in re.findall(r"def (test_\w+)", path.read_text())}
    text = document.read_text()
    assert {name for name in re.findall(r"\b(test_[a-z0-9_]+)\b(?!\*)", text) if name not in known and not name.endswith("_")} == set()
    paths = set(re.findall(r"`((?:services|shared|cli|tests|bench|k8s|compose|schemas|docs|tools)/[\w./-]*\w)", text))
    # `tests/cluster/test_admission_*.py` names several.
    assert {path for path in paths if not any(ROOT.glob(f"{path}*"))} == set()
