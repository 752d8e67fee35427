"""Reads a Dockerfile into stages of instructions. Only what compose/Dockerfile uses; anything else is an error."""

from __future__ import annotations

import json
import re
import shlex

import msgspec

METADATA = ("ENV", "WORKDIR", "USER", "CMD", "ENTRYPOINT", "STOPSIGNAL", "EXPOSE", "LABEL")
STEPS = ("RUN", "COPY")
_VARIABLE = re.compile(r"\$(?:\{(\w+)\}|(\w+))")


class DockerfileError(ValueError):
    """The file uses an instruction or a form that this builder does not know; the text names the line."""


class Instruction(msgspec.Struct, frozen=True):
    """One instruction, its continued lines joined: word `COPY`, text `--from=build /opt/kerf /opt/kerf`."""

    word: str
    text: str
    line: int


class Stage(msgspec.Struct, frozen=True):
    """What begins with a FROM: the name of its base image or stage, its own name, and its instructions."""

    base: str
    name: str
    instructions: tuple[Instruction, ...]


class Copy(msgspec.Struct, frozen=True):
    """A COPY: sources below the context, or below the root of `stage`."""

    sources: tuple[str, ...]
    target: str
    stage: str


def read(text: str) -> tuple[Stage, ...]:
    """The stages in order. Raises DockerfileError."""
    stages: list[Stage] = []
    for instruction in _instructions(text):
        match instruction.word:
            case "FROM":
                words = instruction.text.split()
                if len(words) not in (1, 3) or (len(words) == 3 and words[1].upper() != "AS"):
                    raise _unknown(instruction)
                stages.append(Stage(words[0], words[2] if len(words) == 3 else str(len(stages)), ()))
            case word if word in STEPS or word in METADATA:
                if not stages:
                    raise DockerfileError(f"line {instruction.line}: {word} before the first FROM")
                last = stages[-1]
                stages[-1] = msgspec.structs.replace(last, instructions=(*last.instructions, instruction))
            case _:
                raise _unknown(instruction)
    if not stages:
        raise DockerfileError("there is no FROM")
    return tuple(stages)


def needed(stages: tuple[Stage, ...]) -> tuple[Stage, ...]:
    """The stages on which the last one depends, and it, in order."""
    by_name = {stage.name: stage for stage in stages}
    wanted, open_ = {stages[-1].name}, [stages[-1]]
    while open_:
        stage = open_.pop()
        names = {stage.base, *(copy(i).stage for i in stage.instructions if i.word == "COPY")}
        for name in names & by_name.keys() - wanted:
            wanted.add(name)
            open_.append(by_name[name])
    return tuple(stage for stage in stages if stage.name in wanted)


def copy(instruction: Instruction) -> Copy:
    """Raises DockerfileError where the COPY has a flag other than --from."""
    words = shlex.split(instruction.text)
    flags, paths = [w for w in words if w.startswith("--")], [w for w in words if not w.startswith("--")]
    if len(paths) < 2 or any(not f.startswith("--from=") for f in flags) or len(flags) > 1:
        raise _unknown(instruction)
    return Copy(tuple(paths[:-1]), paths[-1], flags[0].removeprefix("--from=") if flags else "")


def environment(text: str, before: dict[str, str]) -> dict[str, str]:
    """The variables after an ENV of this text; `$NAME` and `${NAME}` are those from before it."""
    after = dict(before)
    for word in shlex.split(text):
        name, equals, value = word.partition("=")
        if not equals:
            raise DockerfileError(f"ENV {text}: write NAME=VALUE")
        after[name] = _VARIABLE.sub(lambda found: before.get(found[1] or found[2], ""), value)
    return after


def configuration(stages: tuple[Stage, ...]) -> dict[str, object]:
    """The image's configuration as OCI has it: that of the last stage with the stages that it is based on."""
    by_name = {stage.name: stage for stage in stages}
    chain, stage = [stages[-1]], by_name.get(stages[-1].base)
    while stage is not None:
        chain.insert(0, stage)
        stage = by_name.get(stage.base)
    variables = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
    made: dict[str, object] = {}
    labels: dict[str, str] = {}
    for instruction in (i for s in chain for i in s.instructions):
        text = instruction.text
        match instruction.word:
            case "ENV":
                variables = environment(text, variables)
            case "LABEL":
                labels = environment(text, labels)
            case "WORKDIR":
                made["WorkingDir"] = text
            case "USER":
                made["User"] = text
            case "STOPSIGNAL":
                made["StopSignal"] = text
            case "EXPOSE":
                made["ExposedPorts"] = {port if "/" in port else f"{port}/tcp": {} for port in text.split()}
            case "CMD" | "ENTRYPOINT":
                key = "Cmd" if instruction.word == "CMD" else "Entrypoint"
                made[key] = json.loads(text) if text.startswith("[") else ["/bin/sh", "-c", text]
    return (
        made
        | {"Env": [f"{name}={value}" for name, value in variables.items()]}
        | ({"Labels": labels} if labels else {})
    )


def _instructions(text: str) -> list[Instruction]:
    found: list[Instruction] = []
    pending, begun = "", 0
    for number, line in enumerate(text.splitlines(), 1):
        stripped = line.strip()
        if not stripped or stripped.startswith("#"):
            continue
        if not pending:
            begun = number
        if stripped.endswith("\\"):
            pending += stripped[:-1].rstrip() + " "
            continue
        word, _, rest = (pending + stripped).partition(" ")
        found.append(Instruction(word.upper(), rest.strip(), begun))
        pending = ""
    if pending:
        raise DockerfileError(f"line {begun}: the instruction is continued by nothing")
    return found


def _unknown(instruction: Instruction) -> DockerfileError:
    return DockerfileError(
        f"line {instruction.line}: {instruction.word} {instruction.text}: tools/image knows no such form; extend it "
        "or build with docker"
    )
