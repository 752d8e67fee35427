"""`kerf shadow`: watches a cluster or replays a recording, and prints the report."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import re
import signal
import time
from pathlib import Path

import structlog

from cli.output import Failure, err, print_json, read_text
from shadow import page, recording
from shadow import plan as plans
from shadow.history import read_history
from shadow.objects import AnyFact
from shadow.report import Made, make
from shadow.watch import Watch
from shared.kube.access import AccessError
from shared.kube.client import connect
from shared.telemetry import configure_logging

LISTED_WITHIN_S = 60.0
_UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_RIGHTS = "it needs the rights to get, list and watch pods and nodes (docs/shadow.md has the ClusterRole)"


async def run(args: argparse.Namespace) -> None:
    try:
        if args.replay:
            _report(make(recording.read(Path(args.replay)), args.policy), args)
            return
        recorder = recording.Recorder(Path(args.record)) if args.record else None
    except recording.RecordingError as error:
        raise Failure(str(error)) from error
    try:
        await _watch(args, recorder)
    finally:
        if recorder is not None:
            recorder.close()


async def plan(args: argparse.Namespace) -> None:
    """`kerf plan`: a recording on another fleet."""
    enough_s = duration_s(args.enough, "--enough") if args.enough else None
    try:
        history = read_history(recording.read(Path(args.events)))
        kinds = plans.read_fleet(read_text(args.nodes))
    except recording.RecordingError as error:
        raise Failure(str(error)) from error
    except plans.FleetError as error:
        raise Failure(f"{args.nodes}: {error}") from error
    made = plans.plan(history, kinds, args.policy, enough_s)
    if args.json:
        print_json(made)
    else:
        page.show_plan(made)
    if args.enough and made.enough is None:
        raise Failure(
            "not even a node of the last kind for each pod starts all pods that ran there, and keeps 99 % of the waits "
            f"within {args.enough}; the longest waits say why"
        )


def duration_s(text: str, option: str = "--for") -> float:
    """90s, 30m, 1h, 2d. Raises Failure."""
    found = re.fullmatch(r"([0-9]{1,6})([smhd])", text)
    if found is None or not int(found[1]):
        raise Failure(f"{option} is {text!r}; write a number with its unit, such as 30m or 1h")
    return int(found[1]) * float(_UNITS_S[found[2]])


async def _watch(args: argparse.Namespace, recorder: recording.Recorder | None) -> None:
    until_s = time.monotonic() + (duration_s(args.duration) if args.duration else float("inf"))
    every_s = duration_s(args.every, "--every")
    configure_logging("error")
    facts: list[AnyFact] = []
    unwritten: list[str] = []

    def keep(fact: AnyFact) -> None:
        facts.append(fact)
        if recorder is None or unwritten:
            return
        try:
            recorder.write(fact)
        except recording.RecordingError as error:
            unwritten.append(f"{error}; the recording ends there")
            err.print(f"{error}; the watching goes on without it", markup=False)

    try:
        transport = await connect(args.kubeconfig, args.context, user_agent="kerf-shadow")
    except AccessError as error:
        raise Failure(str(error)) from error
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    source = args.context or args.kubeconfig or "the current cluster"
    watch = Watch(
        transport,
        keep,
        structlog.get_logger("shadow"),
        clock=time.time,
        source=source,
        namespaces=tuple(args.namespace),
    )
    running = asyncio.create_task(watch.run(), name="shadow")
    try:
        await _begun(watch, running, stop)
        err.print("Watching; Ctrl-C ends it with a report.", highlight=False)
        while not stop.is_set() and (left_s := until_s - time.monotonic()) > 0:
            await _wait(stop, running, min(every_s, left_s))
            if not stop.is_set() and time.monotonic() < until_s and not args.json:
                made = await asyncio.to_thread(make, [*facts, watch.end()], args.policy)
                page.show(made.report, (*watch.problems, *unwritten))
        keep(watch.end())
        _report(make(facts, args.policy), args, (*watch.problems, *unwritten))
        if unwritten:
            raise Failure(unwritten[0])
    finally:
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running
        await transport.close()


async def _begun(watch: Watch, running: asyncio.Task[None], stop: asyncio.Event) -> None:
    """Until all is listed. Raises Failure where that does not happen in time."""
    until_s = time.monotonic() + LISTED_WITHIN_S
    while not watch.begun:
        if stop.is_set() or time.monotonic() > until_s:
            raise Failure(f"the cluster could not be listed: {'; '.join(watch.problems) or 'no answer yet'}; {_RIGHTS}")
        denied = [text for text in watch.problems if "HTTP 401" in text or "HTTP 403" in text]
        if denied:
            raise Failure(f"the cluster may not be read: {'; '.join(denied)}; {_RIGHTS}")
        await _wait(stop, running, 0.2)


async def _wait(stop: asyncio.Event, running: asyncio.Task[None], seconds: float) -> None:
    """Until the user stops, the watch fails, or the time is over."""
    stopped = asyncio.create_task(stop.wait())
    try:
        await asyncio.wait({stopped, running}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    finally:
        stopped.cancel()
    if running.done():
        running.result()


def _report(made: Made, args: argparse.Namespace, problems: tuple[str, ...] = ()) -> None:
    if args.json:
        print_json(made.report)
    else:
        page.show(made.report, problems)
    if args.pages:
        try:
            page.write_pages(made, Path(args.pages))
        except OSError as error:
            raise Failure(f"--pages {args.pages}: {error.strerror}") from error
