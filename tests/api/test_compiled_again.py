"""A program that is compiled again runs the forms that were measured to be the fastest, without another race."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import mirage as mi
from mirage import compilation, subprograms
from mirage.cache import CorruptRecordWarning, ResultStore
from mirage.cache.records import Record, canonical_json, sha256
from mirage.compiler import build, choice
from mirage.compiler.kernels import cpu_maker
from mirage.compiler.kernels.fused import fused_kernel
from mirage.ir.codec import encode
from mirage.results.forms import StoredForms
from mirage.results.stored import described, stored_in, verified
from tests.api.small import BUDGET, PARTS, Judge, check_parts, limit_tuning, parts, races_by


class Compiler:
    """Compiles with a store, and counts: races in which `judge` says who wins, searches that were recalled or not, forms."""

    def __init__(self, folder: Path, put: Callable[[object, str, object], None]) -> None:
        limit_tuning(put)
        self.judge = Judge("full", "found")
        self.recalled: list[bool] = []
        self.unknown: list[str] = []
        self.forms = self.programs = 0
        self.store = ResultStore(f"sqlite:///{folder}/store.sqlite")
        races_by(self.judge, put)
        put(subprograms, "superoptimize", self._search)
        put(subprograms, "form_of", self._form)
        put(compilation, "built", self._built)

    def _search(self, *args: Any, **options: Any) -> Any:
        result = mi.superoptimize(*args, **options)
        self.recalled.append(result.cache_hit)
        return result

    def _form(self, *args: Any) -> Any:
        self.forms += 1
        return choice.form_of(*args)

    def _built(self, *args: Any, **options: Any) -> Any:
        self.programs += 1
        return build.built(*args, **options)

    def __call__(self, fn: Any = parts, **options: Any) -> mi.Executable:
        self.judge.asked.clear()
        self.recalled.clear()
        self.unknown.clear()
        self.forms = self.programs = 0
        executable = mi.compile(fn, PARTS, cache=self.store, **{"budget": 2 * BUDGET, **options})
        check_parts(executable)
        return executable

    @property
    def raced(self) -> bool:
        """Whether the last compilation made anything but what runs."""
        assert bool(self.judge.asked) == bool(self.forms) == (self.programs > 1)
        return bool(self.judge.asked)

    def record(self) -> Record:
        """The record of the whole program."""
        (found,) = self.records("whole")
        return found

    def records(self, field: str) -> list[Record]:
        """The records with such a field."""
        return [r for r in self.store.records() if field in json.loads(r.payload)]


@pytest.fixture
def compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Compiler:
    """One with an empty store."""
    return Compiler(tmp_path, monkeypatch.setattr)


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a store in which the program is, with what searches found."""
    folder = tmp_path_factory.mktemp("kept")
    with pytest.MonkeyPatch.context() as patch:
        Compiler(folder, patch.setattr)()
    return folder


