"""Which pod held how much of which GPU for how long, in SQLite. Every write may be repeated, and in any order.

A slice counts from its first `slice.enforced` until its grant's end, with what each such event says that it has until
the next one, all by its node's clock. The order of these events is that of their source, also where its clock is set
back. A GPU's share is the larger of the memory and the compute fraction; one of unknown size counts by compute until
its inventory was received.
"""

from __future__ import annotations

import contextlib
import json
import sqlite3
from collections.abc import Iterable, Iterator

import msgspec

from shared.contracts.metrics_queries import UsageRow

VERSION = 1
"""Tables that are added later do not change it: an earlier version of Kerf ignores them, so a rollback works."""
HOUR_MS = 3_600_000
_EVER_MS = 1 << 62
_TABLES = """
CREATE TABLE IF NOT EXISTS slice (
  grant_id TEXT NOT NULL, container TEXT NOT NULL,
  uid TEXT NOT NULL, namespace TEXT NOT NULL, pod TEXT NOT NULL, node TEXT NOT NULL,
  model TEXT NOT NULL, started_ms INTEGER NOT NULL, PRIMARY KEY (grant_id, container)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS part (
  grant_id TEXT NOT NULL, container TEXT NOT NULL,
  uuid TEXT NOT NULL, memory_mib INTEGER NOT NULL, compute_milli INTEGER NOT NULL,
  PRIMARY KEY (grant_id, container, uuid)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS held (
  grant_id TEXT NOT NULL, container TEXT NOT NULL, at_ms INTEGER NOT NULL,
  uuid TEXT NOT NULL, memory_mib INTEGER NOT NULL, compute_milli INTEGER NOT NULL,
  PRIMARY KEY (grant_id, container, at_ms, uuid)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS told (
  grant_id TEXT NOT NULL, container TEXT NOT NULL, source TEXT NOT NULL, sequence TEXT NOT NULL,
  at_ms INTEGER NOT NULL, PRIMARY KEY (grant_id, container, source, sequence)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS ended (grant_id TEXT PRIMARY KEY, ended_ms INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS released (grant_id TEXT PRIMARY KEY) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS gpu (uuid TEXT PRIMARY KEY, memory_mib INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS gpu_size (
  uuid TEXT NOT NULL, node TEXT NOT NULL, memory_mib INTEGER NOT NULL, PRIMARY KEY (uuid, node)) WITHOUT ROWID;
INSERT INTO gpu_size SELECT uuid, '', memory_mib FROM gpu
  WHERE NOT EXISTS (SELECT 1 FROM gpu_size g WHERE g.uuid = gpu.uuid);
CREATE TABLE IF NOT EXISTS place (one INTEGER PRIMARY KEY CHECK (one = 1), sequence INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS stream (one INTEGER PRIMARY KEY CHECK (one = 1), name TEXT NOT NULL);
CREATE INDEX IF NOT EXISTS ended_when ON ended (ended_ms);
CREATE INDEX IF NOT EXISTS slice_uid ON slice (uid);
CREATE TABLE IF NOT EXISTS label (
  uid TEXT NOT NULL, key TEXT NOT NULL, value TEXT NOT NULL, at_ms INTEGER NOT NULL,
  PRIMARY KEY (uid, key)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS capacity (
  node TEXT NOT NULL, at_ms INTEGER NOT NULL, gpus INTEGER NOT NULL, model TEXT NOT NULL,
  PRIMARY KEY (node, at_ms)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS capacity_part (
  node TEXT NOT NULL, at_ms INTEGER NOT NULL, model TEXT NOT NULL, gpus INTEGER NOT NULL,
  PRIMARY KEY (node, at_ms, model)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS stranded (hour_ms INTEGER PRIMARY KEY, milli_ms INTEGER NOT NULL) WITHOUT ROWID;
"""
"""`gpu` is of an earlier Kerf, which knew no nodes of sizes."""
_COLUMNS = {"namespace": "s.namespace", "pod": "s.namespace || '/' || s.pod", "model": "s.model"}
_PPM = 1_000_000
_SIZE = """(SELECT COALESCE(MAX(CASE WHEN g.node = s.node THEN g.memory_mib END), MAX(g.memory_mib))
  FROM gpu_size g WHERE g.uuid = x.uuid)"""  # a node's word about its own GPUs; others', of GPUs over the network
