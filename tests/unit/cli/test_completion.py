"""Completion, in a real bash; of other shells the text."""

from __future__ import annotations

import re
import subprocess

import pytest

from cli.__main__ import parser
from cli.completion import SHELLS, commands_of

COMMANDS = commands_of(parser())


def completed(*words: str) -> list[str]:
    """What bash offers for the last word."""
    program = (
        'source /dev/stdin; shift 0; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _kerf; printf "%s\\n" "${COMPREPLY[@]}"'
    )
    done = subprocess.run(
        ["bash", "-c", program, "bash", *words],
        input=SHELLS["bash"](COMMANDS),
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stderr == ""
    return done.stdout.split()


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (("kerf", "ins"), ["inspect"]),
        (("kerf", "top", "--by", ""), ["namespace", "pod", "model"]),
        (("kerf", "inspect", "--de"), ["--details"]),
        (("kerf", "completion", "f"), ["fish"]),
        (("kerf", "apply", "-f", "pypro"), ["pyproject.toml"]),
        (("kerf", "why", "--nodes", ""), []),
        (("kerf", "nothing", ""), []),
    ],
)
def test_bash_offers(words: tuple[str, ...], offered: list[str]) -> None:
    assert completed(*words) == offered


def test_every_command_and_option_of_the_parser_is_offered() -> None:
    assert set(completed("kerf", "")) == {command.name for command in COMMANDS} | {"--help", "--version"}
    for command in COMMANDS:
        names = {name for option in command.options for name in option.names}
        assert set(completed("kerf", command.name, "-")) == names


def test_bash_completes_the_kubectl_plugin_too() -> None:
    assert re.search(r"^complete -F _kerf kerf kubectl-kerf$", SHELLS["bash"](COMMANDS), re.MULTILINE)


def test_zsh_reads_the_same_and_names_its_programs_first() -> None:
    text = SHELLS["zsh"](COMMANDS)
    assert text.startswith("#compdef kerf kubectl-kerf\n")
    assert text.endswith(SHELLS["bash"](COMMANDS))


def test_fish_has_a_line_for_each_command_and_option() -> None:
    lines = SHELLS["fish"](COMMANDS).splitlines()
    for command in COMMANDS:
        assert any(f"__fish_use_subcommand -a {command.name} " in line for line in lines)
        mine = [line for line in lines if f"__fish_seen_subcommand_from {command.name}'" in line]
        assert len(mine) == len(command.options) + bool(command.values)
    assert any("top'" in line and "-l by -r -f -a 'namespace pod model'" in line for line in lines)
    assert all(line.replace("\\'", "").count("'") % 2 == 0 for line in lines), "every quote is closed"
