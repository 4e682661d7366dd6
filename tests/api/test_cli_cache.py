"""The commands of the results store: what they print, what they refuse, and their exit codes."""

from __future__ import annotations

import json
import re
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

import mirage as mi
from mirage.cache import ResultStore
from tests.api.small import BUDGET, Run, rows


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> str:
    """An export of the two records of a program."""
    folder = tmp_path_factory.mktemp("exported")
    store = ResultStore(f"sqlite:///{folder}/store.sqlite")
    mi.superoptimize(rows, budget=BUDGET, cache=store)
    assert store.export(folder / "all.jsonl") == 2
    return (folder / "all.jsonl").read_text()


@pytest.fixture
def run(command: Run, tmp_path: Path, exported: str) -> Run:
    """The command line, with a store that has these records."""
    (tmp_path / "all.jsonl").write_text(exported)
    assert command("cache", "import", "all.jsonl") == (0, "2 records imported from all.jsonl\n", "")
    return command


def keys(exported: str) -> dict[str, str]:
    records = [json.loads(line) for line in exported.splitlines()]
    return {"choice" if r["processor"] else "graphs": r["key"] for r in records}


def forged(exported: str) -> str:
    """The export with another function in every graph, and checksums of that."""
    from mirage.cache.records import canonical_json, sha256

    lines = []
    for line in exported.splitlines():
        record = json.loads(line.replace('"exp"', '"sin"'))
        record["payload_sha256"] = sha256(canonical_json(record["payload"], "test"))
        lines.append(json.dumps(record))
    return "".join(f"{line}\n" for line in lines)


def test_show_takes_the_beginning_of_a_key(run: Run, exported: str) -> None:
    key = keys(exported)["choice"]
    code, out, err = run("cache", "show", key[:10])
    assert (code, err) == (0, "")
    for text in (f"key: {key}", "def rows(x: float32[m, n])", "chosen at m=3, n=5", "library: "):
        assert text in out
    code, out, err = run("cache", "show", keys(exported)["graphs"])
    assert code == 0 and re.search("[0-9]+ graphs?; the cheapest:", out)


@pytest.mark.parametrize(("prefix", "message"), [("", "begins 2 keys"), ("x", "begins no key"), ("%", "begins no key")])
def test_show_needs_one_record(run: Run, prefix: str, message: str) -> None:
    code, out, err = run("cache", "show", prefix)
    assert (code, out) == (2, "") and message in err


def test_stats_count_by_target_and_processor(run: Run, exported: str) -> None:
    store = ResultStore()
    store.get(keys(exported)["graphs"])
    assert store.uses(), "reads are counted by now"
    code, out, _ = run("cache", "stats", "--json")
    assert code == 0
    groups = {g["processor"] == "any": g for g in json.loads(out)["groups"]}
    assert set(groups) == {True, False}
    assert all(g["records"] == 1 and g["target"] == "cpu" and g["bytes"] > 100 for g in groups.values())
    assert (groups[True]["hits"], groups[False]["hits"]) == (1, 0)
    code, out, _ = run("cache", "stats")
    assert code == 0 and out.count("cpu") >= 2


def test_verify_finds_what_is_wrong_and_removes_it_if_told(run: Run, exported: str, tmp_path: Path) -> None:
    code, out, _ = run("cache", "verify")
    assert code == 0 and "2 records, 0 bad" in out and out.count("verified: ") == 2
    with closing(sqlite3.connect(tmp_path / "store.sqlite")) as connection, connection:
        connection.execute("UPDATE mirage_results SET payload = replace(payload, 'exp', 'abs') WHERE processor IS NULL")
    code, out, _ = run("cache", "verify")
    assert code == 1 and "2 records, 1 bad" in out and "checksum" in out
    assert run("cache", "verify", keys(exported)["choice"][:12])[0] == 0
    code, out, _ = run("cache", "verify", "--remove")
    assert code == 1 and "deleted" in out
    code, out, _ = run("cache", "verify")
    assert code == 0 and "1 records, 0 bad" in out


def test_what_was_forged_is_not_imported_where_it_is_verified(run: Run, exported: str, tmp_path: Path) -> None:
    run("cache", "clear")
    (tmp_path / "forged.jsonl").write_text(forged(exported))
    code, out, err = run("cache", "import", "--verify", "forged.jsonl")
    assert (code, out) == (2, "") and "forged.jsonl" in err and "nothing was stored" in err
    assert ResultStore().list() == []
    assert run("cache", "import", "--verify", "all.jsonl")[0] == 0
    # without it, its soundness is checked, and its graphs when they are recalled
    run("cache", "clear")
    assert run("cache", "import", "forged.jsonl")[0] == 0
    assert run("cache", "verify")[0] == 1