@pytest.fixture
def warm(kept: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Compiler:
    """One with such a store, which notes the subprograms whose forms are not known and leaves them as they are."""
    shutil.copytree(kept, tmp_path, dirs_exist_ok=True)
    found = Compiler(tmp_path, monkeypatch.setattr)

    def choose(self: subprograms.Searches, program: Any, *_: Any) -> subprograms.Choice:
        found.unknown.append(program.name)
        self.searched = True
        left = subprograms.Choice("plain", None, "not searched")
        self.chosen[program.name] = self.found[program.name] = left
        return left

    monkeypatch.setattr(subprograms.Searches, "_choose", choose)
    return found


@pytest.mark.parametrize(
    ("wanted", "searches"), [(("full", "found"), 2), (("full", "fused"), 0), (("full", "plain"), 0), (("plain", "found"), 0)]
)
def test_what_was_chosen_once_is_made_alone(compiler: Compiler, wanted: tuple[str, ...], searches: int) -> None:
    compiler.judge.wanted = wanted
    first = compiler()
    assert compiler.raced and compiler.recalled == [False, False]
    again = compiler()
    assert not compiler.raced and compiler.recalled == [True] * searches
    assert [k.kind for k in again.kernels.values()] == [k.kind for k in first.kernels.values()]
    assert sorted(again.facts.fallbacks) == sorted(first.facts.fallbacks)
    # no more with less time
    compiler(budget=BUDGET)
    assert not compiler.raced


def test_the_whole_of_what_searches_found_is_made_again(compiler: Compiler) -> None:
    compiler.judge.wanted = ("fused",)
    races = compiler.judge

    def wins(forms: dict[str, mi.Executable], *rest: Any, **more: Any) -> str:
        name = races(forms, *rest, **more)
        return "found" if "full" in forms else name

    with pytest.MonkeyPatch.context() as patch:
        races_by(wins, patch.setattr)
        compiler()
    assert [s.form for s in _forms(compiler.record())] == ["found", "found"]
    compiler()
    assert not compiler.raced and compiler.recalled == [True, True]


def _forms(record: Record) -> Any:
    found = stored_in(record)
    assert isinstance(found, StoredForms)
    return found.subprograms


@pytest.mark.parametrize(
    "options",
    [
        {"budget": 4 * BUDGET}, {"sizes": {"n": 4}}, {"bounds": {"n": 64}}, {"constants": ("w",)}, {"without": ("plan",)},
    ],
)  # fmt: skip
def test_what_may_change_the_choice_is_compared_again(warm: Compiler, options: dict[str, Any]) -> None:
    warm(**options)
    assert len(warm.unknown) == 2


def test_another_program_is_not_known(warm: Compiler) -> None:
    warm(lambda x, w, v: mi.softmax(mi.sort(mi.maximum(mi.relu(x @ w), 0), axis=1) @ v))
    assert len(warm.unknown) == 2


def test_where_a_search_has_found_more_all_is_compared_again(warm: Compiler) -> None:
    (first, *_) = _forms(warm.record())
    record = warm.store.record(first.tuned)
    assert record is not None and record.payload_sha256 == first.checksum
    payload = json.loads(record.payload)
    more = {**payload, "spent": payload["spent"] + 1}
    about: dict[str, Any] = {"program": "p", "target": "cpu", "dtype": "float32", "best_us": 1.0}
    warm.store.put(record.key, more, replaces=record.payload_sha256, **about)
    warm()
    assert len(warm.unknown) == 2


def test_what_a_search_found_may_be_gone(warm: Compiler) -> None:
    assert warm.store.discard(_forms(warm.record())[1].tuned)
    warm()
    assert len(warm.unknown) == 2


def test_what_was_found_may_be_damaged(warm: Compiler) -> None:
    """Its checksum is the right one: that it cannot be used shows when it is recalled."""
    # in the order in which they are recalled
    first, second = sorted(_forms(warm.record()), key=lambda form: form.name)
    record = warm.store.record(second.tuned)
    assert record is not None
    wrong = canonical_json({**json.loads(record.payload), "graphs": []}, "test")
    warm.store.add([replace(record, payload=wrong, payload_sha256=sha256(wrong))], [record.payload_sha256])
    known = replace(second, checksum=sha256(wrong))
    forms = stored_in(warm.record())
    assert isinstance(forms, StoredForms)
    changed(warm, lambda payload: {**payload, "subprograms": [encode(first), encode(known)]})
    with pytest.warns(CorruptRecordWarning):
        warm()
    assert warm.unknown == [second.name]


def changed(
    compiler: Compiler, change: Callable[[dict[str, Any]], dict[str, Any]], record: Record | None = None
) -> None:
    """Change a record, by default that of the whole program, and its checksum, as a forger does."""
    record = record or compiler.record()
    text = canonical_json(change(json.loads(record.payload)), "test")
    forged = replace(record, payload=text, payload_sha256=sha256(text))
    assert compiler.store.add([forged], [record.payload_sha256]) == 1


def damaged(payload: dict[str, Any]) -> dict[str, Any]:
    return {**payload, "subprograms": "all"}


def of_another_program(payload: dict[str, Any]) -> dict[str, Any]:
    return {**payload, "subprograms": [{**s, "name": "f"} for s in payload["subprograms"]]}


def of_no_form(payload: dict[str, Any]) -> dict[str, Any]:
    return {**payload, "subprograms": [{**s, "form": "os.system"} for s in payload["subprograms"]]}


@pytest.mark.parametrize("change", [damaged, of_another_program, of_no_form])
def test_a_damaged_record_is_ignored(warm: Compiler, change: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    assert not verified(warm.record()).bad
    changed(warm, change)
    with pytest.warns(CorruptRecordWarning) if change is damaged else nullcontext():
        warm()
    assert len(warm.unknown) == 2
    # the right one has taken its place
    warm()
    assert not warm.unknown


def test_what_was_not_searched_is_not_kept(compiler: Compiler, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subprograms, "MIN_BUDGET", float("inf"))
    compiler()
    assert not list(compiler.store.records())


def test_where_there_was_time_for_one_search_the_choice_is_kept(
    compiler: Compiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As much of a budget gives no more: the next compilation is quick, and a larger budget searches the rest."""
    search = subprograms.Searches._search

    def some(self: subprograms.Searches, program: Any, *args: Any) -> Any:
        return search(self, program, *args) if program.name == "parts_lax_0" else (None, "for which no time was left")

    with monkeypatch.context() as patch:
        patch.setattr(subprograms.Searches, "_search", some)
        compiler()
        assert compiler.recalled == [False]
    again = compiler()
    assert not compiler.raced and compiler.recalled == [True]
    assert "without a search, for which no time was left" in again.explain()
    compiler(budget=4 * BUDGET)
    assert compiler.raced and len(compiler.recalled) == 2


def test_a_record_says_which_forms_run(warm: Compiler) -> None:
    record = warm.record()
    text = "\n".join(described(record))
    assert "the form of parts that was the fastest: full" in text and text.count(": found, ") == 2
    assert str(verified(record)) == "not verified: it has no graphs: it says which forms of a compiled program were the fastest"


@pytest.fixture(scope="module")
def left(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a store in which the program is, left to libraries and fusion."""
    folder = tmp_path_factory.mktemp("left")
    with pytest.MonkeyPatch.context() as patch:
        compiler = Compiler(folder, patch.setattr)
        compiler.judge.wanted = ("plain", "fused")
        compiler()
    return folder


@pytest.fixture
def again(left: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Compiler, list[str]]:
    """One with such a store, and the names of programs of which it has made kernels without a search."""
    shutil.copytree(left, tmp_path, dirs_exist_ok=True)
    made: list[str] = []

    def fused(program: Any, *args: Any, **options: Any) -> Any:
        made.append(program.name)
        return fused_kernel(program, *args, **options)

    monkeypatch.setattr(cpu_maker, "fused_kernel", fused)
    return Compiler(tmp_path, monkeypatch.setattr), made


def test_kernels_that_were_made_without_a_search_are_kept(again: tuple[Compiler, list[str]]) -> None:
    compiler, made = again
    kept = compiler.records("kernel")
    assert kept and not any(verified(r).bad for r in kept)
    assert "made without a search" in "\n".join(described(kept[0]))
    compiler()
    assert not compiler.raced and not made
    # what is compared again is made as the cost model has it by now
    compiler(budget=4 * BUDGET)
    assert compiler.raced and made


def without_graphs(payload: dict[str, Any]) -> dict[str, Any]:
    return {**payload, "kernel": {**payload["kernel"], "graphs": []}}


def wrong_graph(payload: dict[str, Any]) -> dict[str, Any]:
    text = json.dumps(payload["kernel"]["graphs"])
    assert '"exp"' in text
    return {**payload, "kernel": {**payload["kernel"], "graphs": json.loads(text.replace('"exp"', '"sin"'))}}


def wrong_program(payload: dict[str, Any]) -> dict[str, Any]:
    text = json.dumps(payload["kernel"])
    return {**payload, "kernel": json.loads(text.replace('"exp"', '"sin"'))}


@pytest.mark.parametrize("change", [without_graphs, wrong_graph, wrong_program])
def test_a_kept_kernel_is_verified(
    again: tuple[Compiler, list[str]], change: Callable[[dict[str, Any]], dict[str, Any]]
) -> None:
    compiler, made = again
    record = next(r for r in compiler.records("kernel") if '"exp"' in r.payload)
    changed(compiler, change, record)
    with pytest.warns(CorruptRecordWarning):
        compiler()
    assert len(made) == 1 and not compiler.raced
    # the right one has taken its place
    made.clear()
    compiler()
    assert not made