_SHARE = "MAX(x.compute_milli * 1000, COALESCE(MIN(1000000, x.memory_mib * 1000000 / NULLIF(" + _SIZE + ", 0)), 0))"
_IN_PERIOD = "s.started_ms < :until_ms AND COALESCE(e.ended_ms, :until_ms) > :since_ms"
_STRETCHES = f"""
WITH stretch AS (
  SELECT grant_id, container, 1 AS first, started_ms AS from_ms,
    (SELECT MIN(h.at_ms) FROM held h WHERE h.grant_id = s.grant_id AND h.container = s.container) AS to_ms,
    COALESCE((SELECT SUM({_SHARE}) FROM part x
       WHERE x.grant_id = s.grant_id AND x.container = s.container), 0) AS ppm,
    COALESCE((SELECT SUM(x.memory_mib) FROM part x
       WHERE x.grant_id = s.grant_id AND x.container = s.container), 0) AS memory
  FROM slice s
  UNION ALL
  SELECT grant_id, container, 0, at_ms, LEAD(at_ms) OVER (PARTITION BY grant_id, container ORDER BY at_ms),
    SUM({_SHARE}), SUM(x.memory_mib)
  FROM held x JOIN slice s USING (grant_id, container) LEFT JOIN ended e USING (grant_id)
  WHERE {_IN_PERIOD}
  GROUP BY grant_id, container, at_ms)
"""  # noqa: S608 - a constant
"""The times in which a slice had the same of each GPU: `ppm` are millionths of a GPU. `first` is 1 for one of them, so
that slices can be counted. `part` has what a slice began with, `held` what it has had from `at_ms` on: of slices that
may matter in a period."""
_QUERY = """
SELECT key, SUM(ppm * seconds) / 1000000, SUM(memory * seconds), SUM(first), SUM(live) FROM (
  SELECT {key} AS key, t.ppm, t.memory, t.first AS first, t.first * (e.grant_id IS NULL) AS live,
    MAX(0, MIN(COALESCE(t.to_ms, e.ended_ms, :now_ms), COALESCE(e.ended_ms, :now_ms)) - t.from_ms) / 1000.0 AS seconds
  FROM stretch t JOIN slice s USING (grant_id, container) LEFT JOIN ended e USING (grant_id))
GROUP BY key ORDER BY 2 DESC, key LIMIT :most
"""
_COST = f"""
SELECT key, model, SUM(x / 1000000), SUM(x % 1000000), SUM(y / 1000000), SUM(y % 1000000), SUM(first), SUM(live) FROM (
  SELECT key, model, ppm * ms AS x, memory * ms AS y, first, live FROM (
    SELECT {{key}} AS key, s.model AS model, t.ppm, t.memory, t.first, t.first * (e.grant_id IS NULL) AS live,
      MAX(0, MIN(COALESCE(t.to_ms, :until_ms), COALESCE(e.ended_ms, :until_ms), :until_ms)
               - MAX(t.from_ms, :since_ms)) AS ms
    FROM stretch t JOIN slice s USING (grant_id, container) LEFT JOIN ended e USING (grant_id)
    WHERE {_IN_PERIOD} AND COALESCE(e.ended_ms, :until_ms) > s.started_ms))
GROUP BY key, model
"""  # noqa: S608 - a constant, but for the key
"""Integers throughout, split before they are summed: SQLite has 64 bits, and a month of a large cluster has more."""


_LIVE = """
SELECT grant_id, container, uuid, memory_mib, compute_milli FROM part p LEFT JOIN ended e USING (grant_id)
  WHERE e.grant_id IS NULL
    AND NOT EXISTS (SELECT 1 FROM held h WHERE h.grant_id = p.grant_id AND h.container = p.container)
UNION ALL
SELECT grant_id, container, uuid, memory_mib, compute_milli FROM held x LEFT JOIN ended e USING (grant_id)
  WHERE e.grant_id IS NULL AND uuid <> ''
    AND at_ms = (SELECT MAX(at_ms) FROM held h WHERE h.grant_id = x.grant_id AND h.container = x.container)
"""
"""What slices that have not ended have now."""