def test_merge_takes_the_records_of_another_store(run: Run, exported: str, tmp_path: Path) -> None:
    other = ResultStore(f"sqlite:///{tmp_path}/other.sqlite")
    (tmp_path / "forged.jsonl").write_text(forged(exported))
    other.import_(tmp_path / "forged.jsonl")
    run("cache", "clear")
    code, out, err = run("cache", "merge", "--verify", f"sqlite:///{tmp_path}/other.sqlite")
    assert (code, out) == (2, "") and "nothing was stored" in err
    other.clear()
    other.import_(tmp_path / "all.jsonl")
    code, out, _ = run("cache", "merge", "--verify", f"sqlite:///{tmp_path}/other.sqlite")
    assert code == 0 and out.startswith("2 records merged from ")
    assert run("cache", "merge", "sqlite:////no/such/folder/x.sqlite")[0] == 2


def test_evict_deletes_what_is_too_much(run: Run) -> None:
    assert run("cache", "evict") == (0, "0 records deleted\n", "")
    assert run("cache", "evict", "--max-days", "1") == (0, "0 records deleted\n", "")
    assert run("cache", "evict", "--max-bytes", "1") == (0, "2 records deleted\n", "")


@pytest.mark.parametrize("limit", ["--max-bytes=-1", "--max-days=-5", "--max-bytes=nan", "--max-days=nan"])
def test_evict_refuses_what_limits_nothing(run: Run, limit: str) -> None:
    code, out, err = run("cache", "evict", limit)
    assert (code, out) == (2, "") and "limits nothing" in err and "nothing was removed" in err
    assert len(ResultStore().list()) == 2


def test_merge_makes_no_store(run: Run, tmp_path: Path) -> None:
    code, out, err = run("cache", "merge", f"sqlite:///{tmp_path}/mistyped.sqlite")
    assert (code, out) == (2, "") and "mistyped.sqlite: there is none; give the URL" in err
    assert not (tmp_path / "mistyped.sqlite").exists()
    with closing(sqlite3.connect(tmp_path / "foreign.sqlite")) as connection, connection:
        connection.execute("CREATE TABLE letters (text)")
    code, out, err = run("cache", "merge", f"sqlite:///{tmp_path}/foreign.sqlite")
    assert (code, out) == (2, "") and "foreign.sqlite: there is none" in err
    with closing(sqlite3.connect(tmp_path / "foreign.sqlite")) as connection:
        assert connection.execute("SELECT name FROM sqlite_master").fetchall() == [("letters",)]
    code, out, err = run("cache", "merge", "")
    assert (code, out) == (2, "") and "give the SQLAlchemy URL" in err


@pytest.mark.filterwarnings("always::mirage.cache.CorruptRecordWarning")
@pytest.mark.parametrize(
    "column", ["best_us = 'fast'", "target = x'ff00'", "processor = x'00'", "family = 7", "program = char(27)"]
)
def test_a_record_with_a_damaged_column_stops_no_command(
    run: Run, exported: str, tmp_path: Path, column: str
) -> None:
    bad = keys(exported)["choice"]
    with closing(sqlite3.connect(tmp_path / "store.sqlite")) as connection, connection:
        connection.execute(f"UPDATE mirage_results SET {column} WHERE key = '{bad}'")
    name = f"its {column.partition(' ')[0]}"
    for command in (["list"], ["list", "--json"], ["stats"], ["stats", "--json"], ["export", "sound.jsonl"]):
        code, _, err = run("cache", *command)
        assert code == 0 and f"{bad} is ignored: {name}" in err and "`mirage cache verify --remove` deletes it" in err
    assert len((tmp_path / "sound.jsonl").read_text().splitlines()) == 1
    code, _, err = run("cache", "show", bad[:10], "--json")
    assert code == 2 and name in err
    code, out, _ = run("cache", "verify")
    assert code == 1 and "2 records, 1 bad" in out and "\x1b" not in out
    code, out, _ = run("cache", "verify", "--remove", "--json")
    assert code == 1 and [row["why"].startswith(name) for row in json.loads(out) if row["deleted"]] == [True]
    assert len(ResultStore().list()) == 1


def test_a_record_of_a_later_release_is_not_bad(run: Run, tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "store.sqlite")) as connection, connection:
        connection.execute("UPDATE mirage_results SET version = version + 1")
    code, out, _ = run("cache", "verify", "--remove")
    assert code == 0 and out.count("not verified: ") == 2 and "2 records, 0 bad" in out


def test_a_folder_may_have_the_name_of_a_style(command: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MIRAGE_CACHE_URL")
    # in the folder of the test
    monkeypatch.setenv("MIRAGE_CACHE_DIR", "a[bold]/[/b]")
    for arguments in (("cache", "list"), ("cache", "stats"), ("settings",)):
        code, out, err = command(*arguments)
        assert (code, err) == (0, "") and "a[bold]/[/b]" in out


def test_a_file_without_an_end_is_not_read_to_its_end(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mirage.cache.exchange.MAX_BYTES", 1 << 20)
    code, out, err = run("cache", "import", "/dev/zero")
    assert (code, out) == (2, "") and "/dev/zero: larger than 1048576 bytes" in err
