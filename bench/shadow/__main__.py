"""Shadow mode on a recording of each peer's objects.

    python -m bench.shadow [--peer hami|kai|volcano|nvidia|time-slicing] [--json]
    python -m bench.shadow --write     makes the recordings in tests/data/shadow again

`grants_wrong` must be 0: nothing is given away twice in them. `doubled_found` must be `doubled_made`: the same
recording with a twin of each pod that has all GPUs of its node, bound a second after it, on the same GPUs.

The objects have the forms that each peer writes; which pods came when, and where and when they were bound there, is
made by bench/shadow/scenario.py. So `there` is no measurement of the peer, and `kerf` beside it shows what a report
looks like, no more.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import msgspec

from bench.shadow.scenario import FORMS, write
from shadow.objects import AnyFact, PodSeen
from shadow.recording import read
from shadow.report import Made, make

DATA = Path(__file__).resolve().parents[2] / "tests" / "data" / "shadow"


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m bench.shadow", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--peer", choices=sorted(FORMS), default="")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--write", action="store_true")
    args = parser.parse_args()
    if args.write:
        DATA.mkdir(parents=True, exist_ok=True)
        for peer in FORMS:
            write(peer, DATA / f"{peer}.jsonl")
        return
    found = {peer: figures(peer) for peer in ([args.peer] if args.peer else sorted(FORMS))}
    if args.json:
        print(json.dumps(found[args.peer] if args.peer else found))
    else:
        for peer, of in found.items():
            print(f"{peer}: {', '.join(f'{key} {value}' for key, value in of.items())}")
    sys.exit(any(of["grants_wrong"] or of["doubled_found"] != of["doubled_made"] for of in found.values()))


def figures(peer: str) -> dict[str, Any]:
    facts = read(DATA / f"{peer}.jsonl")
    report = make(facts).report
    twins, doubled = double(facts)
    there, kerf = report.comparison.there, report.comparison.kerf
    return {
        "grants_read": report.grants_read,
        "grants_wrong": report.grants_wrong,
        "unreadable": len(report.unreadable),
        "gpus": report.gpus,
        "gpus_used_there": there.gpus_used,
        "gpus_used_kerf": kerf.gpus_used,
        "stranded_there": there.stranded_gpus,
        "stranded_kerf": kerf.stranded_gpus,
        "mean_wait_there_s": there.mean_wait_s,
        "mean_wait_kerf_s": kerf.mean_wait_s,
        "p99_wait_there_s": there.p99_wait_s,
        "p99_wait_kerf_s": kerf.p99_wait_s,
        "differences": len(report.comparison.differences),
        "doubled_made": len(twins),
        "doubled_found": len([text for text in doubled.report.wrong if text.split(",")[0] in twins]),
    }


def double(facts: list[AnyFact]) -> tuple[set[str], Made]:
    """The recording with the twins, and their names."""
    changed: list[AnyFact] = []
    twins: set[str] = set()
    for fact in facts:
        changed.append(fact)
        if not isinstance(fact, PodSeen) or fact.pod.ended or not fact.pod.spec.node_name:
            continue
        meta = fact.pod.metadata
        if meta.labels.get("size") != "two":
            continue
        name = f"{meta.name}-twin"
        twin = msgspec.structs.replace(
            fact.pod, metadata=msgspec.structs.replace(meta, name=name, uid=f"{meta.uid}-twin")
        )
        twins.add(f"{meta.namespace}/{name}")
        changed.append(PodSeen(at_s=fact.at_s + 1.0, pod=twin))
    return twins, make(sorted(changed, key=lambda one: one.at_s))


if __name__ == "__main__":
    main()
