"""Compiled models in files: they load in another process, and damaged or altered files are refused."""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import mirage.torch  # noqa: E402
from mirage.errors import FormatError, GuardError, InputError, MirageError  # noqa: E402
from mirage.runtime.archive import digest  # noqa: E402
from mirage.torch.trees import spec_from_json, spec_to_json  # noqa: E402
from tests.sampled import crossed  # noqa: E402

FAST: dict[str, Any] = {"without": ("superoptimize",), "background": False, "cache": False, "strict": True}


class Model(torch.nn.Module):  # type: ignore[misc, name-defined]
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.inner = torch.nn.Linear(4, 4)
        self.tied = self.inner
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))

    def forward(self, x: Any, pair: Any, flag: bool = False) -> Any:
        self.steps += 1
        y = self.inner(x) + self.tied(pair[0]) * (2 if flag else 1)
        return {"y": y, "rows": x.shape[0], "steps": self.steps.clone(), "none": None, "pair": (x, [y.sum()])}


def arguments(n: int) -> tuple[Any, tuple[Any, None]]:
    generator = torch.Generator().manual_seed(n)
    return torch.randn(n, 4, generator=generator), (torch.randn(n, 4, generator=generator), None)


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    with torch.no_grad():
        run = mirage.torch.compile(Model(), **FAST)
        run(*arguments(3))
        run(*arguments(5), flag=True)
        path = tmp_path_factory.mktemp("saved") / "model.mirage"
        run.save(path)
    return path


def expected(n: int, flag: bool = False) -> Any:
    with torch.no_grad():
        return Model()(*arguments(n), flag=flag)


@pytest.mark.parametrize(("n", "flag"), crossed([2, 1, 0, 7], [False, True]))
def test_what_is_loaded_gives_the_same(file: Path, n: int, flag: bool) -> None:
    found = mirage.torch.load(file)(*arguments(n), **({"flag": True} if flag else {}))
    wanted = expected(n, flag)
    # the model was called before it was saved
    assert int(found.pop("steps")) > int(wanted.pop("steps"))
    assert found["rows"] == n and found["none"] is None and type(found["pair"]) is tuple
    torch.testing.assert_close(found["y"], wanted["y"])
    torch.testing.assert_close(found["pair"][1][0], wanted["pair"][1][0])


def test_state_goes_on_where_it_was_saved(file: Path) -> None:
    run = mirage.torch.load(file)
    first = int(run(*arguments(2))["steps"])
    assert int(run(*arguments(2), flag=True)["steps"]) == first + 1


def test_it_loads_in_another_process(file: Path, tmp_path: Path) -> None:
    code = (
        "import sys, torch, mirage.torch\n"
        "run = mirage.torch.load(sys.argv[1])\n"
        "g = torch.Generator().manual_seed(6)\n"
        "x, y = torch.randn(6, 4, generator=g), torch.randn(6, 4, generator=g)\n"
        "torch.save(run(x, (y, None))['y'], sys.argv[2])\n"
    )
    subprocess.run([sys.executable, "-c", code, str(file), str(tmp_path / "y.pt")], check=True)
    torch.testing.assert_close(torch.load(tmp_path / "y.pt", weights_only=True), expected(6)["y"])


def test_weights_are_in_the_file_once(file: Path) -> None:
    with zipfile.ZipFile(file) as archive:
        head = json.loads(archive.read("model.json"))
    assert sorted((t["dtype"], t["shape"]) for t in head["tensors"]) == [("float32", [4]), ("float32", [4, 4]), ("int64", [])]


def test_what_was_not_saved_is_refused(file: Path) -> None:
    run = mirage.torch.load(file)
    x, pair = arguments(3)
    with pytest.raises(InputError, match=r"flag.*it takes\n.*args\[0\]: float32 of rank 2"):
        run(x, pair, flag=None)
    with pytest.raises(InputError, match="float32 of rank 2"):
        run(x.double(), pair)
    with pytest.raises(GuardError, match=r"no program takes x \[3, 5\]"):
        run(torch.randn(3, 5), pair)
    with pytest.raises(InputError, match="gives no gradients"):
        run(x.requires_grad_(), pair)
    with pytest.raises(InputError, match="neither a tensor"):
        run(object(), pair)


