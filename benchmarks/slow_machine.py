"""Runs a command as on a slow and busy machine: `python -m benchmarks.slow_machine COMMAND...`.

The command and all that it starts have a quarter of one processor together, and two busy loops run beside them. The limit is set
by systemd, by a control group (version 2 or 1) or by cpulimit, whichever is there first.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

#: of one processor
SHARE = 0.25
LOOPS = 2
#: microseconds in which a group gets its share
PERIOD = 100_000

HELP = f"""\
nothing can limit a command to {SHARE:.0%} of a processor: systemd-run does not work here, a control group with a cpu controller
cannot be made, and cpulimit is not installed. Run it as root, or install cpulimit."""


@contextmanager
def by_systemd(command: Sequence[str]) -> Iterator[list[str] | None]:
    """The command in a scope of systemd, None where that does not run; as the other means, until the block's end."""
    user = [] if os.geteuid() == 0 else ["--user"]
    scope = ["systemd-run", *user, "--scope", "--quiet", f"--property=CPUQuota={SHARE:.0%}", "--"]
    found = shutil.which(scope[0]) is not None
    works = found and subprocess.run([*scope, "true"], capture_output=True, check=False).returncode == 0
    yield [*scope, *command] if works else None


@contextmanager
def by_group(command: Sequence[str]) -> Iterator[list[str] | None]:
    """The command in a control group of its own, at the root of the hierarchy."""
    with ExitStack() as stack:
        group = next((g for root in _hierarchies() if (g := stack.enter_context(_group(root)))), None)
        enter = 'echo $$ > "$0" && exec "$@"'
        yield ["sh", "-c", enter, str(group / "cgroup.procs"), *command] if group else None


def _hierarchies() -> Iterator[Path]:
    for line in Path("/proc/mounts").read_text(encoding="utf-8").splitlines():
        _, folder, kind, options, *_ = line.split()
        if kind == "cgroup2" or (kind == "cgroup" and "cpu" in options.split(",")):
            yield Path(folder)


@contextmanager
def _group(root: Path) -> Iterator[Path | None]:
    """A new group with the limit, None where this hierarchy cannot have one."""
    group = root / f"mirage-slow-machine-{os.getpid()}"
    try:
        # one of before may not have gone yet
        group.mkdir(exist_ok=True)
        _limit(group)
        made = True
    except OSError:
        made = False
    try:
        yield group if made else None
    finally:
        with suppress(OSError):
            group.rmdir()


def _limit(group: Path) -> None:
    """Raises OSError where the group has no cpu controller."""
    quota = round(SHARE * PERIOD)
    values = {"cpu.max": f"{quota} {PERIOD}"}
    if not (group / "cpu.max").exists():
        values = {"cpu.cfs_period_us": f"{PERIOD}", "cpu.cfs_quota_us": f"{quota}"}  # of version 1
    for name, value in values.items():
        # it is there, or cannot be made
        with (group / name).open("r+") as file:
            file.write(value)


@contextmanager
def by_cpulimit(command: Sequence[str]) -> Iterator[list[str] | None]:
    """The command under cpulimit, which stops and continues processes."""
    limit = ["cpulimit", f"--limit={100 * SHARE:.0f}", "--include-children", "--"]
    yield [*limit, *command] if shutil.which(limit[0]) else None


@contextmanager
def busy_loops() -> Iterator[None]:
    loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(LOOPS)]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


@contextmanager
def limited(command: Sequence[str]) -> Iterator[list[str] | None]:
    """The command with its share of a processor by the first means that there is, None where there is none."""
    with ExitStack() as stack:
        found = (stack.enter_context(means(command)) for means in (by_systemd, by_group, by_cpulimit))
        yield next((f for f in found if f is not None), None)


def run(command: Sequence[str]) -> int:
    """The command's exit status on a slow machine; 2, with what to do, where nothing can limit it."""
    with limited(command) as slow:
        if slow is None:
            print(HELP, file=sys.stderr)
            return 2
        print(f"{SHARE:.0%} of a processor, beside {LOOPS} busy loops", flush=True)
        with busy_loops():
            return subprocess.run(slow, check=False).returncode


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]))
