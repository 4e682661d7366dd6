"""The slow machine of `make test-slow-machine`: what runs there, and where there can be none."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from benchmarks import slow_machine

MEANS = ("by_systemd", "by_group", "by_cpulimit")


def only(monkeypatch: pytest.MonkeyPatch, name: str | None) -> None:
    """All means but that one are missing; that one limits nothing."""

    @contextmanager
    def missing(_: Sequence[str]) -> Iterator[None]:
        yield None

    @contextmanager
    def unlimited(command: Sequence[str]) -> Iterator[list[str]]:
        yield list(command)

    for means in MEANS:
        monkeypatch.setattr(slow_machine, means, unlimited if means == name else missing)


@pytest.mark.parametrize("name", MEANS)
def test_the_exit_status_is_the_commands(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    only(monkeypatch, name)
    assert slow_machine.run(["sh", "-c", "exit 3"]) == 3


def test_without_means_nothing_runs(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    only(monkeypatch, None)
    assert slow_machine.run(["touch", str(tmp_path / "ran")]) == 2
    assert "install cpulimit" in capfd.readouterr().err
    assert not list(tmp_path.iterdir())


def test_a_group_is_there_while_the_command_runs() -> None:
    with slow_machine.by_group(["cat", "/proc/self/cgroup"]) as limited:
        if limited is None:
            pytest.skip("control groups cannot be made here")
        shown = subprocess.run(limited, capture_output=True, text=True, check=True).stdout
    (name,) = set(re.findall(r"/(mirage-slow-machine-\d+)$", shown, re.MULTILINE))
    assert not list(Path("/sys/fs/cgroup").glob(f"**/{name}"))
