"""What an installation holds: every package of ours, nothing generic, and no file forgotten."""

from __future__ import annotations

import tomllib
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent
SETUP: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
MAPPED = {package: folder for package, folder in SETUP["package-dir"].items() if package != "mirage"}


def folder_of(package: str) -> Path:
    """The folder of the checkout that setuptools takes for `package`: by the longest mapped prefix."""
    parts = package.split(".")
    for count in range(len(parts), 0, -1):
        if mapped := SETUP["package-dir"].get(".".join(parts[:count])):
            return ROOT.joinpath(mapped, *parts[count:])
    return ROOT.joinpath(*parts)


def packages_below(folder: Path, name: str) -> set[str]:
    """Names of the packages in `folder`, itself called `name`; links are followed nowhere."""
    found = {name} if (folder / "__init__.py").is_file() else set()
    for child in folder.iterdir():
        if child.is_dir() and not child.is_symlink():
            found |= packages_below(child, f"{name}.{child.name}")
    return found


def test_every_package_folder_is_listed_once() -> None:
    present = packages_below(ROOT / "mirage", "mirage")
    for package, folder in MAPPED.items():
        present |= packages_below(ROOT / folder, package)
    assert sorted(SETUP["packages"]) == sorted(present)


def test_a_new_folder_would_be_noticed(tmp_path: Path) -> None:
    (tmp_path / "new" / "inner").mkdir(parents=True)
    (tmp_path / "__init__.py").touch()
    (tmp_path / "new" / "inner" / "__init__.py").touch()
    assert packages_below(tmp_path, "mirage.x") == {"mirage.x", "mirage.x.new.inner"}


def test_nothing_installs_outside_the_mirage_package() -> None:
    assert {package.split(".")[0] for package in SETUP["packages"]} == {"mirage"}
    assert "py-modules" not in SETUP


@pytest.mark.parametrize("package", SETUP["packages"])
def test_a_listed_package_is_a_folder_with_an_init_file(package: str) -> None:
    assert (folder_of(package) / "__init__.py").is_file()


@pytest.mark.parametrize(("package", "folder"), MAPPED.items())
def test_a_mapped_folder_is_also_importable_from_the_checkout(package: str, folder: str) -> None:
    """`python -m` and mypy look in the current folder first: the links show them the mapped folders."""
    link = ROOT.joinpath(*package.split("."))
    if not link.is_symlink():
        pytest.skip("this checkout has no symbolic links")
    assert link.resolve() == ROOT / folder


def test_every_file_that_is_not_python_is_package_data() -> None:
    covered = {
        file
        for package, patterns in SETUP["package-data"].items()
        for pattern in patterns
        for file in folder_of(package).glob(pattern)
    }
    present = {
        file
        for package in SETUP["packages"]
        for file in folder_of(package).iterdir()
        if file.is_file() and file.suffix not in {".py", ".pyc"}
    }
    assert present <= covered
    assert ROOT / "mirage" / "py.typed" in covered


def test_the_command_is_the_cli() -> None:
    (command,) = entry_points(group="console_scripts", name="mirage")
    assert command.value == "mirage.cli:main"
    assert callable(command.load())
