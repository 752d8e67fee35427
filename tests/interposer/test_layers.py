"""The files of the interposer stand in layers: each uses only those before it in its Makefile, so there is no cycle."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

SOURCES = Path(__file__).resolve().parents[2] / "native" / "interposer"


def listed(target: str) -> list[str]:
    """The Makefile's files, the lowest layer first."""
    return subprocess.run(
        ["make", "-s", "--no-print-directory", "-C", str(SOURCES), target], check=True, capture_output=True, text=True
    ).stdout.split()


def symbols(built: Path, source: str, *kind: str) -> set[str]:
    """The names that an object defines (`--defined-only`) or uses (`--undefined-only`) beyond its own file."""
    file = built / "enforcement" / "objects" / f"{Path(source).stem}.o"
    lines = subprocess.run(["nm", "--extern-only", *kind, str(file)], check=True, capture_output=True, text=True).stdout
    return {line.split()[-1] for line in lines.splitlines()}


def test_a_file_uses_only_the_files_before_it(built: Path) -> None:
    files = listed("sources")
    place = {name: at for at, file in enumerate(files) for name in symbols(built, file, "--defined-only")}
    upwards = [
        f"{file} uses {name} of {files[place[name]]}"
        for at, file in enumerate(files)
        for name in sorted(symbols(built, file, "--undefined-only"))
        if place.get(name, at) > at
    ]
    assert not upwards
    assert len(place) > len(files)


def test_a_header_includes_only_the_headers_before_it() -> None:
    headers = listed("headers")
    for at, header in enumerate(headers):
        included = re.findall(r'^#include "(.+)"', (SOURCES / header).read_text(), re.MULTILINE)
        assert set(included) <= set(headers[:at]), header


def test_every_file_is_in_a_layer() -> None:
    programs = {"probe.c", "control_block_layout.c"}
    assert {path.name for path in SOURCES.glob("*.c")} == set(listed("sources")) | programs
    assert {path.name for path in SOURCES.glob("*.h")} == set(listed("headers"))