class UsageError(RuntimeError):
    """The usage database cannot be opened or is of another version; the text says what to do."""


class Began(msgspec.Struct, frozen=True):
    """What a container's slice has from then on. Of several the first one is its begin."""

    grant_id: str
    container: str
    uid: str
    namespace: str
    pod: str
    node: str
    model: str
    started_ms: int
    gpus: tuple[tuple[str, int, int], ...]
    """uuid, memory_mib, compute_milli. None: it is suspended, and all is on the host."""
    source: str = ""
    sequence: str = ""
    """The order of its source's events (`Envelope.sequence`). Empty: `started_ms` is their order."""


class Ended(msgspec.Struct, frozen=True):
    grant_id: str
    ended_ms: int
    by_node: bool = False
    """It is the node's word, and by its clock, as the begin was. Other ends count only where there is none of these."""


class GpuSize(msgspec.Struct, frozen=True):
    node: str
    """Of the agent that says it."""
    uuid: str
    memory_mib: int


class Labelled(msgspec.Struct, frozen=True):
    """Labels of a pod. A pod that is decided twice has those of the later decision."""

    uid: str
    labels: tuple[tuple[str, str], ...]
    at_ms: int


class Capacity(msgspec.Struct, frozen=True):
    """How many GPUs a node has from then on; none: it is gone."""

    node: str
    at_ms: int
    gpus: int
    model: str
    by_model: tuple[tuple[str, int], ...] = ()
    """Of a node with several models: how many it has of each."""


class Stranded(msgspec.Struct, frozen=True):
    """A sample: so much free compute could not be used, for so long until `at_ms`."""

    at_ms: int
    milli: int
    for_ms: int


class Spent(msgspec.Struct, frozen=True):
    """What the slices of one key had of one GPU model. Exact: `gpu_ppm_ms` is in millionths of a GPU times ms."""

    key: str
    model: str
    gpu_ppm_ms: int
    memory_mib_ms: int
    slices: int
    live: int


