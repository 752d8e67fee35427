"""`kerf apply -f FILE`: objects into the simulated cluster of `kerf up`, as kubectl would into a real one."""

from __future__ import annotations

import argparse
from typing import Any

import msgspec
from rich.markup import escape

from cli.ask import connected
from cli.output import Failure, err, out, print_json, read_text
from cli.removed_apis import what_to_change
from cli.up import apply
from shared.bus.port import NoResponder
from shared.formats import decode_manifests


async def run(args: argparse.Namespace) -> None:
    objects = read_manifests(args.file)
    async with connected(args.nats) as bus:
        try:
            answer = await apply(bus, objects)
        except NoResponder:
            raise Failure("there is no simulated cluster on this NATS; with a real one use kubectl apply") from None
    if args.json:
        print_json(answer)
    else:
        out.print(f"{answer.applied} of {len(objects)} applied")
        for refusal in answer.refusals:
            err.print(f"[red]{escape(refusal)}[/red]")
    if answer.refusals:
        raise Failure(f"{len(answer.refusals)} of {len(objects)} were refused")


def read_manifests(file: str) -> list[dict[str, Any]]:
    """The objects of a file. Raises Failure."""
    text = read_text(file)
    try:
        documents = decode_manifests(text)
    except msgspec.DecodeError as error:
        raise Failure(f"{file} is neither YAML nor JSON: {error}") from error
    if not documents or not all(isinstance(d, dict) and isinstance(d.get("kind"), str) for d in documents):
        raise Failure(f"{file} holds no manifests; each document needs a kind")
    outdated = [sentence for document in documents if (sentence := what_to_change(document))]
    if outdated:
        raise Failure("; ".join(outdated))
    return documents
