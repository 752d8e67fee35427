"""What commands print, and what they do with what is in their way: encodings, closed pipes, narrow terminals, and
services that change."""

from __future__ import annotations

import argparse
import asyncio
import getpass
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest
from rich.console import Console

from cli import ask as asking
from cli import cordon, cost, events, preempt, resize, trace, why
from cli.ask import NotAnswered, connected
from cli.doctor.base import CannotLook, Site
from cli.doctor.certificates import SECRET, Certificates
from cli.events import _told
from cli.output import Failure, _Console, err, heading, new_table, out, print_json, run_command
from shared.bus.port import Incoming, NoResponder, Unknown
from shared.contracts import queries
from shared.contracts.base import decode
from shared.contracts.commands import SimAnswer
from shared.contracts.envelope import unwrap, wrap
from shared.contracts.events import GrantEnded, SliceImpaired
from shared.contracts.examples import EXAMPLES
from shared.contracts.explain import PodExplanation
from shared.contracts.metrics_queries import CostAnswer, CostRow, Span, TraceAnswer
from shared.contracts.preemption import Beneficiary, Plan, PreemptAnswer
from shared.contracts.queries import ExplainAnswer, StatusAnswer, StatusQuery
from tests.support.waiting import eventually


def test_a_heading_in_a_pipe_is_no_longer_than_a_page() -> None:
    program = 'from cli.output import heading; heading("kerf why pod")'
    (line,) = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    assert line.startswith("kerf why pod ─")
    assert len(line) == 100


