"""What every test shares: its own cache folder, deterministic random cases, golden files."""

from __future__ import annotations

import gc
import logging
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis.internal.conjecture import providers

GOLDEN = Path(__file__).parent / "golden"

# The same cases on every run and every machine: a red suite is always the change's fault.
settings.register_profile("full", deadline=None, derandomize=True)
settings.register_profile("suite", settings.get_profile("full"), max_examples=40)
# Hypothesis also draws the constants of every module that happens to be imported, which differs from worker to worker.
vars(providers)["is_local_module_file"] = lambda path: False

# A shell starts what runs in the background with interrupts ignored, which the processes that tests interrupt would inherit.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_configure(config: pytest.Config) -> None:
    """Where slow tests run, those of random cases have more of them."""
    settings.load_profile("suite" if "not slow" in config.getoption("markexpr") else "full")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="write tests/golden/, not compare with it")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Keep the garbage collector from going through the tests and modules, which stay, and through what tests share, again and
    again: that took a twentieth of the time of tests in Python.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.set_threshold(5_000, 20, 20)
        gc.enable()


@pytest.fixture(scope="session", autouse=True)
def cache_dir(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """This run's cache folder, so that no test touches the user's; workers of one run share it, and so all kernels."""
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "mirage-cache"
    folder.mkdir(mode=0o700, exist_ok=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MIRAGE_CACHE_DIR", str(folder))
        patch.delenv("MIRAGE_CACHE_URL", raising=False)
        # a third of the compiler's time; what it makes of kernels with all optimizations is for tests/kernels/cpu/emit and csrc
        patch.setenv("MIRAGE_CFLAGS", "-Og")
        yield folder


@pytest.fixture(scope="session", autouse=True)
def few_points() -> Iterator[int]:
    """Kernels are chosen at two sizes beside the given ones: a fifth of the versions to schedule, verify and compile.

    Gives the number where no test runs.
    """
    from mirage.search import buckets

    number = buckets.MAX_POINTS
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(buckets, "MAX_POINTS", 2)
        yield number


@pytest.fixture
def all_points(few_points: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels are chosen at as many sizes as where no test runs."""
    monkeypatch.setattr("mirage.search.buckets.MAX_POINTS", few_points)


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """`golden(name, text)`: `text` is what tests/golden/<name> holds; `--update-golden` writes it there."""

    def check(name: str, text: str) -> None:
        file = GOLDEN / name
        if request.config.getoption("--update-golden"):
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text, encoding="utf-8")
            return
        assert file.is_file(), f"no {file}: run `pytest --update-golden`, read the new file and commit it"
        assert text == file.read_text(encoding="utf-8"), (
            f"differs from {file}: if the change is meant, run `pytest --update-golden`"
        )

    return check


def pytest_collection_finish() -> None:
    """Keep torch from writing down each guard, symbol and graph with the stack, as it does where the log of these has a handler.

    pytest gives its own handlers to every log that does not propagate.
    """
    trace = logging.getLogger("torch.__trace")
    trace.handlers.clear()
    trace.propagate = True


@pytest.fixture
def rounds_in_c(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The numbers of rounds of the loops that run in C as a whole, as they run, or are made a launch among others."""
    from mirage.kernels.cpu.launch.rounds import SHARED, LaunchedLoop

    found: list[int] = []
    run = LaunchedLoop.run

    def counted(self: LaunchedLoop, count: int, addresses: Sequence[int]) -> int:
        status = run(self, count, addresses)
        if status != SHARED:
            found.append(count)
        return status

    launch = LaunchedLoop.launch

    def prepared(self: LaunchedLoop, count: int, *args: Any) -> Any:
        found.append(count)
        return launch(self, count, *args)

    monkeypatch.setattr(LaunchedLoop, "run", counted)
    monkeypatch.setattr(LaunchedLoop, "launch", prepared)
    return found
