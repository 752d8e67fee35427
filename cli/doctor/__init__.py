"""`kerf doctor`: is the installation well, and if not, what to do. It changes nothing."""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter

from rich.markup import escape

from cli.ask import Late, NotAnswered, ask, connected, url_of
from cli.doctor.base import About, CannotLook, Check, Finding, Site
from cli.doctor.cdi import Cdi
from cli.doctor.certificates import Certificates
from cli.doctor.clocks import Clocks
from cli.doctor.drivers import Drivers
from cli.doctor.kubernetes import Kubernetes
from cli.doctor.nats import Nats
from cli.doctor.neighbours import Neighbours
from cli.doctor.rights import Rights
from cli.doctor.services import Services
from cli.doctor.streams import Streams
from cli.doctor.versions import Versions
from cli.output import Failure, out, print_json, say
from shared.bus.nats_bus import NatsBus
from shared.bus.port import BusError
from shared.contracts import queries
from shared.contracts.base import ContractError, decode, encode
from shared.contracts.queries import AboutAnswer, AboutQuery, InspectAnswer, InspectQuery
from shared.kube.access import AccessError
from shared.kube.client import connect
from shared.redaction import user_of

CHECKS: tuple[Check, ...] = (
    Nats(),
    Rights(),
    Streams(),
    Services(),
    Versions(),
    Clocks(),
    Drivers(),
    Cdi(),
    Kubernetes(),
    Neighbours(),
    Certificates(),
)

_SURVEY_S = 1.0
_COLOURS = {"ok": "green", "warn": "yellow", "fail": "red"}


async def run(args: argparse.Namespace) -> None:
    """Ends with status 1 where a check fails."""
    site = Site(url=url_of(args.nats), user=user_of(url_of(args.nats)))
    try:
        site.kube = await connect(args.kubeconfig, args.context)
    except AccessError as error:
        site.kube_error = str(error)
    try:
        try:
            async with connected(args.nats) as bus:
                site.bus = bus
                await _look(site, bus)
                findings = await examine(site)
        except Failure as error:
            if site.bus is not None:
                raise
            site.bus_error = str(error)
            findings = await examine(site)
    finally:
        if site.kube is not None:
            await site.kube.close()
    _show(findings, json=args.json)
    if any(finding.status == "fail" for finding in findings):
        sys.exit(1)


async def examine(site: Site) -> list[Finding]:
    """The findings of all checks. What a check cannot look at, or not read, is a warning: it says nothing about the
    installation, and the other checks do."""
    findings: list[Finding] = []
    for check in CHECKS:
        try:
            findings += await check.run(site)
        except CannotLook as error:
            findings.append(Finding(check.name, "warn", f"not checked: {error}", error.remedy))
        except Exception as error:  # noqa: BLE001 - an answer or object of an unknown form, which the finding tells
            text = f"not checked: what it looks at has an unexpected form ({type(error).__name__}: {error})"
            findings.append(Finding(check.name, "warn", text, "look at the objects that this check reads"))
    return findings


async def _look(site: Site, bus: NatsBus) -> None:
    try:
        site.services = await _survey(bus)
    except (BusError, ContractError) as error:
        site.services_error = str(error)
    try:
        found = await ask(bus, queries.INSPECT.subject, InspectQuery(), InspectAnswer)
        site.nodes = found.nodes
    except (Failure, BusError) as error:
        site.nodes_error = str(error)
        site.leaderless = isinstance(error, NotAnswered) and not isinstance(error, Late)


async def _survey(bus: NatsBus) -> tuple[About, ...]:
    began_ms = time.time() * 1000
    replies = await bus.survey(queries.ABOUT.subject, encode(AboutQuery()), within_s=_SURVEY_S)
    ended_ms = time.time() * 1000
    answers = [decode(reply, AboutAnswer) for reply in replies]
    return tuple(
        About(answer, round(min(0.0, answer.now_ms - began_ms) + max(0.0, answer.now_ms - ended_ms)))
        for answer in sorted(answers, key=lambda answer: (answer.service, answer.instance))
    )


def _show(findings: list[Finding], *, json: bool) -> None:
    counts = Counter(finding.status for finding in findings)
    if json:
        print_json({"findings": findings, "ok": counts["ok"], "warn": counts["warn"], "fail": counts["fail"]})
        return
    for finding in findings:
        out.print(f"[{_COLOURS[finding.status]}]{finding.status:<4}[/] [bold]{finding.check}[/bold]", end="  ")
        say_rest(finding)
    out.print(f"\n{counts['ok']} ok, {counts['warn']} warnings, {counts['fail']} failures")


def say_rest(finding: Finding) -> None:
    """The text behind the name, and what to do below it."""
    out.print(escape(finding.text))
    if finding.do:
        say(f"→ {finding.do}", indent="     ", hanging="       ")
