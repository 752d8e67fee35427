"""Which pod held how much of which GPU for how long, in SQLite. Every write may be repeated, and in any order.

A slice counts from `slice.enforced` until its grant's end, both by its node's clock. A GPU's share is the larger of the
memory and the compute fraction; a GPU whose size is not known yet counts by compute until its inventory was received.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable

import msgspec

from shared.contracts.queries import UsageRow

VERSION = 1
_TABLES = """
CREATE TABLE IF NOT EXISTS slice (
  grant_id TEXT NOT NULL, container TEXT NOT NULL,
  uid TEXT NOT NULL, namespace TEXT NOT NULL, pod TEXT NOT NULL, node TEXT NOT NULL,
  model TEXT NOT NULL, started_ms INTEGER NOT NULL, PRIMARY KEY (grant_id, container)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS part (
  grant_id TEXT NOT NULL, container TEXT NOT NULL,
  uuid TEXT NOT NULL, memory_mib INTEGER NOT NULL, compute_milli INTEGER NOT NULL,
  PRIMARY KEY (grant_id, container, uuid)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS ended (grant_id TEXT PRIMARY KEY, ended_ms INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS gpu (uuid TEXT PRIMARY KEY, memory_mib INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS place (one INTEGER PRIMARY KEY CHECK (one = 1), sequence INTEGER NOT NULL);
CREATE INDEX IF NOT EXISTS ended_when ON ended (ended_ms);
"""
_COLUMNS = {"namespace": "s.namespace", "pod": "s.namespace || '/' || s.pod", "model": "s.model"}
_QUERY = """
SELECT key, SUM(share * seconds) / 1000.0, SUM(memory * seconds), COUNT(*), SUM(live) FROM (
  SELECT {key} AS key,
    MAX(0, COALESCE(e.ended_ms, :now_ms) - s.started_ms) / 1000.0 AS seconds,
    (SELECT SUM(MAX(p.compute_milli, COALESCE(MIN(1000.0, p.memory_mib * 1000.0 / NULLIF(g.memory_mib, 0)), 0.0)))
       FROM part p LEFT JOIN gpu g USING (uuid) WHERE p.grant_id = s.grant_id AND p.container = s.container) AS share,
    (SELECT SUM(p.memory_mib) FROM part p WHERE p.grant_id = s.grant_id AND p.container = s.container) AS memory,
    e.grant_id IS NULL AS live
  FROM slice s LEFT JOIN ended e USING (grant_id))
GROUP BY key ORDER BY 2 DESC, key LIMIT :most
"""


class UsageError(RuntimeError):
    """The usage database cannot be opened or is of another version; the text says what to do."""


class Began(msgspec.Struct, frozen=True):
    grant_id: str
    container: str
    uid: str
    namespace: str
    pod: str
    node: str
    model: str
    started_ms: int
    gpus: tuple[tuple[str, int, int], ...]
    """uuid, memory_mib, compute_milli"""


class Ended(msgspec.Struct, frozen=True):
    grant_id: str
    ended_ms: int


class GpuSize(msgspec.Struct, frozen=True):
    uuid: str
    memory_mib: int


Record = Began | Ended | GpuSize


class UsageBook:
    """Blocking; called from one thread at a time. `path` empty: in memory, for demos."""

    def __init__(self, path: str) -> None:
        """Raises UsageError."""
        try:
            self._db = sqlite3.connect(path or ":memory:", check_same_thread=False, isolation_level=None)
            version = self._db.execute("PRAGMA user_version").fetchone()[0]
            if version not in (0, VERSION):
                raise UsageError(
                    f"{path} is of version {version}, this is {VERSION}; start the matching kerf, or move the "
                    "file away to start with an empty one"
                )
            # WAL and NORMAL: a crash of the process loses nothing, one of the machine at most the newest commits, and
            # the
            # place in the stream with them, so that they are written again.
            for statement in ("PRAGMA journal_mode=WAL", "PRAGMA synchronous=NORMAL", f"PRAGMA user_version={VERSION}"):
                self._db.execute(statement)
            self._db.executescript(_TABLES)
        except sqlite3.Error as error:
            raise UsageError(f"the usage book {path or 'in memory'} cannot be opened: {error}") from error

    def write(self, records: Iterable[Record], sequence: int) -> None:
        """All of it or nothing, with the place in the event stream that it reaches to. Raises sqlite3.Error."""
        db = self._db
        db.execute("BEGIN IMMEDIATE")
        try:
            for record in records:
                self._write(record)
            if sequence:
                db.execute(
                    "INSERT INTO place VALUES (1, ?) ON CONFLICT DO UPDATE SET sequence = excluded.sequence",
                    (sequence,),
                )
            db.execute("COMMIT")
        except BaseException:
            db.execute("ROLLBACK")
            raise

    def _write(self, record: Record) -> None:
        db = self._db
        match record:
            case Began():
                key = (record.grant_id, record.container)
                row = (*key, record.uid, record.namespace, record.pod, record.node, record.model, record.started_ms)
                # Handed over again after a reboot is the same slice: it was held all the time.
                db.execute(
                    "INSERT INTO slice VALUES (?,?,?,?,?,?,?,?) ON CONFLICT DO UPDATE SET started_ms = "
                    "MIN(started_ms, excluded.started_ms)",
                    row,
                )
                db.executemany("INSERT OR IGNORE INTO part VALUES (?,?,?,?,?)", [(*key, *gpu) for gpu in record.gpus])
            case Ended():
                db.execute(
                    "INSERT INTO ended VALUES (?,?) ON CONFLICT DO UPDATE SET ended_ms = MIN(ended_ms, "
                    "excluded.ended_ms)",
                    (record.grant_id, record.ended_ms),
                )
            case GpuSize():
                db.execute(
                    "INSERT INTO gpu VALUES (?,?) ON CONFLICT DO UPDATE SET memory_mib = excluded.memory_mib",
                    (record.uuid, record.memory_mib),
                )

    def sequence(self) -> int:
        """The place in the event stream that the book reaches to; 0 at first."""
        row = self._db.execute("SELECT sequence FROM place").fetchone()
        return 0 if row is None else int(row[0])

    def live(self) -> list[Began]:
        """Slices that have not ended."""
        rows = self._db.execute(
            "SELECT grant_id, container, uid, namespace, pod, node, model, started_ms FROM slice s LEFT JOIN "
            "ended e USING (grant_id) WHERE e.grant_id IS NULL"
        ).fetchall()
        parts: dict[tuple[str, str], list[tuple[str, int, int]]] = {}
        for grant_id, container, uuid, memory, compute in self._db.execute(
            "SELECT grant_id, container, uuid, memory_mib, compute_milli FROM part p LEFT JOIN ended e USING "
            "(grant_id) WHERE e.grant_id IS NULL"
        ):
            parts.setdefault((grant_id, container), []).append((uuid, memory, compute))
        return [
            Began(
                grant_id,
                container,
                uid,
                namespace,
                pod,
                node,
                model,
                started_ms,
                tuple(parts.get((grant_id, container), ())),
            )
            for grant_id, container, uid, namespace, pod, node, model, started_ms in rows
        ]

    def usage(self, by: str, now_ms: int, most: int = 500) -> tuple[UsageRow, ...]:
        """The largest first. `by` is namespace, pod or model; ValueError on anything else."""
        if by not in _COLUMNS:
            raise ValueError(f"usage is told by {', '.join(_COLUMNS)}, not by {by!r}")
        rows = self._db.execute(_QUERY.format(key=_COLUMNS[by]), {"now_ms": now_ms, "most": most})
        return tuple(
            UsageRow(
                key=key,
                gpu_seconds=round(gpu or 0.0, 3),
                memory_mib_seconds=round(memory or 0.0, 3),
                slices=count,
                live=live,
            )
            for key, gpu, memory, count, live in rows
        )

    def forget(self, before_ms: int) -> int:
        """Takes out slices that ended before then; returns how many grants."""
        old = "(SELECT grant_id FROM ended WHERE ended_ms < ?)"
        self._db.execute("BEGIN IMMEDIATE")
        for table in ("slice", "part"):
            delete = f"DELETE FROM {table} WHERE grant_id IN {old}"  # noqa: S608 - both names are constants
            self._db.execute(delete, (before_ms,))
        gone = self._db.execute("DELETE FROM ended WHERE ended_ms < ?", (before_ms,)).rowcount
        self._db.execute("COMMIT")
        return gone

    def close(self) -> None:
        self._db.close()