def test_nothing_compiled_is_nothing_to_save(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no program to save"):
        mirage.torch.compile(Model(), **FAST).save(tmp_path / "model.mirage")


def edited(file: Path, to: Path, change: Callable[[dict[str, Any]], None]) -> Path:
    """The file with another head, and a digest that fits it."""
    with zipfile.ZipFile(file) as archive:
        members = {name: archive.read(name) for name in archive.namelist() if name != "digest"}
    head = json.loads(members["model.json"])
    change(head)
    members["model.json"] = json.dumps(head).encode()
    with zipfile.ZipFile(to, "w") as archive:
        for name, content in (*members.items(), ("digest", digest(members).encode())):
            archive.writestr(name, content)
    return to


def _first(head: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = head["programs"][0]
    return found


EDITS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "format": lambda h: h.update(format="model"),
    "schema": lambda h: h.update(schema=99),
    "a type": lambda h: h["tensors"].__setitem__(0, {"dtype": "float64", "shape": [4, 4]}),
    "no type": lambda h: h["tensors"].__setitem__(0, {"dtype": "nn", "shape": [4, 4]}),
    "a shape": lambda h: h["tensors"].__setitem__(0, {"dtype": "float32", "shape": [-4, -4]}),
    "a position": lambda h: _first(h)["layout"]["given"].__setitem__(0, 99),
    "an output": lambda h: _first(h)["outputs"].__setitem__(0, 99),
    "fewer outputs": lambda h: _first(h)["outputs"].pop(),
    "a tree": lambda h: _first(h).update(result={"type": "builtins.dict", "context": "3", "children_spec": []}),
    "a guard": lambda h: _first(h)["guards"].update(conditions=[{"relation": "is", "left": "s0", "right": "s1"}]),
    "a dim": lambda h: _first(h)["guards"].update(shapes=[["__import__('os')"]]),
    "a module": lambda h: _first(h).update(module="import os"),
    "a key": lambda h: _first(h).update(key=[1, [], [{"dtype": "float32"}]]),
    "a tensor's number": lambda h: _first(h)["weights"].__setitem__(0, 99),
}


@pytest.mark.parametrize("what", EDITS)
def test_an_altered_file_is_refused(file: Path, tmp_path: Path, what: str) -> None:
    with pytest.raises(FormatError if what != "a module" else MirageError, match=r"model\.mirage"):
        mirage.torch.load(edited(file, tmp_path / "model.mirage", EDITS[what]))


def test_the_digest_is_checked(file: Path, tmp_path: Path) -> None:
    content = bytearray(file.read_bytes())
    at = content.index(b'"native"')
    content[at + 1] ^= 1
    (tmp_path / "model.mirage").write_bytes(content)
    with pytest.raises(FormatError, match=r"model\.mirage"):
        mirage.torch.load(tmp_path / "model.mirage")


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read"):
        mirage.torch.load(tmp_path / "none")
    (tmp_path / "text").write_text("text")
    with pytest.raises(FormatError, match="not a mirage torch model"):
        mirage.torch.load(tmp_path / "text")


@pytest.mark.parametrize(
    "tree",
    [
        {"type": "collections.defaultdict", "context": "{}", "children_spec": []},
        {"type": "os.system", "context": '["rm"]', "children_spec": [None]},
        {"type": "builtins.dict", "context": '[{"__enum__": true, "fqn": "os:sep", "name": "x"}]', "children_spec": [{}]},
        {"type": None, "context": None, "children_spec": [{"type": None, "context": None, "children_spec": []}]},
        {"type": "builtins.tuple", "context": '["a"]', "children_spec": []},
        3,
    ],
)
def test_trees_that_are_none_are_refused(tree: Any) -> None:
    if isinstance(tree, dict) and tree["type"] == "collections.defaultdict":
        assert spec_from_json(tree).type is dict
    else:
        with pytest.raises(FormatError):
            spec_from_json(tree)


def test_a_class_that_is_not_known_becomes_a_dict() -> None:
    leaf: dict[str, Any] = {"type": None, "context": None, "children_spec": []}
    spec = spec_from_json({"type": "my.Output", "context": '["logits"]', "children_spec": [leaf]})
    assert torch.utils._pytree.tree_unflatten([1], spec) == {"logits": 1}


@pytest.mark.parametrize("value", [(1, [2, {"a": 3}]), [], {"x": (1,)}, torch.return_types.max((1, 2))])
def test_trees_are_what_was_saved(value: Any) -> None:
    _, spec = torch.utils._pytree.tree_flatten(value)
    try:
        saved = json.loads(json.dumps(spec_to_json(spec)))
    except InputError:
        assert not isinstance(value, list | dict) and type(value) is not tuple
    else:
        assert spec_from_json(saved) == spec
