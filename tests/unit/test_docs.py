"""All that the documents name exists: settings, codes, links, anchors, commands, functions."""

from __future__ import annotations

import ast
import re
import shlex
from collections import Counter
from functools import cache
from pathlib import Path

import msgspec
import pytest

from cli.__main__ import parser
from shared.service import Lifecycle, load

ROOT = Path(__file__).parents[2]
DOCUMENTS = sorted(
    [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md"), ROOT / "compose" / "README.md"]
)
SERVICES = ("placement", "watcher", "admission", "node_agent", "preemptor", "metrics")
_SOURCES = [
    path.read_text()
    for folder in ("services", "shared")
    for path in (ROOT / folder).rglob("*.py")
    if path.name not in ("examples.py", "example_objects.py")
]


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
def test_links_and_their_anchors_resolve(document: Path) -> None:
    broken = []
    for target, anchor in re.findall(r"\]\(([^)#\s]*)(?:#([^)\s]*))?\)", _without_code(document.read_text())):
        if "://" in target:
            continue
        path = (document.parent / target) if target else document
        if not path.exists() or (anchor and (path.suffix != ".md" or anchor not in _anchors(path))):
            broken.append(f"{target}#{anchor}" if anchor else target)
    assert broken == []


def test_anchors_are_derived_from_headings_as_on_github(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "# R1 Term: one `session`\n## [What if](x.md), when?\n## Limits\n## Limits\n```\n# no heading\n```\n"
    )
    assert _anchors(page) == {"r1-term-one-session", "what-if-when", "limits", "limits-1"}


def _without_code(text: str) -> str:
    text = re.sub(r"^ *```.*?^ *```", "", text, flags=re.DOTALL | re.MULTILINE)
    return re.sub(r"`[^`\n]*`", "``", text)


@cache
def _anchors(document: Path) -> set[str]:
    """GitHub's: letters, digits, - and _ of a heading in lower case, blanks as dashes, a number after repeated ones."""
    seen: Counter[str] = Counter()
    text = re.sub(r"^ *```.*?^ *```", "", document.read_text(), flags=re.DOTALL | re.MULTILINE)
    for heading in re.findall(r"^#{1,6} +(.+?) *$", text, re.MULTILINE):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        seen[re.sub(r"[^\w\- ]", "", plain.lower()).replace(" ", "-")] += 1
    return {slug if not again else f"{slug}-{again}" for slug, times in seen.items() for again in range(times)}


def test_the_commands_of_the_documents_are_commands() -> None:
    line_of = re.compile(r"^(?:\$ )?(?:\.venv/bin/)?kerf ([a-z].*)$", re.MULTILINE)
    asked = {document: line_of.findall("\n".join(_blocks(document.read_text()))) for document in DOCUMENTS}
    assert asked[ROOT / "README.md"]
    for line in (line for lines in asked.values() for line in lines):
        assert parser().parse_args(shlex.split(line, comments=True)).run
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = {
        name
        for document in DOCUMENTS
        for name in re.findall(r"(?:`|^)make ([a-z-]+)", document.read_text(), re.MULTILINE)
    }
    assert named <= targets


def _blocks(text: str) -> list[str]:
    return re.findall(r"^ *```\w*\n(.*?)^ *```", text, re.DOTALL | re.MULTILINE)


def test_the_functions_that_the_documents_name_exist() -> None:
    named = {
        (path, name)
        for document in DOCUMENTS
        for path, name in re.findall(r"`((?:services|shared|cli)/[\w/]+\.py):([\w.]+)`", document.read_text())
    }
    assert len(named) > 50
    assert {f"{path}:{name}" for path, name in named if not _defines(ROOT / path, name)} == set()


def test_the_way_of_a_pod_is_short_enough_to_read() -> None:
    """From admission to the running slice and back: all files that its tables name."""
    text = (ROOT / "docs" / "architecture.md").read_text()
    way = text[text.index("\n## The way of a pod\n") : text.index("\n## If the pod does not fit\n")]
    files = set(re.findall(r"`([\w/]+\.py):", way))
    assert 30 < len(files) <= 45
    assert sum(len((ROOT / name).read_text().splitlines()) for name in files) <= 6840


def _defines(module: Path, name: str) -> bool:
    """Whether a module has this function, class or method."""
    if not module.exists():
        return False
    body = ast.parse(module.read_text()).body
    for part in name.split("."):
        found = [
            one
            for one in body
            if isinstance(one, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)) and one.name == part
        ]
        if not found:
            return False
        body = found[-1].body
    return True


def test_the_readme_is_one_screen_and_a_bit() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= 120


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_the_tests_and_files_that_a_document_names_exist(document: Path) -> None:
    files = list((ROOT / "tests").rglob("test_*.py"))
    known = {path.stem for path in files} | {
        name for path in files for name in re.findall(r"def (test_\w+)", path.read_text())
    }
    text = document.read_text()
    assert {
        name
        for name in re.findall(r"\b(test_[a-z0-9_]+)\b(?!\*)", text)
        if name not in known and not name.endswith("_")
    } == set()
    paths = set(re.findall(r"`((?:services|shared|cli|tests|bench|k8s|compose|schemas|docs|tools)/[\w./-]*\w)", text))
    # `tests/cluster/test_admission_*.py` names several.
    assert {path for path in paths if not any(ROOT.glob(f"{path}*"))} == set()
