from __future__ import annotations

from pathlib import Path

import pytest

from tools.image.dockerfile import Copy, DockerfileError, configuration, copy, environment, needed, read

TEXT = """# a comment
FROM debian:bookworm-slim AS base
ENV PATH=/opt/bin:$PATH KIND=generic FEATURES=
RUN apt-get update \\
 # a comment between continued lines
 && apt-get install python3
FROM base AS unused
RUN false
FROM base AS build
COPY a b /src/
FROM base
COPY --from=build /src /app
USER 1000
WORKDIR /app
STOPSIGNAL SIGTERM
CMD ["kerf", "--help"]
"""


def test_continued_lines_are_one_instruction() -> None:
    (base, *_) = read(TEXT)
    assert [i.word for i in base.instructions] == ["ENV", "RUN"]
    assert base.instructions[1].text == "apt-get update && apt-get install python3"
    assert base.instructions[1].line == 4


def test_only_stages_that_the_last_one_needs_are_built() -> None:
    assert [stage.name for stage in needed(read(TEXT))] == ["base", "build", "3"]


def test_a_copy_has_sources_a_target_and_perhaps_a_stage() -> None:
    *_, build, last = read(TEXT)
    assert copy(build.instructions[0]) == Copy(("a", "b"), "/src/", "")
    assert copy(last.instructions[0]) == Copy(("/src",), "/app", "build")


def test_variables_may_use_those_from_before() -> None:
    assert environment("A=1 B=$A C=${A}x", {"A": "0"}) == {"A": "1", "B": "0", "C": "0x"}


def test_the_configuration_is_the_last_stages_with_those_it_is_based_on() -> None:
    made = configuration(read(TEXT))
    standard = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    assert made == {
        "User": "1000",
        "WorkingDir": "/app",
        "StopSignal": "SIGTERM",
        "Cmd": ["kerf", "--help"],
        "Env": [f"PATH=/opt/bin:{standard}", "KIND=generic", "FEATURES="],
    }


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("RUN true", "line 1: RUN before the first FROM"),
        ("FROM a\nVOLUME /x", "line 2: VOLUME /x"),
        ("FROM a\nRUN true \\", "continued by nothing"),
        ("", "there is no FROM"),
        ("FROM a AS", "line 1: FROM a AS"),
    ],
)
def test_what_this_builder_does_not_know_is_an_error_with_its_line(text: str, problem: str) -> None:
    with pytest.raises(DockerfileError, match=problem):
        read(text)


def test_a_copy_with_an_owner_is_an_error() -> None:
    (stage,) = read("FROM a\nCOPY --chown=1 x /x")
    with pytest.raises(DockerfileError, match="--chown"):
        copy(stage.instructions[0])


def test_the_images_own_dockerfile_is_read() -> None:
    stages = read((Path(__file__).parents[4] / "compose/Dockerfile").read_text())
    assert [stage.name for stage in needed(stages)] == ["interposer", "proxy", "python", "build", "4"]
    assert configuration(stages)["User"] == "1000"
