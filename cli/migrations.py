"""Shows migrations of pods as a table."""

from __future__ import annotations

from collections.abc import Sequence

from cli.output import new_table, out
from shared.contracts.explain import Move

_SHOWN = 20


def show_migrations(title: str, moves: Sequence[Move]) -> None:
    if not moves:
        return
    table = new_table("POD", "FROM", "TO", "GPUS", "DISTURBED GPU-SECONDS", title=title)
    for move in moves[:_SHOWN]:
        table.add_row(
            f"{move.namespace}/{move.name}",
            move.source,
            move.target,
            f"{move.gpu_milli / 1000:g}",
            str(move.disturbed_gpu_seconds),
        )
    out.print(table)
    if len(moves) > _SHOWN:
        out.print(f"  and {len(moves) - _SHOWN} more (--json shows them)")
