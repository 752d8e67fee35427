"""The builder on this machine's kernel, from a base that is made here instead of by mmdebstrap."""

from __future__ import annotations

import os
import subprocess
import tarfile
from pathlib import Path

import pytest

from tools.image.archive import write
from tools.image.build import Builder, BuildError, Root
from tools.image.dockerfile import configuration, read

TEXT = """FROM base AS build
COPY source /src
RUN cat /src/text > /out && chmod 750 /out && rm /bin/extra
FROM base
COPY --from=build /out /place/
ENV GREETING=hello
WORKDIR /place
"""


class OwnBase(Builder):
    """With a base of one static program."""

    def __init__(self, context: Path, cache: Path, base: Path) -> None:
        super().__init__(context, "**\n!source\n**/skipped", cache)
        self._own = base

    def _base(self, name: str) -> Root:
        assert name == "base"
        return Root((self._own,), "base", {"PATH": "/bin"})


@pytest.fixture
def base(tmp_path: Path) -> Path:
    """A root file system with a shell of its own, statically linked."""
    if os.geteuid() != 0:
        pytest.skip("overlay mounts need root")
    folder = tmp_path / "base"
    for name in ("bin", "proc", "dev", "etc", "mnt"):
        (folder / name).mkdir(parents=True)
    program = tmp_path / "sh.c"
    program.write_text(SHELL)
    subprocess.run(["cc", "-static", "-o", str(folder / "bin/sh"), str(program)], check=True)
    (folder / "bin/extra").touch()
    return folder


SHELL = r"""
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
/* Does what the RUN of this test says, and refuses anything else. */
int main(int count, char **given) {
    char text[64] = "";
    if (count != 3 || !strstr(given[2], "cat /src/text > /out")) return 3;
    FILE *in = fopen("/src/text", "r"), *out = fopen("/out", "w");
    if (!in || !out || !fgets(text, sizeof text, in)) return 4;
    fputs(text, out);
    fclose(out);
    return chmod("/out", 0750) || unlink("/bin/extra");
}
"""


def context(tmp_path: Path, text: str) -> Path:
    folder = tmp_path / "context"
    (folder / "source").mkdir(parents=True, exist_ok=True)
    (folder / "source/text").write_text(text)
    (folder / "source/skipped").write_text("not for images")
    return folder


def files(archive: Path) -> dict[str, int]:
    with tarfile.open(archive) as outer:
        (layer,) = [m for m in outer.getmembers() if m.name.endswith("/layer.tar")]
        inner = outer.extractfile(layer)
        assert inner is not None
        with tarfile.open(fileobj=inner) as tar:
            return {m.name: m.mode for m in tar.getmembers() if m.isfile()}


def test_the_image_has_what_its_last_stage_has(tmp_path: Path, base: Path) -> None:
    stages = read(TEXT)
    builder = OwnBase(context(tmp_path, "first"), tmp_path / "cache", base)
    write(builder, builder.build(stages), configuration(stages), "x:1", tmp_path / "image.tar")
    # Of the stage before only what was copied; what that stage removed is still in the base.
    assert files(tmp_path / "image.tar") == {"./bin/sh": 0o755, "./bin/extra": 0o644, "./place/out": 0o750}


def test_only_what_depends_on_a_changed_file_is_made_again(tmp_path: Path, base: Path) -> None:
    stages, cache = read(TEXT), tmp_path / "cache"
    first = OwnBase(context(tmp_path, "first"), cache, base).build(stages)
    made = set(cache.iterdir())
    assert OwnBase(context(tmp_path, "first"), cache, base).build(stages) == first
    (tmp_path / "context/source/skipped").write_text("changed")
    assert OwnBase(tmp_path / "context", cache, base).build(stages).key == first.key
    assert set(cache.iterdir()) == made
    assert OwnBase(context(tmp_path, "second"), cache, base).build(stages).key != first.key


def test_an_instruction_that_fails_is_named(tmp_path: Path, base: Path) -> None:
    with pytest.raises(BuildError, match="RUN something else: ended with status"):
        OwnBase(context(tmp_path, "x"), tmp_path / "cache", base).build(read("FROM base\nRUN something else"))
    assert list((tmp_path / "cache").iterdir()) == []


def test_what_the_ignore_file_keeps_out_cannot_be_copied(tmp_path: Path, base: Path) -> None:
    with pytest.raises(BuildError, match="secret is kept out"):
        OwnBase(context(tmp_path, "x"), tmp_path / "cache", base).build(read("FROM base\nCOPY secret /x"))
