"""Files that are no executable, or damaged: an error that names the file, whatever is in it."""

from __future__ import annotations

import json
import random
import zipfile
from pathlib import Path
from typing import Any

import pytest

import mirage as mi
from mirage.errors import FormatError, InputError, MirageError

HEAD = {"format": "mirage executable", "schema": 2}


def archive(path: Path, text: str, name: str = "executable.json") -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as z:
        z.writestr(name, text)
    return path


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "[" * 200_000,
        json.dumps(HEAD)[:-1] + ', "program": ' + "[" * 100_000 + "]" * 100_000 + "}",
        json.dumps({**HEAD, "schema": 1}),
        json.dumps({**HEAD, "program": None}),
        json.dumps({**HEAD, "program": {"functions": {}}}),
    ],
    ids=["nothing", "a list", "open brackets", "deep", "another schema", "no program", "no function"],
)
def test_what_is_no_executable_is_refused(text: str, tmp_path: Path) -> None:
    path = archive(tmp_path / "x.mirage", text)
    with pytest.raises(FormatError, match=r"x\.mirage: .*(compile|pass)"):
        mi.load_executable(path)


def test_other_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match=r"executable\.json"):
        mi.load_executable(archive(tmp_path / "other.zip", "{}", "other.json"))
    (tmp_path / "text").write_text("no archive")
    with pytest.raises(FormatError, match="damaged"):
        mi.load_executable(tmp_path / "text")
    for missing in (tmp_path / "missing", tmp_path):
        with pytest.raises(InputError, match=r"cannot be read"):
            mi.load_executable(missing)


def test_flipped_bytes_are_refused_or_change_nothing(tmp_path: Path) -> None:
    def f(x: Any) -> Any:
        return mi.sort(x, axis=0)

    path = tmp_path / "x.mirage"
    mi.compile(f, {"x": mi.tensor("n", 4)}, without=["superoptimize"], cache=False).save(path)
    with zipfile.ZipFile(path) as z:
        contents = {name: z.read(name) for name in z.namelist()}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as z:
        # deflated, as other tools may write it
        for name, content in contents.items():
            z.writestr(name, content)
    mi.load_executable(path)
    good = path.read_bytes()
    rng = random.Random(0)
    refused = 0
    for _ in range(300):
        damaged = bytearray(good)
        for _ in range(rng.choice((1, 1, 4))):
            damaged[rng.randrange(len(good))] = rng.randrange(256)
        path.write_bytes(damaged)
        try:
            mi.load_executable(path)
        except MirageError as e:
            refused += str(path) in str(e)
    assert refused > 200
