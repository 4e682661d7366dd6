"""Processes that are forked from one that has imported what they need are as those that Python starts."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest

from tests import forks


def test_arguments_input_output_and_status() -> None:
    with forks.start("import sys\nprint(sys.argv, input())\nsys.exit(3)", "a", "b") as process:
        process.stdin.write("hello\n")
        assert process.communicate() == ("['-c', 'a', 'b'] hello\n", "")
    assert process.returncode == process.poll() == 3


def test_an_error_is_told() -> None:
    done = forks.run("def f():\n    raise KeyError('x')\nf()")
    assert done.returncode == 1 and done.stderr.rstrip().endswith("KeyError: 'x'")


def test_a_file_runs_in_its_folder_with_its_environment(tmp_path: Path) -> None:
    (tmp_path / "beside.py").write_text("NAME = __name__")
    (tmp_path / "page.py").write_text("import os, beside\nprint(__name__, beside.NAME, os.getcwd(), *os.environ)")
    done = forks.run(tmp_path / "page.py", cwd=tmp_path, env={"ONLY": "1"})
    assert done.stdout == f"__main__ beside {tmp_path} ONLY\n", done.stderr


def test_one_that_does_not_end_is_killed_with_its_group() -> None:
    code = "import os, signal\nprint(os.getpid() == os.getpgid(0), flush=True)\nsignal.pause()"
    with forks.start(code, group=True) as process:
        assert process.stdout.readline() == "True\n"
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.01)
        os.killpg(process.pid, signal.SIGTERM)
        assert process.wait() == -signal.SIGTERM