Record = Began | Ended | GpuSize | Labelled | Capacity | Stranded


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
            # the place in the stream with them, so that they are written again.
            for statement in ("PRAGMA journal_mode=WAL", "PRAGMA synchronous=NORMAL", f"PRAGMA user_version={VERSION}"):
                self._db.execute(statement)
            self._db.executescript(_TABLES)
        except sqlite3.Error as error:
            raise UsageError(f"the usage book {path or 'in memory'} cannot be opened: {error}") from error

    def write(self, records: Iterable[Record], sequence: int, stream: str = "") -> list[str]:
        """All of it or nothing, with the place in the event stream that it reaches to (`LogEntry.stream` tells one
        stream from the next). A record that no attempt could write is left out; returns why, of each. Raises
        sqlite3.Error."""
        left_out = []
        with self._all_or_nothing() as db:
            for record in records:
                db.execute("SAVEPOINT record")
                try:
                    self._write(record)
                except (OverflowError, UnicodeError, sqlite3.DataError) as error:
                    db.execute("ROLLBACK TO record")
                    left_out.append(f"{error!r}: {str(record)[:300]}")
                db.execute("RELEASE record")
            if sequence:
                db.execute(
                    "INSERT INTO place VALUES (1, ?) ON CONFLICT DO UPDATE SET sequence = excluded.sequence",
                    (sequence,),
                )
                db.execute(
                    "INSERT INTO stream VALUES (1, ?) ON CONFLICT DO UPDATE SET name = excluded.name WHERE name <> "
                    "excluded.name",
                    (stream,),
                )
        return left_out

    @contextlib.contextmanager
    def _all_or_nothing(self) -> Iterator[sqlite3.Connection]:
        self._db.execute("BEGIN IMMEDIATE")
        try:
            yield self._db
            self._db.execute("COMMIT")
        except BaseException:
            self._db.execute("ROLLBACK")  # or no transaction after it could begin
            raise

    def _write(self, record: Record) -> None:
        db = self._db
        match record:
            case Began():
                self._began(record)
            case Ended():
                self._ended(record)
            case Labelled():
                db.executemany(
                    "INSERT INTO label VALUES (?,?,?,?) ON CONFLICT DO UPDATE SET value = excluded.value, at_ms = "
                    "excluded.at_ms WHERE (excluded.at_ms, excluded.value) > (at_ms, value)",
                    [(record.uid, key, value, record.at_ms) for key, value in record.labels],
                )
            case Capacity():
                db.execute(
                    "INSERT INTO capacity VALUES (?,?,?,?) ON CONFLICT DO UPDATE SET gpus = excluded.gpus, "
                    "model = excluded.model",
                    (record.node, record.at_ms, record.gpus, record.model),
                )
                db.executemany(
                    "INSERT OR REPLACE INTO capacity_part VALUES (?,?,?,?)",
                    [(record.node, record.at_ms, model, gpus) for model, gpus in record.by_model],
                )
            case Stranded():
                db.execute(
                    "INSERT INTO stranded VALUES (?,?) ON CONFLICT DO UPDATE SET milli_ms = milli_ms + "
                    "excluded.milli_ms",
                    (record.at_ms - record.at_ms % HOUR_MS, record.milli * record.for_ms),
                )
            case GpuSize():
                db.execute(
                    "INSERT INTO gpu_size VALUES (?,?,?) ON CONFLICT DO UPDATE SET memory_mib = excluded.memory_mib",
                    (record.uuid, record.node, record.memory_mib),
                )

    def _ended(self, record: Ended) -> None:
        """Of several ends of one kind the first one counts."""
        first_of_node = (
            record.by_node
            and self._db.execute("INSERT OR IGNORE INTO released VALUES (?)", (record.grant_id,)).rowcount
        )
        self._db.execute(
            "INSERT INTO ended VALUES (?,?) ON CONFLICT DO UPDATE SET ended_ms = excluded.ended_ms "
            "WHERE ? OR excluded.ended_ms < ended_ms "
            "AND (? OR NOT EXISTS (SELECT 1 FROM released r WHERE r.grant_id = ended.grant_id))",
            (record.grant_id, record.ended_ms, bool(first_of_node), record.by_node),
        )

    def _began(self, record: Began) -> None:
        """What a slice begins with is in `part`, also if it comes after what the slice had later."""
        db, key = self._db, (record.grant_id, record.container)
        at_ms = self._in_order(record) if record.sequence else record.started_ms
        if at_ms is None:
            return
        found = db.execute("SELECT started_ms FROM slice WHERE grant_id = ? AND container = ?", key).fetchone()
        if found is not None and found[0] < at_ms:
            gpus = record.gpus or (("", 0, 0),)
            db.executemany("INSERT OR IGNORE INTO held VALUES (?,?,?,?,?,?)", [(*key, at_ms, *gpu) for gpu in gpus])
            return
        if found is None:
            row = (*key, record.uid, record.namespace, record.pod, record.node, record.model, at_ms)
            db.execute("INSERT INTO slice VALUES (?,?,?,?,?,?,?,?)", row)
        elif found[0] > at_ms:
            db.execute(
                "INSERT OR IGNORE INTO held SELECT grant_id, container, ?, uuid, memory_mib, compute_milli FROM part "
                "WHERE grant_id = ? AND container = ? UNION ALL SELECT ?, ?, ?, '', 0, 0",
                (found[0], *key, *key, found[0]),
            )
            db.execute("DELETE FROM part WHERE grant_id = ? AND container = ?", key)
            db.execute("UPDATE slice SET started_ms = ? WHERE grant_id = ? AND container = ?", (at_ms, *key))
        db.executemany("INSERT OR IGNORE INTO part VALUES (?,?,?,?,?)", [(*key, *gpu) for gpu in record.gpus])

    def _in_order(self, record: Began) -> int | None:
        """Since when it counts: just after what its source told before it, where the clock was set back since. None: it
        was written before, or lasted for less than a millisecond."""
        key, of = (record.grant_id, record.container), (record.grant_id, record.container, record.source)
        told = self._db.execute(
            "SELECT sequence, at_ms FROM told WHERE grant_id = ? AND container = ? AND source = ? AND sequence >= ? "
            "ORDER BY sequence LIMIT 1",
            (*of, record.sequence),
        ).fetchone()
        if told is not None and told[0] == record.sequence:
            return None
        next_ms = _EVER_MS if told is None else told[1]
        before_ms = self._db.execute(
            "SELECT MAX(at_ms) FROM (SELECT MAX(at_ms) AS at_ms FROM held WHERE grant_id = ? AND container = ? "
            "AND at_ms < ? UNION ALL SELECT started_ms FROM slice WHERE grant_id = ? AND container = ? "
            "AND started_ms < ?)",
            (*key, next_ms, *key, next_ms),
        ).fetchone()[0]
        at_ms = record.started_ms if before_ms is None else max(record.started_ms, before_ms + 1)
        at_ms = min(at_ms, next_ms - 1)
        self._db.execute("INSERT INTO told VALUES (?,?,?,?,?)", (*of, record.sequence, at_ms))
        return None if at_ms == before_ms else at_ms

    def sequence(self) -> int:
        """The place in the event stream that the book reaches to; 0 at first."""
        row = self._db.execute("SELECT sequence FROM place").fetchone()
        return 0 if row is None else int(row[0])

    def stream(self) -> str:
        """The event stream of which `sequence` is a place; empty where that is not known."""
        row = self._db.execute("SELECT name FROM stream").fetchone()
        return "" if row is None else str(row[0])

    def live(self) -> list[Began]:
        """Slices that have not ended, each with what it has now."""
        rows = self._db.execute(
            "SELECT grant_id, container, uid, namespace, pod, node, model, started_ms FROM slice s LEFT JOIN "
            "ended e USING (grant_id) WHERE e.grant_id IS NULL"
        ).fetchall()
        parts: dict[tuple[str, str], list[tuple[str, int, int]]] = {}
        for grant_id, container, uuid, memory, compute in self._db.execute(_LIVE):
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
        rows = self._db.execute(
            _STRETCHES + _QUERY.format(key=_COLUMNS[by]),
            {"now_ms": now_ms, "since_ms": -1, "until_ms": _EVER_MS, "most": most},
        )
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

    def since_ms(self) -> int | None:
        """When the first slice began that is known, which is what `usage` counts from; None where there is none."""
        first = self._db.execute("SELECT MIN(started_ms) FROM slice").fetchone()[0]
        return None if first is None else int(first)

    def spent(self, by: str, since_ms: int, until_ms: int) -> list[Spent]:
        """By key and GPU model. `by` is namespace, pod, model or label:KEY; ValueError on anything else."""
        kind, _, label = by.partition(":")
        values: dict[str, object] = {"since_ms": since_ms, "until_ms": until_ms}
        if kind == "label" and label:
            key = "COALESCE((SELECT l.value FROM label l WHERE l.uid = s.uid AND l.key = :label), '')"
            values["label"] = label
        elif by in _COLUMNS:
            key = _COLUMNS[by]
        else:
            raise ValueError(f"cost is told by {', '.join(_COLUMNS)} or label:KEY, not by {by!r}")
        return [
            Spent(key, model, x_high * _PPM + x_low, y_high * _PPM + y_low, slices, live)
            for key, model, x_high, x_low, y_high, y_low, slices, live in self._db.execute(
                _STRETCHES + _COST.format(key=key), values
            )
        ]

    def capacity_ms(self, since_ms: int, until_ms: int) -> dict[str, int]:
        """GPUs times milliseconds that there were, by model."""
        found: dict[str, int] = {}
        rows = self._db.execute(
            "SELECT at_ms, COALESCE(p.gpus, c.gpus), COALESCE(p.model, c.model), "
            "(SELECT MIN(later.at_ms) FROM capacity later WHERE later.node = c.node AND later.at_ms > c.at_ms) "
            "FROM capacity c LEFT JOIN capacity_part p USING (node, at_ms) WHERE at_ms < ?",
            (until_ms,),
        )
        for at_ms, gpus, model, next_ms in rows:
            end_ms = until_ms if next_ms is None else min(next_ms, until_ms)
            found[model] = found.get(model, 0) + gpus * max(0, end_ms - max(at_ms, since_ms))
        return {model: amount for model, amount in found.items() if amount}

    def nodes(self) -> list[str]:
        """Nodes with GPUs that are counted as capacity now."""
        rows = self._db.execute(
            "SELECT node FROM capacity c WHERE gpus > 0 "
            "AND at_ms = (SELECT MAX(at_ms) FROM capacity later WHERE later.node = c.node)"
        )
        return [node for (node,) in rows]

    def stranded_ms(self, since_ms: int, until_ms: int) -> int:
        """GPU milli times milliseconds, of the hours that begin in the period."""
        row = self._db.execute(
            "SELECT SUM(milli_ms) FROM stranded WHERE hour_ms >= ? AND hour_ms < ?",
            (since_ms - since_ms % HOUR_MS, until_ms),
        ).fetchone()
        return int(row[0] or 0)

    def forget(self, before_ms: int, nodes: Iterable[str] = ()) -> int:
        """Takes out slices that ended before then, of the others what they had before their last change until then, and
        nodes that were gone; returns how many grants. `nodes`: those with an inventory. Their GPUs are kept."""
        with self._all_or_nothing():
            forgotten = self._forget(before_ms)
            self._db.execute(
                "DELETE FROM gpu_size WHERE node NOT IN (SELECT value FROM json_each(?)) "
                "AND uuid NOT IN (SELECT uuid FROM part UNION SELECT uuid FROM held)",
                (json.dumps(list(nodes)),),
            )
            self._db.execute("DELETE FROM gpu WHERE uuid NOT IN (SELECT uuid FROM gpu_size)")
            return forgotten

    def _forget(self, before_ms: int) -> int:
        old = "(SELECT grant_id FROM ended WHERE ended_ms < ?)"
        self._db.execute("DELETE FROM stranded WHERE hour_ms < ?", (before_ms,))
        self._db.execute(
            "DELETE FROM capacity WHERE EXISTS (SELECT 1 FROM capacity later WHERE later.node = capacity.node "
            "AND later.at_ms > capacity.at_ms AND later.at_ms <= ?)",
            (before_ms,),
        )
        self._db.execute("DELETE FROM capacity WHERE gpus = 0 AND at_ms <= ?", (before_ms,))
        self._db.execute(
            "DELETE FROM capacity_part WHERE NOT EXISTS (SELECT 1 FROM capacity c "
            "WHERE c.node = capacity_part.node AND c.at_ms = capacity_part.at_ms)"
        )
        for table in ("slice", "part", "held", "told", "released"):
            delete = f"DELETE FROM {table} WHERE grant_id IN {old}"  # noqa: S608 - the names are constants
            self._db.execute(delete, (before_ms,))
        self._db.execute(  # also of pods that were decided and never ran
            "DELETE FROM label WHERE at_ms < ? AND NOT EXISTS (SELECT 1 FROM slice WHERE slice.uid = label.uid)",
            (before_ms,),
        )
        for grant_id, container, at_ms in self._db.execute(
            "SELECT grant_id, container, MAX(at_ms) FROM held WHERE at_ms < ? GROUP BY grant_id, container",
            (before_ms,),
        ).fetchall():
            self._begin_later(grant_id, container, at_ms)
        return self._db.execute("DELETE FROM ended WHERE ended_ms < ?", (before_ms,)).rowcount

    def _begin_later(self, grant_id: str, container: str, at_ms: int) -> None:
        """The slice begins with what it has had since this change."""
        key, db = (grant_id, container), self._db
        db.execute("DELETE FROM part WHERE grant_id = ? AND container = ?", key)
        db.execute(
            "INSERT INTO part SELECT grant_id, container, uuid, memory_mib, compute_milli FROM held "
            "WHERE grant_id = ? AND container = ? AND at_ms = ? AND uuid <> ''",
            (*key, at_ms),
        )
        db.execute("DELETE FROM held WHERE grant_id = ? AND container = ? AND at_ms <= ?", (*key, at_ms))
        db.execute("DELETE FROM told WHERE grant_id = ? AND container = ? AND at_ms < ?", (*key, at_ms))
        db.execute("UPDATE slice SET started_ms = ? WHERE grant_id = ? AND container = ?", (at_ms, *key))

    def close(self) -> None:
        self._db.close()
