"""`mirage compile FILE.py:make_model`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

import mirage.torch  # noqa: E402
from tests.api.small import Run  # noqa: E402
from tests.api.test_cli import fails  # noqa: E402

SOURCE = """
import torch

def positional():
    return torch.nn.Linear(4, 4), (torch.ones(3, 4),)

def named():
    return torch.nn.Linear(4, 4), {"input": torch.ones(3, 4)}

def single():
    return torch.nn.functional.relu, torch.ones(3, 4)

def no_pair():
    return torch.nn.Linear(4, 4)

def failing():
    raise OSError("no network")

def branching():
    return lambda x: x if x.sum() > 0 else -x, (torch.ones(3),)

def parametric(size):
    return torch.nn.Linear(size, size), (torch.ones(3, size),)
"""
QUICK = ("--without", "superoptimize")


@pytest.fixture
def run(command: Run, tmp_path: Path) -> Run:
    """The command line in a folder with a file of models."""
    (tmp_path / "user.py").write_text(SOURCE)
    return command


@pytest.mark.parametrize("name", ["positional", "named", "single"])
def test_a_model_is_compiled_and_explained(run: Run, name: str) -> None:
    code, out, err = run("compile", f"user.py:{name}", *QUICK)
    assert (code, err) == (0, "")
    assert "1 program" in out and "float32[" in out


def test_a_model_is_saved(run: Run, tmp_path: Path) -> None:
    code, out, _ = run("compile", "user.py:named", *QUICK, "--json", "--save", "model.mirage", "--bound", "input.0=8")
    assert code == 0
    assert json.loads(out)["programs"][0]["fallback"] == {}
    loaded = mirage.torch.load(tmp_path / "model.mirage")
    assert loaded(input=torch.zeros(5, 4)).shape == (5, 4)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("user.py:no_pair",), "let it give (model, arguments of a call)"),
        (("user.py:failing",), "calling it failed: OSError: no network"),
        (("user.py:branching",), "torch.export fails"),
        (("user.py:parametric",), "is a function with parameters"),
        (("user.py:positional", "--constant", "x"), "--constant has no meaning for a model"),
        (("user.py:positional", "--bound", "n=8"), "write ARGUMENT.DIM=SIZE"),
        (("user.py:positional", "--bound", "x.0=8"), "there is no argument 'x'; the arguments are input"),
        (("user.py:positional", "--bound", "input.0=2"), "dim 0 is 3"),
        (("user.py:positional", "--target", "cuda"), "target='cpu' only"),
    ],
)
def test_what_cannot_be_compiled_is_an_error_of_one_line(run: Run, arguments: tuple[str, ...], message: str) -> None:
    fails(run, "compile", *arguments, *QUICK, message=message)
