"""What is released: a source distribution and a wheel that work without the repository, under one version."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tarfile
import tomllib
import venv
import zipfile
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def run(*command: str | Path, cwd: Path, **environment: str) -> str:
    """What a command prints on standard output; fails with what it says where it fails. It sees no setting of Python's."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
    done = subprocess.run(
        [str(c) for c in command], cwd=cwd, env=kept | environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{command}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
    return done.stdout


def test_the_version_has_one_source() -> None:
    """The metadata, of which programs ask `importlib.metadata`."""
    assert version("mirage-superoptimizer") == PROJECT["version"]
    for folder in ("mirage", "kernels", "search", "verify", "benchmarks"):
        for path in (ROOT / folder).rglob("*.py"):
            assert "__version__ =" not in path.read_text(encoding="utf-8"), f"{path}: the version is in pyproject.toml"
    assert f"[{PROJECT['version']}]" in (text := (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")) or (
        f"What {PROJECT['version']} will have" in text
    ), "CHANGELOG.md does not speak of this version"


def test_the_changelog_keeps_its_form() -> None:
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert re.findall(r"^## (.*)$", text, re.MULTILINE)[0] == "[Unreleased]"
    kinds = {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}
    assert set(re.findall(r"^### (.*)$", text, re.MULTILINE)) <= kinds


def test_classifiers_name_versions_that_are_allowed() -> None:
    named = re.findall(r"Python :: (3\.\d+)", "\n".join(PROJECT["classifiers"]))
    assert named and f">={named[0]}" == PROJECT["requires-python"]
    assert [int(n.partition(".")[2]) for n in named] == list(range(11, 11 + len(named)))
    assert "Typing :: Typed" in PROJECT["classifiers"] and (ROOT / "mirage" / "py.typed").is_file()


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a source distribution, and of the wheel that was made of it."""
    if find_spec("build") is None:
        pytest.skip("build is not installed; pip install -e '.[release]'")
    folder = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--outdir", folder, cwd=ROOT)
    return folder


@pytest.mark.slow
def test_distributions_hold_what_they_should(built: Path) -> None:
    (wheel,), (source,) = built.glob("*.whl"), built.glob("*.tar.gz")
    names = zipfile.ZipFile(wheel).namelist()
    assert {n.split("/")[0].split("-")[0] for n in names} == {"mirage", "mirage_superoptimizer"}
    for needed in (
        "mirage/py.typed",
        "mirage/__init__.pyi",
        "mirage/kernels/cpu/csrc/pool.c",
        "mirage/search/csrc/extract.c",
    ):
        assert needed in names
    assert any(n.endswith("licenses/LICENSE") for n in names)
    with tarfile.open(source) as archive:
        inside = {n.partition("/")[2] for n in archive.getnames()}
    assert {"setup.py", "pyproject.toml", "README.md", "LICENSE", "kernels/cpu/csrc/pool.c"} <= inside
    if find_spec("twine") is not None:
        run(sys.executable, "-m", "twine", "check", "--strict", wheel, source, cwd=built)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["*.whl", "*.tar.gz"])
def test_it_installs_in_an_empty_environment_and_the_demonstration_runs(kind: str, built: Path, tmp_path: Path) -> None:
    (file,) = built.glob(kind)
    venv.create(tmp_path / "venv", with_pip=True)
    python = tmp_path / "venv" / "bin" / "python"
    empty = subprocess.run([python, "-c", "import mirage"], capture_output=True, text=True, cwd=tmp_path, check=False)
    assert "No module named 'mirage'" in empty.stderr
    reached = subprocess.run([python, "-m", "pip", "download", "-q", "--no-deps", "numpy"], cwd=tmp_path, check=False)
    if reached.returncode:
        pytest.skip("no package index is reached")
    run(python, "-m", "pip", "install", "--quiet", file, cwd=tmp_path)
    place = run(python, "-c", "import mirage; print(mirage.__file__)", cwd=tmp_path)
    assert Path(place.strip()).is_relative_to(tmp_path / "venv")
    command = (python.with_name("mirage"), "demo", "--budget", "3", "--json")
    rows = json.loads(run(*command, cwd=tmp_path, MIRAGE_CACHE_DIR=str(tmp_path / "cache")))
    assert [r["program"] for r in rows] == ["qknorm_attention", "gqa_decode"]
    assert all(r["certificate"]["proof"] == "proved" for r in rows if r["certificate"])