@pytest.mark.parametrize("name", ["a[/x]", "[bold]"])
def test_names_with_brackets_are_printed_as_they_are(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A manifest may hold what the API server would refuse, and a context of kubectl any name."""
    why.show(PodExplanation(namespace="team", name=name, state="would-wait", sentence="It would wait."))
    heading(f"{name}, 60 s")
    gains = Beneficiary(uid="u", namespace="team", name=name, node="n")
    preempt.show_answer("pod", PreemptAnswer(plan=Plan(plan_id="p", beneficiaries=(gains,), victims=(), deadline_s=1)))
    printed = capsys.readouterr().out
    assert printed.startswith(f"team/{name}  would-wait\n")
    assert f"\n{name}, 60 s ─" in printed
    assert f"\nteam/{name} " in printed


@pytest.mark.parametrize("control", ["\x1b", "\x9b", "\x7f"])
def test_no_text_of_others_moves_the_cursor(control: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A tenant chooses annotations, and an operator reads them in explanations and tables."""
    text = f"H100{control}[2J"
    why.show(PodExplanation(namespace="team", name="p", state="would-wait", sentence=text, helps=(text,)))
    heading(text)
    table = new_table(text, title=text)
    table.add_row(text)
    out.print(table)
    err.print(f"[red]{text}[/red]")
    print_json({"text": text})
    event = EXAMPLES[SliceImpaired.__name__]
    assert isinstance(event, SliceImpaired)
    _, payload = wrap(msgspec.structs.replace(event, sentence=text), source="/t", now_s=1)
    events._print(payload, *unwrap(payload), as_json=True)
    printed = "".join(capsys.readouterr())
    assert control not in printed
    assert printed.count("H100\ufffd[2") == 7
    assert f"\\u{ord(control):04x}[2J" in printed


def test_styles_are_kept_where_texts_are_cleaned() -> None:
    console = _Console(force_terminal=True, color_system="standard", highlight=False)
    with console.capture() as capture:
        console.print("[red]a\x1b[2Jb[/red]\n\tc")
    assert capture.get() == "\x1b[31ma\ufffd[2Jb\x1b[0m\n        c\n"


def test_a_slice_that_has_lost_its_gpu_is_told_in_a_sentence() -> None:
    event = SliceImpaired(
        node="n1",
        uid="u",
        namespace="team",
        name="train",
        container="main",
        gpu="GPU-1",
        reason="mps-fault",
        sentence="a program has caused a fatal fault",
    )
    assert _told(event) == ("team/train", "container main on n1: a program has caused a fatal fault")


@pytest.mark.parametrize(
    ("program", "printed"),
    [
        ('out.print("a → b")', b"a ? b\n"),
        ('print_json({"text": "a → b"})', '{\n  "text": "a → b"\n}\n'.encode()),
    ],
    ids=["text", "json"],
)
def test_an_encoding_without_a_sign_ends_no_command(program: str, printed: bytes) -> None:
    made = subprocess.run(
        [sys.executable, "-c", f"from cli.output import *; use_any_encoding(); {program}"],
        capture_output=True,
        check=True,
        env=os.environ | {"PYTHONIOENCODING": "latin-1"},
    )
    assert made.stdout == printed


def test_a_reader_of_the_output_that_ends_is_no_error_of_the_command() -> None:
    program = "import sys; sys.argv = ['kerf', 'completion', 'bash']; from cli.__main__ import main; main()"
    read, write = os.pipe()
    os.close(read)
    made = subprocess.run([sys.executable, "-c", program], stdout=write, stderr=subprocess.PIPE, check=False)
    os.close(write)
    assert (made.returncode, made.stderr) == (141, b"")


@pytest.mark.parametrize(
    "program",
    [
        "import sys; sys.argv = ['kerf', 'completion', 'bash']; from cli.__main__ import main; main()",
        "from cli.output import *\nasync def say_much(): say('a')\nrun_command(say_much())",
    ],
    ids=["buffered", "printed"],
)
def test_a_full_disk_ends_a_command_with_a_sentence(program: str) -> None:
    with open("/dev/full", "w", encoding="utf-8") as full:
        made = subprocess.run(
            [sys.executable, "-c", program], stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    said = "kerf: No space left on device: not all was written. Make room there, or write it elsewhere\n"
    assert (made.returncode, made.stderr) == (1, said)


def test_an_answer_of_another_version_ends_a_command_with_a_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    async def command() -> None:
        decode(b'{"applied": "one"}', SimAnswer)

    with pytest.raises(SystemExit) as ended:
        run_command(command())
    assert ended.value.code == 1
    assert "Is the service of another version?" in " ".join(capsys.readouterr().err.split())


def test_a_narrow_terminal_cuts_no_name_off() -> None:
    name = "research/vision-transformer-large-with-a-long-name-0"
    table = new_table("POD")
    table.add_row(name)
    console = Console(width=20)
    with console.capture() as capture:
        console.print(table)
    assert "".join(line.strip() for line in capture.get().splitlines()[1:]) == name


def test_a_span_without_an_id_is_shown_once(capsys: pytest.CaptureFixture[str]) -> None:
    spans = tuple(
        Span(trace_id="t", span_id=one, parent_id=parent, name=name, service="s", start_ns=at, end_ns=9)
        for at, (one, parent, name) in enumerate((("a", "", "root"), ("", "a", "nameless"), ("b", "a", "inner")))
    )
    trace.show(TraceAnswer(trace_id="t", spans=spans))
    _, *lines = capsys.readouterr().out.splitlines()
    assert [name for line in lines for name in ("root", "nameless", "inner") if name in line] == [
        "root",
        "nameless",
        "inner",
    ]


def test_errors_of_others_in_a_trace_are_printed_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    error = "denied by policy [require-team-label] for [/spec/containers/0/image]"
    span = Span(
        trace_id="t", span_id="s", parent_id="", name="bind", service="watcher", start_ns=0, end_ns=1, error=error
    )
    trace.show(TraceAnswer(trace_id="t", spans=(span,)))
    assert error in capsys.readouterr().out


async def test_csv_says_what_it_leaves_out(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """The table and the report do; a bill made of the CSV was short of its smaller part."""
    row = CostRow(key="team", gpu_seconds=3600.0, memory_mib_seconds=0.0, slices=1, live=0)
    answer = CostAnswer(since="a", until="b", rows=(row,), more=4321)
    monkeypatch.setattr(cost, "connected", _no_bus)
    monkeypatch.setattr(cost, "ask", _answering(answer))
    await cost.run(
        argparse.Namespace(nats="", json=False, format="csv", month="", since="", until="", by="pod", most=1)
    )
    printed = capsys.readouterr()
    assert printed.out.count("\n") == 2
    assert "4321 more rows are left out; --most 4322 has them" in printed.err


def test_an_event_is_printed_with_its_date_and_zone(capsys: pytest.CaptureFixture[str]) -> None:
    event = EXAMPLES[GrantEnded.__name__]
    assert isinstance(event, GrantEnded)
    _, payload = wrap(event, source="/t", now_s=1_795_600_000.25)
    events._print(payload, *unwrap(payload), as_json=False)
    assert capsys.readouterr().out.startswith("2026-11-25T09:46:40.250Z grant.ended ")


async def test_events_end_with_what_reads_them(monkeypatch: pytest.MonkeyPatch) -> None:
    handlers: list[Callable[[Incoming], Awaitable[None]]] = []

    class Bus:
        def on_reconnect(self, _: object) -> None: ...

        async def subscribe(self, _: str, handler: Callable[[Incoming], Awaitable[None]]) -> None:
            handlers.append(handler)

    @asynccontextmanager
    async def bus(*_: Any, **__: Any) -> AsyncIterator[Bus]:
        yield Bus()

    def closed(_: str) -> None:
        raise BrokenPipeError

    monkeypatch.setattr(events, "connected", bus)
    monkeypatch.setattr(sys.stdout, "write", closed)
    running = asyncio.create_task(events.run(argparse.Namespace(nats="", json=True, count=0, namespace="")))
    await eventually(lambda: handlers, what="the subscription")
    event = EXAMPLES[GrantEnded.__name__]
    assert isinstance(event, GrantEnded)
    for _ in range(2):
        await handlers[0](
            Incoming(subject="kerf.v1.event.grant.ended.ns.a", payload=wrap(event, source="/t", now_s=1)[1])
        )
    with pytest.raises(BrokenPipeError):
        await asyncio.wait_for(running, 5)


def test_an_account_without_a_name_can_cordon(monkeypatch: pytest.MonkeyPatch) -> None:
    def nameless() -> str:
        raise KeyError("getpwuid(): uid not found: 4711")

    monkeypatch.setattr(getpass, "getuser", nameless)
    assert cordon._user() == str(os.getuid())


async def test_a_url_that_is_none_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asking, "configure_logging", lambda *_, **__: None)  # of the process, and so of other tests
    with pytest.raises(Failure, match=r"no NATS at nats://\[::1"):
        async with connected("nats://[::1"):
            raise AssertionError("it connected")


@pytest.mark.parametrize(("error", "late"), [(Unknown("no answer"), True), (NoResponder("none"), False)])
async def test_a_slow_service_is_not_taken_for_none(
    error: Exception, late: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`kerf doctor` says of one that no placement leads, and of the other that it may be overloaded."""
    monkeypatch.setattr(asking, "_LEADERLESS_S", 0.0)

    class Bus:
        async def request(self, *_: object, **__: object) -> bytes:
            raise error

    bus: Any = Bus()
    with pytest.raises(NotAnswered) as raised:
        await asking.ask(bus, queries.STATUS.subject, StatusQuery(), StatusAnswer)
    assert isinstance(raised.value, asking.Late) is late


async def test_a_leader_that_changes_does_not_end_the_wait_for_a_resize(monkeypatch: pytest.MonkeyPatch) -> None:
    answers: list[Any] = [NotAnswered("no answer within 10 s"), ExplainAnswer()]

    async def ask(*_: Any, **__: Any) -> Any:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(resize, "ask", ask)
    bus: Any = None
    assert [await resize._standing(bus, "team", "p", "memory=1Gi") for _ in range(2)] == [None, None]
    assert answers == []


async def test_what_was_found_of_the_webhook_outlives_a_secret_that_may_not_be_read() -> None:
    class NoSecrets(Site):
        async def get(self, path: str) -> Any:
            if path == SECRET:
                raise CannotLook("the API server answers 403", "give it the right")
            return {"webhooks": [{"clientConfig": {}}]}

    found = await Certificates()._of_webhook(NoSecrets(url="", user=""))
    assert [finding.status for finding in found] == ["fail", "warn"]


@asynccontextmanager
async def _no_bus(_: str) -> AsyncIterator[None]:
    yield None


def _answering(answer: Any) -> Callable[..., Awaitable[Any]]:
    async def ask(*_: Any, **__: Any) -> Any:
        return answer

    return ask
