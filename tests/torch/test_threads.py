"""Kernels and torch's operators on the same threads."""

from __future__ import annotations

import ctypes.util
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from mirage.kernels.cpu.launch.pool import openmp_address  # noqa: E402

# in a process of its own, as what runs kernels stays for its life
SOURCE = """
import os
import torch
from mirage.kernels.cpu.launch.pool import library
from mirage.torch.threads import on_torch_threads, torch_threads

def threads():
    return len(os.listdir("/proc/self/task"))

torch.set_num_threads(2)
assert torch_threads()[1] is not None
torch.ones(1 << 22) + 1
before = threads()
with on_torch_threads():
    for _ in range(3):
        library().mi_pool_wake(2)
assert threads() == before, (before, threads())

child = os.fork()
if not child:
    # the runtime's threads are not here
    with on_torch_threads():
        library().mi_pool_wake(2)
    os._exit(0 if threads() == 2 else 1)
assert os.waitpid(child, 0)[1] == 0
with on_torch_threads(), on_torch_threads():
    library().mi_pool_wake(2)
# other libraries may end theirs at a fork
now = threads()
assert now <= before, (before, now)
# elsewhere kernels have threads of their own
library().mi_pool_wake(2)
assert threads() == now + 1
"""


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="counts threads as Linux tells them")
@pytest.mark.skipif(not torch.backends.openmp.is_available(), reason="this build of torch has threads of its own")
def test_kernels_start_no_threads_beside_those_of_torch() -> None:
    done = subprocess.run([sys.executable, "-c", SOURCE], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_library_without_openmp(tmp_path: Path) -> None:
    assert openmp_address(tmp_path / "missing.so") is None
    if name := ctypes.util.find_library("m"):
        assert openmp_address(Path(name)) is None
