"""Saved executables with edited numbers, names and operators: refused or right, and never a crash or a hang."""

from __future__ import annotations

import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mirage as mi
from benchmarks.graphs.programs import SMALL
from mirage.errors import FormatError, MirageError, VerificationError
from tests.api.archives import members, saved_with, write
from tests.api.edits import Case, Trials
from tests.sampled import thinned

#: fused kernels, loops, library calls, branches and loops of the machine, planned memory and memory that grows
NAMES = ("llama_decode", "bert_encoder", "select_rows", "two_functions", "unique_tokens", "refinement")


@pytest.fixture(scope="module")
def cases(tmp_path_factory: pytest.TempPathFactory) -> list[Case]:
    folder, rng = tmp_path_factory.mktemp("saved"), np.random.default_rng(0)
    found = []
    for name in (*NAMES, "superoptimized"):
        searched = name == "superoptimized"
        p = SMALL["bert_encoder" if searched else name]
        executable = mi.compile(
            p.trace(), bounds=p.bounds, constants=p.constants, budget=2.0, without=() if searched else ("superoptimize",),
            cache=False,
        )  # fmt: skip
        executable.save(folder / f"{name}.mirage")
        calls = []
        for _ in range(2):
            arguments = p.arguments(p.random_sizes(rng), rng)
            results = executable(*[a.copy() if isinstance(a, np.ndarray) else a for a in arguments])
            calls.append((arguments, results if isinstance(results, tuple) else (results,)))
        found.append(Case(folder / f"{name}.mirage", calls))
    return found


@pytest.fixture(scope="module")
def trials(cases: list[Case], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trials]:
    found = Trials(cases, tmp_path_factory.mktemp("edited"))
    yield found
    found.stop()


def check(trials: Trials, seed: int, folder: Path) -> None:
    edit = trials.edit(seed)
    # who makes the digest anew may write another program, but no kernel that is not what it stands for
    allowed = ("refused", "right", "other") if edit.part == "program" else ("refused", "right")
    assert edit.found in allowed, edit.what
    with zipfile.ZipFile(edit.file) as archive, zipfile.ZipFile(folder / "b.mirage", "w") as changed:
        for name in archive.namelist():
            changed.writestr(name, edit.code if name == "executable.json" else archive.read(name))
    with pytest.raises(MirageError, match=r"b\.mirage"):
        mi.load_executable(folder / "b.mirage")


def test_unedited_files_are_right(trials: Trials) -> None:
    for k, case in enumerate(trials.cases):
        trials.file.write_bytes(case.file.read_bytes())
        assert trials.outcome(k) == "right"


def test_the_death_of_a_process_is_found(trials: Trials) -> None:
    trials.process.kill()
    assert trials.outcome(0) == "crash"
    test_unedited_files_are_right(trials)


@pytest.mark.parametrize("seeds", thinned((range(k, k + 20) for k in range(0, 60, 20)), 3), ids=str)
def test_edits_are_refused_or_right(trials: Trials, seeds: range, tmp_path: Path) -> None:
    for seed in seeds:
        check(trials, seed, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("seeds", [range(k, k + 100) for k in range(60, 2060, 100)], ids=str)
def test_many_edits_are_refused_or_right(trials: Trials, seeds: range, tmp_path: Path) -> None:
    for seed in seeds:
        check(trials, seed, tmp_path)


@pytest.fixture(scope="module")
def loops() -> mi.Executable:
    def argmaxed(x: Any) -> Any:
        return mi.argmax(mi.exp(x), 1)

    return mi.compile(argmaxed, {"x": mi.tensor("n", 8)}, without=("superoptimize",), cache=False)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("x[i0, r0]", "x[i0 + 100, r0]"),
        ("x[i0, r0]", "x[i0 - 4, r0]"),
        ("x[i0, r0]", "x[i0 + 1000000000000, r0]"),
        ("x[i0, r0]", "x[r0, i0]"),
        ("range(8)", "range(9223372036854775807)"),
        ("range(8)", "range(7)"),
        ("@argmax", "@argmin"),
        ("yield exp(", "yield sqrt("),
        ("float32[n, 8] = exp(", "float32[n, 8] = sqrt("),
        ("float32[n, 8] = exp(", "float32[n, 8] = nothing("),
    ],
)
def test_loops_that_are_not_their_operators_are_refused(loops: mi.Executable, old: str, new: str, tmp_path: Path) -> None:
    with pytest.raises(VerificationError, match=r"b\.mirage: kernel \w+: .*operators.*compile the program again"):
        mi.load_executable(saved_with(loops, old, new, tmp_path))


def test_files_with_another_digest_are_refused(loops: mi.Executable, tmp_path: Path) -> None:
    loops.save(tmp_path / "a.mirage")
    contents = members(tmp_path / "a.mirage")
    write(tmp_path / "b.mirage", contents)
    mi.load_executable(tmp_path / "b.mirage")
    with zipfile.ZipFile(tmp_path / "c.mirage", "w") as archive:
        for name, content in (*contents.items(), ("digest", b"0" * 64)):
            archive.writestr(name, content)
    with pytest.raises(FormatError, match=r"c\.mirage: altered, or damaged.*compile the program again"):
        mi.load_executable(tmp_path / "c.mirage")


def test_altered_constants_are_refused(tmp_path: Path) -> None:
    w = np.arange(200, dtype=np.float32).reshape(8, 25)

    def times(x: Any) -> Any:
        return x @ w

    mi.compile(times, {"x": mi.tensor("n", 8)}, without=("superoptimize",), cache=False).save(tmp_path / "a.mirage")
    with zipfile.ZipFile(tmp_path / "a.mirage") as archive, zipfile.ZipFile(tmp_path / "b.mirage", "w") as altered:
        assert "constants/0" in archive.namelist()
        for name in archive.namelist():
            content = archive.read(name)
            altered.writestr(name, content[::-1] if name == "constants/0" else content)
    with pytest.raises(FormatError, match="altered, or damaged"):
        mi.load_executable(tmp_path / "b.mirage")
