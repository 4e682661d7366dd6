"""The commands `mirage cache ...`: the results store."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from mirage import settings
from mirage.cache import RecordInfo, ResultStore
from mirage.cache.exchange import read_records
from mirage.cache.records import DAY_S, Record, label
from mirage.cli_shared import AsJson, out, print_json, tell
from mirage.errors import CacheError
from mirage.results.recall import StoredRecord
from mirage.results.stored import described, opened, stored_in, verified
from mirage.search.checkpoint import remove_checkpoints

if TYPE_CHECKING:
    from mirage.cache.uses import Use

app = typer.Typer(help="The results store.", no_args_is_help=True)


@app.command("list")
def list_(as_json: AsJson = False) -> None:
    """The records of the results store."""
    store = ResultStore()
    if as_json:
        print_json([asdict(r) for r in store.list()])
        return
    table = Table(title=store.place, title_justify="left")
    for name in ("key", "program", "target", "dtype", "created", "best us", "processor"):
        table.add_column(name)
    for r in store.list():
        unmeasured = "graphs" if r.processor is None else "forms or kernel"
        best = unmeasured if r.best_us is None else f"{r.best_us:,.1f}"
        table.add_row(r.key[:12], r.program, r.target, r.dtype, r.created, best, r.processor or "")
    out.print(table)


@app.command()
def show(
    key: Annotated[str, typer.Argument(help="The key of a record, or how it begins.")], as_json: AsJson = False
) -> None:
    """What a record says: program, target, best graph, a new certificate for it, measurements."""
    record = _one(ResultStore(), key)
    if as_json:
        if isinstance(stored_in(record), StoredRecord):
            opened(record)
        print_json({**asdict(record), "payload": record.content()})
        return
    for line in described(record):
        print(line)


def _one(store: ResultStore, prefix: str) -> Record:
    """The record whose key begins so; raises CacheError unless there is exactly one."""
    keys = store.matching(prefix)
    record = store.record(keys[0]) if len(keys) == 1 else None
    if record is None:
        found = f"begins {len(keys)} keys; write more of it" if len(keys) > 1 else "begins no key; `mirage cache list` has them"
        raise CacheError(f"{store.place}: {prefix!r} {found}")
    return record


@app.command()
def stats(as_json: AsJson = False) -> None:
    """How many records, bytes and hits there are, and how old they are, by target and processor."""
    store = ResultStore()
    uses, now = store.uses(), time.time()
    groups: dict[tuple[str, str], list[RecordInfo]] = defaultdict(list)
    for r in store.list():
        groups[r.target, r.processor or "any"].append(r)
    rows = [_figures(target, processor, records, uses, now) for (target, processor), records in sorted(groups.items())]
    if as_json:
        print_json({"place": store.place, "groups": rows})
        return
    table = Table(title=store.place, title_justify="left")
    for name in ("target", "processor", "records", "complete", "bytes", "hits", "oldest use, days"):
        table.add_column(name)
    for row in rows:
        table.add_row(*(f"{v:,.1f}" if isinstance(v, float) else f"{v:,}" if isinstance(v, int) else v for v in row.values()))
    out.print(table)


def _figures(
    target: str, processor: str, records: Iterable[RecordInfo], uses: dict[str, Use], now: float
) -> dict[str, str | int | float]:
    found = list(records)
    used = [uses[r.key] for r in found if r.key in uses]
    return {
        "target": target,
        "processor": processor,
        "records": len(found),
        "complete": sum(r.cut_s is None for r in found),
        "bytes": sum(u.bytes for u in used),
        "hits": sum(u.hits for u in used),
        "oldest_use_days": max(((now - u.used) / DAY_S for u in used), default=0.0),
    }


@app.command()
def verify(
    keys: Annotated[list[str] | None, typer.Argument(help="Keys, or how they begin; without any, all records.")] = None,
    remove: Annotated[bool, typer.Option("--remove", help="Delete the bad ones.")] = False,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the random tests.")] = 0,
    as_json: AsJson = False,
) -> None:
    """Verify records as they are when they are recalled. Exit code 0 if none is bad, else 1."""
    store = ResultStore()
    rows = []
    for record in [_one(store, key) for key in keys] if keys else store.records():
        found = verified(record, seed)
        deleted = found.bad and remove and store.discard(record.key, record.payload_sha256)
        rows.append({"key": record.key, "bad": found.bad, "graphs": found.graphs, "why": found.why, "deleted": deleted})
        if not as_json:
            # damaged text may hold anything
            print(f"{record.key[:12]} {label(str(record.program))}: {found}{'; deleted' * deleted}")
    bad = sum(bool(row["bad"]) for row in rows)
    if as_json:
        print_json(rows)
    else:
        print(f"{len(rows)} records, {bad} bad")
    if bad:
        raise typer.Exit(1)


@app.command("export")
def export_(
    path: Annotated[Path, typer.Argument(help="File of JSON lines to write.")], as_json: AsJson = False
) -> None:
    """Write all sound records to a file, a line each, sorted by key."""
    written = ResultStore().export(path)
    if as_json:
        print_json({"written": written, "file": str(path)})
    else:
        print(f"{written} records written to {path}")


@app.command("import")
def import_(
    path: Annotated[Path, typer.Argument(help="File that export wrote, or several of them one after the other.")],
    verify: Annotated[bool, typer.Option("--verify", help="Verify every graph before anything is imported.")] = False,
    as_json: AsJson = False,
) -> None:
    """Merge the records of a file, all or none; what they hold is verified before it is used, in any case."""
    records = read_records(path)
    if verify:
        _check_all(records, str(path))
    imported = ResultStore().add(records)
    if as_json:
        print_json({"imported": imported, "file": str(path)})
    else:
        print(f"{imported} records imported from {path}")


@app.command()
def merge(
    url: Annotated[str, typer.Argument(help="SQLAlchemy URL of another store.")],
    verify: Annotated[bool, typer.Option("--verify", help="Verify every graph before anything is merged.")] = False,
    as_json: AsJson = False,
) -> None:
    """Merge the sound records of another store, all or none."""
    other = ResultStore(url, create=False)
    records = list(other.sound_records())
    if verify:
        _check_all(records, other.place)
    merged = ResultStore().add(records)
    if as_json:
        print_json({"merged": merged, "place": other.place})
    else:
        print(f"{merged} records merged from {other.place}")


def _check_all(records: Iterable[Record], where: str) -> None:
    """Raises CacheError for the first record that is bad; what cannot be verified here is told."""
    for record in records:
        finding = verified(record)
        if finding.bad:
            raise CacheError(f"{where}: record {record.key[:12]} of {record.program} is {finding}; nothing was stored")
        if finding.why:
            tell(f"{where}: record {record.key[:12]} of {record.program} is {finding}")


@app.command()
def evict(
    max_bytes: Annotated[float | None, typer.Option(help="Bytes to keep; by default, as the settings have it.")] = None,
    max_days: Annotated[float | None, typer.Option(help="Days since the last use; by default, as the settings have it.")] = None,
    as_json: AsJson = False,
) -> None:
    """Delete what was not used for long, and what was used longest ago where there is too much."""
    size = settings.cache_max_bytes() if max_bytes is None else max_bytes
    days = settings.cache_max_days() if max_days is None else max_days
    deleted = ResultStore().evict(max_bytes=size, max_days=days)
    if as_json:
        print_json({"deleted": deleted})
    else:
        print(f"{deleted} records deleted")


@app.command()
def clear(as_json: AsJson = False) -> None:
    """Delete all records, and the checkpoints of unfinished searches."""
    records, checkpoints = ResultStore().clear(), remove_checkpoints()
    if as_json:
        print_json({"records": records, "checkpoints": checkpoints})
    else:
        print(f"{records} records and {checkpoints} checkpoints deleted")
