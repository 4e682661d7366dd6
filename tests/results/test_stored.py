"""Records looked at by themselves: what is true is verified, what was changed is bad, and what is of others is neither."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import mirage as mi
from mirage.cache import ResultStore
from mirage.cache.records import Record, canonical_json, sha256
from mirage.errors import FormatError
from mirage.ir.codec import parse_json
from mirage.results.cpu.tune import Session
from mirage.results.stored import described, verified
from tests.api.small import BUDGET, arrays, check, limit_tuning, rows


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Record]:
    """Of one program, whose inputs have a symbol that is not the canonical one: the graphs, and what was chosen."""
    store = ResultStore(f"sqlite:///{tmp_path_factory.mktemp('stored')}/store.sqlite")
    with pytest.MonkeyPatch.context() as patch:
        limit_tuning(patch.setattr)
        mi.superoptimize(rows, budget=BUDGET, cache=store)
    found = {"choice" if r.processor else "graphs": r for r in store.records()}
    assert len(found) == 2
    return found


def changed(record: Record, change: Callable[[dict[str, Any]], object]) -> Record:
    """The record with another payload, and the checksum of that: what a forger writes."""
    payload = json.loads(record.payload)
    change(payload)
    text = canonical_json(payload, "test")
    return replace(record, payload=text, payload_sha256=sha256(text))


@pytest.mark.parametrize("kind", ["graphs", "choice"])
def test_what_was_kept_is_true(records: dict[str, Record], kind: str) -> None:
    found = verified(records[kind])
    assert not found.bad and not found.why and found.graphs > 0
    assert str(found).startswith(f"verified: {found.graphs} graph")


def test_what_was_kept_of_a_program_with_constants_is_true(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its graphs alone, as what was chosen: what is made of constants alone is searched with them."""
    limit_tuning(monkeypatch.setattr)
    store = ResultStore(f"sqlite:///{tmp_path}/store.sqlite")
    scaled = mi.trace(lambda x, w: mi.softmax(x @ w), x=mi.tensor("b", 8), w=mi.tensor(8, 8))
    mi.superoptimize(scaled, sizes={"b": 3}, constants=["w"], budget=BUDGET, cache=store)
    found = list(store.records())
    assert len(found) == 2 and not any(verified(r).why for r in found)


def test_a_record_says_what_it_is_about(records: dict[str, Record]) -> None:
    choice, graphs = ("\n".join(described(records[kind])) for kind in ("choice", "graphs"))
    for text in (choice, graphs):
        assert "def rows(x: float32[m, n])" in text
        assert "key: " in text and "target: cpu, float32" in text
    assert "chosen at m=3, n=5" in choice and "library: " in choice and "us median" in choice
    assert str(records["choice"].processor) in choice
    assert "the cheapest:" in graphs and "proved" in graphs


def wrong_graph(payload: dict[str, Any]) -> None:
    """Another function where the program has an exp."""
    text = json.dumps(payload["graphs"])
    assert '"exp"' in text
    payload["graphs"] = json.loads(text.replace('"exp"', '"sin"'))


BAD: dict[str, Callable[[dict[str, Any]], object]] = {
    "another program": lambda p: p.update(program=_other()),
    "a wrong graph": wrong_graph,
    "no graphs": lambda p: p.pop("graphs"),
    "a field too many": lambda p: p.update(run="__import__('os').system('true')"),
    "a graph that is text": lambda p: p.update(graphs=["import os"]),
}


def _other() -> Any:
    from mirage.ir.codec import encode

    return encode(mi.trace(lambda x: mi.relu(x), x=mi.tensor("m", "n")))


@pytest.mark.parametrize("kind", ["graphs", "choice"])
@pytest.mark.parametrize("name", BAD)
def test_what_was_forged_is_bad(records: dict[str, Record], kind: str, name: str) -> None:
    found = verified(changed(records[kind], BAD[name]))
    assert found.bad and found.why, str(found)


class Refused(Exception):
    """A search was begun: what was kept was not used."""


@pytest.mark.filterwarnings("ignore::mirage.cache.CorruptRecordWarning")
@pytest.mark.parametrize("count", [15, pytest.param(400, marks=pytest.mark.slow)])
def test_one_byte_that_a_forger_changed_gives_no_wrong_kernel(
    records: dict[str, Record], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    """The checksums are those of the changed payloads, so that only what these say is left to be checked."""

    def refuse(*_: object) -> None:
        raise Refused

    monkeypatch.setattr(Session, "run", refuse)
    program, sizes = rows.trace(), {"m": 3, "n": 5}
    inputs = arrays(program, sizes)
    used = 0
    for seed in range(count):
        rng = random.Random(seed)
        text = bytearray(records["choice"].payload.encode())
        text[rng.randrange(len(text))] ^= 1 << rng.randrange(7)
        try:
            payload = parse_json(bytes(text))
        except ValueError:
            continue
        if payload == json.loads(records["choice"].payload) or not isinstance(payload, dict):
            continue
        forged = canonical_json(payload, "test")
        store = ResultStore(f"sqlite:///{tmp_path}/{seed}.sqlite")
        store.add([replace(records["choice"], payload=forged, payload_sha256=sha256(forged))])
        try:
            result = mi.superoptimize(rows, budget=BUDGET, cache=store)
        except Refused:
            continue
        used += 1
        check(program, [result(*inputs)], inputs, sizes)
        for n in (1, 9):
            others = {"m": n, "n": 2 * n}
            more = arrays(program, others)
            check(program, [result(*more)], more, others)
    assert used or count < 50, "every change was refused: names and times, which are free, are changed by some"


def test_a_choice_that_is_not_of_its_sizes_is_bad(records: dict[str, Record]) -> None:
    for sizes in ([{"m": 3, "n": 6}], [{"m": 3}], []):
        found = verified(changed(records["choice"], lambda p, s=sizes: p.update(sizes=s)))  # type: ignore[misc]
        assert found.bad, sizes


def test_a_record_under_another_key_is_bad(records: dict[str, Record]) -> None:
    found = verified(replace(records["graphs"], key=sha256("another")))
    assert found.bad and "its key is not that of its program" in found.why


def test_a_damaged_record_is_bad_and_is_not_described(records: dict[str, Record]) -> None:
    damaged = replace(records["graphs"], payload=records["graphs"].payload[:-1])
    assert verified(damaged).bad
    with pytest.raises(FormatError, match="checksum"):
        list(described(damaged))


OTHERS: dict[str, tuple[Callable[[dict[str, Any]], object], str]] = {
    "another release": (lambda p: p.update(form=999), "schema 999"),
    "an early release": (lambda p: [p.pop("program"), p.pop("form")], "did not keep programs"),
}


@pytest.mark.parametrize("name", OTHERS)
def test_what_cannot_be_told_is_neither_verified_nor_bad(records: dict[str, Record], name: str) -> None:
    change, why = OTHERS[name]
    found = verified(changed(records["choice"], change))
    assert not found.bad and why in found.why and str(found).startswith("not verified: ")


def test_a_target_that_is_not_known_here_is_neither(records: dict[str, Record]) -> None:
    found = verified(replace(records["graphs"], target="someone's"))
    assert not found.bad and "someone's" in found.why
