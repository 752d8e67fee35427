"""`kerf completion SHELL`: a script that completes commands, options and their values, made from the parser."""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Callable

import msgspec

_FILES = {"--file", "--kubeconfig", "--store", "-f"}
PROGRAMS = ("kerf", "kubectl-kerf")


class Option(msgspec.Struct, frozen=True):
    names: tuple[str, ...]
    help: str
    takes_value: bool
    choices: tuple[str, ...] = ()

    @property
    def files(self) -> bool:
        return bool(_FILES & set(self.names))


class Completed(msgspec.Struct, frozen=True):
    """A command and what may follow it."""

    name: str
    help: str
    options: tuple[Option, ...]
    values: tuple[str, ...] = ()
    """Of its arguments without a name, where they are known."""


async def run(args: argparse.Namespace) -> None:
    # By name: the parser's module imports commands, and none of them imports it.
    made = importlib.import_module("cli.__main__").parser()
    sys.stdout.write(SHELLS[args.shell](commands_of(made)))


def commands_of(parser: argparse.ArgumentParser) -> tuple[Completed, ...]:
    """The commands of a parser in their order."""
    subparsers = next(a for a in parser._actions if isinstance(a, argparse._SubParsersAction))
    helps = {choice.dest: choice.help or "" for choice in subparsers._choices_actions}
    return tuple(
        Completed(
            name=name,
            help=helps.get(name, ""),
            options=tuple(_option(a) for a in sub._actions if a.option_strings),
            values=tuple(str(c) for a in sub._actions if not a.option_strings for c in a.choices or ()),
        )
        for name, sub in subparsers.choices.items()
    )


def _option(action: argparse.Action) -> Option:
    return Option(
        names=tuple(action.option_strings),
        help=(action.help or "").replace("%%", "%"),
        takes_value=action.nargs != 0,
        choices=tuple(str(choice) for choice in action.choices or ()),
    )


def bash(commands: tuple[Completed, ...]) -> str:
    cases = []
    for command in commands:
        values = []
        for option in command.options:
            if option.takes_value:
                what = 'COMPREPLY=($(compgen -f -- "$word"))' if option.files else _reply(option.choices)
                values.append(f"        {'|'.join(option.names)}) {what}; return ;;")
        words = [name for option in command.options for name in option.names]
        cases.append(
            f'    {command.name})\n      case "$before" in\n'
            + "".join(f"{line}\n" for line in values)
            + f"      esac\n      {_reply((*words, *command.values))} ;;"
        )
    names = _reply((*(command.name for command in commands), "--help", "--version"))
    body = "\n".join(cases)
    return (
        "# bash completion of kerf: source <(kerf completion bash)\n"
        "_kerf() {\n"
        '  local word="${COMP_WORDS[COMP_CWORD]}" before="${COMP_WORDS[COMP_CWORD-1]}"\n'
        "  COMPREPLY=()\n"
        f"  if ((COMP_CWORD == 1)); then {names}; return; fi\n"
        '  case "${COMP_WORDS[1]}" in\n'
        f"{body}\n"
        "  esac\n"
        "}\n"
        f"complete -F _kerf {' '.join(PROGRAMS)}\n"
    )


def _reply(words: tuple[str, ...]) -> str:
    return f'COMPREPLY=($(compgen -W "{" ".join(words)}" -- "$word"))' if words else "COMPREPLY=()"


def zsh(commands: tuple[Completed, ...]) -> str:
    """By zsh's own reader of bash completions, so that both complete the same."""
    return (
        f"#compdef {' '.join(PROGRAMS)}\n"
        "# zsh completion of kerf: source <(kerf completion zsh)\n"
        "autoload -U +X compinit && compinit -u\n"
        "autoload -U +X bashcompinit && bashcompinit\n"
    ) + bash(commands)


def fish(commands: tuple[Completed, ...]) -> str:
    lines = ["# fish completion of kerf: kerf completion fish | source", "complete -c kerf -f"]
    for command in commands:
        lines.append(f"complete -c kerf -n __fish_use_subcommand -a {command.name} -d {_quoted(command.help)}")
        here = f"complete -c kerf -n '__fish_seen_subcommand_from {command.name}'"
        for option in command.options:
            names = " ".join(f"-l {n[2:]}" if n.startswith("--") else f"-s {n[1:]}" for n in option.names)
            value = " -r" if option.takes_value else ""
            value += " -F" if option.files else f" -f -a {_quoted(' '.join(option.choices))}" if option.choices else ""
            lines.append(f"{here} {names}{value} -d {_quoted(option.help)}")
        if command.values:
            lines.append(f"{here} -a {_quoted(' '.join(command.values))}")
    return "\n".join(lines) + "\n"


def _quoted(text: str) -> str:
    """In fish only the quote and the backslash mean something between single quotes."""
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


SHELLS: dict[str, Callable[[tuple[Completed, ...]], str]] = {"bash": bash, "zsh": zsh, "fish": fish}
