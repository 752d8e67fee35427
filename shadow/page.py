"""The report for people: a table of both sides, and of each difference what can be checked by hand."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from rich.table import Table

from cli.output import err, heading, out, say
from shadow.compare import Difference, Place, Side, fleet_at
from shadow.gpus import GpuUse
from shadow.plan import Plan
from shadow.report import Made, Report

_MOST = 20
"""Lines of each list; `--json` has all."""
_MOST_OF_A_NAME = 200
"""Names of files have at most 255 bytes; a pod's with its namespace may have more."""
_ROWS = (
    ("GPUs with a pod (mean)", "gpus_used", "{:.2f}"),
    ("GPUs with a pod (most)", "max_gpus_used", "{}"),
    ("GPUs' worth of free memory that no waiting pod could use (mean)", "stranded_gpus", "{:.2f}"),
    ("free memory on GPUs with a pod, %", "scattered_percent", "{:.1f}"),
    ("pods started", "pods_started", "{}"),
    ("pods waiting at the end", "pods_waiting", "{}"),
    ("wait, mean, s", "mean_wait_s", "{:.1f}"),
    ("wait, p99, s", "p99_wait_s", "{:.1f}"),
    ("wait, most, s", "max_wait_s", "{:.1f}"),
)


def show(report: Report, problems: tuple[str, ...] = ()) -> None:
    compared = report.comparison
    heading(f"{report.source or 'a recording'}, {_minutes(report.watched_s)} from {report.began}")
    where = f" of namespaces {', '.join(report.namespaces)}" if report.namespaces else ""
    say(
        f"{report.nodes} nodes with {report.gpus} GPUs; {compared.pods} pods{where} are compared, "
        f"{compared.ran_before} of them ran before."
    )
    by = f" of {', '.join(report.peers)}" if report.peers else ""
    say(f"{report.grants_read} grants{by} read, {report.grants_wrong} of them wrong.")
    _list("Given away twice, or not there", report.wrong)
    _list("Could not be read", (*report.unreadable, *problems))
    out.print(_table(compared.there, compared.kerf))
    _list(
        "Waiting there now",
        tuple(f"{one.pod} ({one.asks}) for {one.wait_s:.1f} s; with Kerf it {one.kerf}" for one in compared.pending),
    )
    _list("Came anew with Kerf, for their node left", tuple(f"{one.pod}: {one.what}" for one in compared.came_anew))
    _list("Left out, for Kerf would refuse them", tuple(f"{one.pod}: {one.why}" for one in compared.left_out))
    if not compared.differences:
        say("\nNo pod would have fared differently.")
        return
    say(f"\n{len(compared.differences)} pods would have fared differently:")
    for one in compared.differences[:_MOST]:
        say(sentence(one), indent="  ", hanging="    ")
    if len(compared.differences) > _MOST:
        say(f"  and {len(compared.differences) - _MOST} more; --json has all of them.")


def show_plan(planned: Plan) -> None:
    heading(f"{planned.source or 'a recording'}, {_minutes(planned.watched_s)}, {planned.pods} pods")
    columns = [("AS GIVEN", planned.planned)] + ([("ENOUGH", planned.enough)] if planned.enough else [])
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("")
    for title, _ in columns:
        table.add_column(title, justify="right", no_wrap=True)
    for title, field in (("nodes", "nodes"), ("GPUs", "gpus")):
        table.add_row(title, *(str(getattr(of, field)) for _, of in columns))
    for title, field, form in _ROWS:
        table.add_row(title, *(form.format(getattr(of.kerf, field)) for _, of in columns))
    out.print(table)
    _list(
        "Longest waits, as given",
        tuple(
            f"{one.pod} ({one.asks}): {one.wait_s:.1f} s{'' if one.started else ', and waits still'}: {one.why}"
            for one in planned.planned.longest
        ),
    )


def sentence(one: Difference) -> str:
    """A difference in one line."""
    return f"{one.pod} ({one.asks}): there {_place(one.there)}; Kerf {_place(one.kerf)}: {one.why}"


def _place(place: Place) -> str:
    if place.at_s is None:
        return f"it had waited {place.wait_s:.1f} s at the end"
    gpus = ", ".join(place.gpus) if place.gpus_known else f"{len(place.gpus)} of its GPUs"
    return f"after {place.wait_s:.1f} s on {place.node}" + (f" ({gpus})" if place.gpus else "")


def _table(there: Side, kerf: Side) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("")
    for column in ("THERE", "KERF"):
        table.add_column(column, justify="right", no_wrap=True)
    for title, field, form in _ROWS:
        table.add_row(title, form.format(getattr(there, field)), form.format(getattr(kerf, field)))
    return table


def _list(title: str, lines: tuple[str, ...]) -> None:
    if not lines:
        return
    say(f"{title} ({len(lines)}):")
    for line in lines[:_MOST]:
        say(line, indent="  ", hanging="    ")


def _minutes(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"


# --- a page for each difference -------------------------------------------------------------------------------------


def write_pages(made: Made, folder: Path) -> int:
    """Writes a text file for each difference, and returns how many. Raises OSError."""
    folder.mkdir(parents=True, exist_ok=True)
    differences = made.report.comparison.differences
    for number, one in enumerate(differences, 1):
        name = one.pod.replace("/", "_")[:_MOST_OF_A_NAME]
        (folder / f"{number:04d}-{name}.txt").write_text("\n".join(page(made, one)) + "\n", encoding="utf-8")
    err.print(f"{len(differences)} pages in {folder}", highlight=False)
    return len(differences)


def page(made: Made, one: Difference) -> Iterator[str]:
    """The lines of a difference's page. Times are seconds since the beginning of the watching."""
    history = made.history
    life = history.lives[one.uid]
    yield f"Pod {one.pod}, uid {one.uid}: {one.kind}"
    yield f"It came at {one.came_s:.1f} s and asks for {one.asks}."
    yield f"There: {_place(one.there)}." + ("" if one.there.gpus_known else " The API does not say which GPUs.")
    yield f"Kerf: {_place(one.kerf)}."
    yield f"Why: {one.why}."
    if life.left_s is not None:
        how = "ended by itself" if life.finished else "was deleted"
        yield f"It {how} there at {life.left_s - history.began_s:.1f} s."
    times = {place.at_s for place in (one.there, one.kerf) if place.at_s is not None} | {one.came_s}
    for at_s in sorted(times):
        for side, steps in (("there", history.steps), ("with Kerf", made.kerf.steps)):
            yield ""
            yield f"What each GPU held at {at_s:.1f} s, {side}:"
            for name, gpus in sorted(fleet_at(history, steps, history.began_s + at_s).items()):
                for use in gpus.values():
                    yield f"  {name} {_held(use, made)}"


def _held(use: GpuUse, made: Made) -> str:
    device = use.device
    pods = ", ".join(
        f"{made.history.lives[uid].key} {mib} MiB {milli / 10:g} %" for uid, (mib, milli, _) in use.holders.items()
    )
    return f"GPU {device.index} {device.uuid}: {use.memory_mib} of {device.memory_mib} MiB ({pods or 'no pod'})"
