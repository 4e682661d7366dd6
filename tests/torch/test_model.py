"""mirage.torch.compile: small models, whose calls are compared with the models' own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import mirage.torch  # noqa: E402
from mirage.errors import BudgetError, DimError, GuardError, InputError, SettingError, UnknownTarget, UnsupportedNode  # noqa: E402
from mirage.logs import configure  # noqa: E402
from mirage.torch.compare import difference  # noqa: E402
from tests.kernels.kernels import in_threads  # noqa: E402

FAST: dict[str, Any] = {"without": ("superoptimize",), "background": False, "cache": False}


def compiled(model: Callable[..., Any], **options: Any) -> Any:
    return mirage.torch.compile(model, **{**FAST, **options})


@pytest.fixture(autouse=True)
def no_gradients() -> Any:
    with torch.no_grad():
        yield


class Layer(torch.nn.Module):  # type: ignore[misc, name-defined]
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.inner = torch.nn.Linear(4, 4)
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x: Any, scale: float = 1.0, both: bool = False) -> Any:
        y = torch.relu(self.inner(x)) * scale
        return {"y": y, "rows": x.shape[0], "none": None} if both else y


class Counting(Layer):
    def forward(self, x: Any) -> Any:  # type: ignore[override]
        self.count += x.sum()
        return x * self.count


def check(run: Any, model: Any, *args: Any, **kwargs: Any) -> None:
    torch.testing.assert_close(run(*args, **kwargs), model(*args, **kwargs))


def test_one_program_serves_all_sizes() -> None:
    model = Layer()
    run = compiled(model, strict=True)
    for n in (5, 2, 1, 0, 9):
        check(run, model, torch.randn(n, 4))
    assert len(run.programs) == 1


def test_a_first_call_of_size_one_is_no_special_case() -> None:
    model = Layer()
    run = compiled(model, strict=True)
    for n in (1, 3, 0, 8):
        check(run, model, torch.randn(n, 4))
    assert len(run.programs) == 1


def test_results_are_of_the_models_kind() -> None:
    run = compiled(Layer(), strict=True)
    found = run(torch.randn(3, 4), both=True)
    assert list(found) == ["y", "rows", "none"] and found["rows"] == 3 and found["none"] is None


def test_other_flags_are_other_programs() -> None:
    model = Layer()
    run = compiled(model, strict=True)
    x = torch.randn(3, 4)
    check(run, model, x)
    check(run, model, x, scale=2.0)
    check(run, model, x, scale=2.0)
    assert len(run.programs) == 2 and len(run.recompiles) == 1


def test_sizes_that_the_first_program_does_not_hold_for_are_another_one() -> None:
    def model(x: Any) -> Any:
        return x + 1 if x.shape[0] > 3 else x * 2

    run = compiled(model, strict=True)
    for n in (5, 2, 3, 4, 7, 1):
        check(run, model, torch.randn(n, 3))
    assert len(run.programs) == 2 and "recompilations" in run.explain()


def test_a_size_of_one_that_differs_is_noticed() -> None:
    def model(x: Any) -> Any:
        return x + 1 if x.shape[0] == 1 else x * 2

    run = compiled(model, strict=True)
    for n in (3, 1, 2, 1):
        check(run, model, torch.randn(n, 3))
    assert len(run.programs) == 2


def test_attention_is_compared_with_the_model_at_sizes_of_one(monkeypatch: pytest.MonkeyPatch) -> None:
    compared = []

    def counted(program: Any, tensors: Any, model: Any) -> Any:
        compared.append(tensors)
        return program(tensors), None

    monkeypatch.setattr("mirage.torch.model.compared", counted)
    run = compiled(torch.nn.functional.scaled_dot_product_attention, strict=True)
    for n in (3, 4, 1, 1):
        run(*(torch.randn(2, n, 8) for _ in range(3)))
    assert len(compared) == 2


def test_random_numbers_are_drawn_as_by_the_model() -> None:
    def model(x: Any) -> Any:
        return x + torch.rand_like(x)

    run = compiled(model, strict=True)
    for n in (3, 4):
        x = torch.zeros(n)
        torch.manual_seed(n)
        found = run(x)
        torch.manual_seed(n)
        torch.testing.assert_close(found, model(x))
    assert len(run.programs) == 1


def test_changed_weights_are_seen() -> None:
    model = Layer()
    run = compiled(model, strict=True)
    x = torch.randn(3, 4)
    check(run, model, x)
    model.inner.weight.add_(1)
    check(run, model, x)
    model.inner.bias = torch.nn.Parameter(torch.ones(4))
    check(run, model, x)
    model.inner.weight.data = torch.zeros(4, 4)
    check(run, model, x)
    assert len(run.programs) == 1 and run.programs[0].rebound == 3


def test_buffers_that_a_model_writes_are_written_once_a_call() -> None:
    run, model = compiled(Counting(), strict=True), Counting()
    for n in (2, 3, 1):
        check(run, model, torch.full((n, 4), 0.5))
        torch.testing.assert_close(run.model.count, model.count)


def test_arguments_that_a_model_writes_are_written() -> None:
    def model(x: Any, cache: Any) -> Any:
        cache.mul_(2)
        return x + cache

    run = compiled(model, strict=True)
    x = torch.randn(3)
    for _ in range(3):
        ours, theirs = torch.ones(3), torch.ones(3)
        torch.testing.assert_close(run(x, ours), model(x, theirs))
        assert ours.tolist() == theirs.tolist() == [2, 2, 2]


def test_an_argument_that_is_written_to_and_returned_is_the_result() -> None:
    def model(x: Any, row: Any, cache: Any) -> Any:
        cache[:, 1] = row
        double = cache * 2
        x.copy_(double)
        return cache, double, x

    run = compiled(model, strict=True)
    for dtype in (torch.float32, torch.bfloat16, torch.int64):
        for turned in (False, True):
            row = torch.arange(3).to(dtype)
            given, expected = (
                tuple(torch.ones(4, 3, dtype=dtype).t() if turned else torch.ones(3, 4, dtype=dtype) for _ in range(2))
                for _ in range(2)
            )
            for _ in range(2):
                versions = [t._version for t in given]
                found, wanted = run(given[0], row, given[1]), model(expected[0], row, expected[1])
                torch.testing.assert_close(found, wanted)
                torch.testing.assert_close(given, expected)
                # what a caller holds, and torch knows that it was written to
                assert found[0] is given[1] and found[2] is given[0] and found[1].data_ptr() != given[0].data_ptr()
                assert all(t._version > v for t, v in zip(given, versions, strict=True))
    assert not run.eager


def test_arguments_may_be_inference_tensors_that_are_written_to() -> None:
    run = compiled(lambda x: x.add_(1), strict=True)
    with torch.inference_mode():
        x = torch.zeros(3)
        assert run(x) is x and x.tolist() == [1, 1, 1]
        assert run(x) is x and x.tolist() == [2, 2, 2]


def test_gradients_are_those_of_the_model() -> None:
    model, same = Layer(), Layer()
    same.load_state_dict(model.state_dict())
    run = compiled(model, strict=True)
    x = torch.randn(3, 4)
    with torch.enable_grad():
        for _ in range(2):
            torch.testing.assert_close(run(x), same(x))
            run(x).sum().backward()
            same(x).sum().backward()
    torch.testing.assert_close(model.inner.weight.grad, same.inner.weight.grad)
    assert not run.programs and not run.eager and "calls with gradients, by torch.compile: 4" in run.explain()
    assert run.to_json()["calls with gradients"] == 4


def test_gradients_of_a_functions_weights_are_those_of_torch() -> None:
    weight = torch.ones(4, requires_grad=True)
    run = compiled(lambda x: x * weight)
    with torch.enable_grad():
        for _ in range(2):
            assert run(torch.ones(3, 4)).requires_grad
    check(run, lambda x: x * weight, torch.ones(3, 4))
    weight.mul_(2)
    check(run, lambda x: x * weight, torch.ones(3, 4))


def test_in_inference_mode() -> None:
    with torch.inference_mode():
        model = Layer()
        run = compiled(model, strict=True)
        for n in (3, 1, 4):
            check(run, model, torch.randn(n, 4))
    with torch.inference_mode():
        counting, ours = Counting(), Counting()
        run = compiled(ours, strict=True)
        for n in (3, 1):
            check(run, counting, torch.ones(n, 4))


def test_calls_from_several_threads() -> None:
    model = Layer()
    run = compiled(model, strict=True)

    def call(n: int) -> None:
        with torch.no_grad():
            for k in range(5):
                check(run, model, torch.randn(1 + (n + k) % 7, 4))

    in_threads(call)
    assert len(run.programs) == 1


def test_dropout_in_training_runs_in_torch() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Dropout(0.5))
    run = compiled(model)
    run(torch.randn(3, 4))
    assert not run.programs and any("model.eval()" in why for why in run.eager)
    model.eval()
    check(run, model, torch.randn(3, 4))
    assert len(run.programs) == 1


def test_a_model_that_cannot_be_exported_runs_and_says_where() -> None:
    def model(x: Any) -> Any:
        if x.sum() > 0:
            return x
        return x * 2

    run = compiled(model)
    check(run, model, torch.ones(3))
    check(run, model, -torch.ones(3))
    assert any("test_model.py:" in why and "in model" in why for why in run.eager)
    with pytest.raises(UnsupportedNode, match=r"test_model.py:\d+, in model"):
        compiled(model, strict=True)(torch.ones(3))


class Box:
    def __init__(self, x: Any) -> None:
        self.x = x


def test_objects_that_torch_knows_nothing_of_run_in_torch() -> None:
    run = compiled(lambda x: Box(x * 2))
    assert run(torch.ones(3)).x.tolist() == [2, 2, 2]
    assert any("Box" in why and "https" not in why for why in run.eager)
    run = compiled(lambda box: box.x * 2)
    assert run(Box(torch.ones(3))).tolist() == [2, 2, 2]
    assert any("Box, which is neither a tensor" in why for why in run.eager)


def test_autocast_runs_in_torch() -> None:
    model = Layer()
    run = compiled(model)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert run(torch.randn(3, 4)).dtype == torch.bfloat16
    assert "autocast is on" in run.eager


def test_bounds_name_the_dim_the_bound_and_the_size() -> None:
    run = compiled(Layer(), bounds={"x": {0: (1, 8)}}, strict=True)
    run(torch.randn(8, 4))
    with pytest.raises(GuardError, match="x: dim 0 is 9, but its bounds are declared to be 1 to 8"):
        run(torch.randn(9, 4))
    with pytest.raises(GuardError, match="x: dim 0 is 0"):
        run(torch.randn(0, 4))


def test_without_symbols_every_size_is_a_program() -> None:
    model = Layer()
    run = compiled(model, dynamic=False, strict=True)
    for n in (3, 4, 3):
        check(run, model, torch.randn(n, 4))
    assert len(run.programs) == 2


def test_too_many_programs_end_in_torch() -> None:
    model = Layer()
    run = compiled(model, dynamic=False)
    for n in range(1, 12):
        check(run, model, torch.randn(n, 4))
    assert len(run.programs) == 8 and run.eager.total() == 3


@pytest.mark.parametrize(
    "x", [torch.randn(4, 3).mT, torch.randn(1, 4).expand(3, 4), torch.randn(6, 4)[::2], torch.randn(3, 4).requires_grad_()]
)
def test_arguments_of_any_strides(x: Any) -> None:
    model = Layer()
    check(compiled(model, strict=True), model, x)


@pytest.mark.parametrize(
    ("model", "calls"),
    [
        (lambda: torch.ones(3), [(), ()]),
        (lambda x: x * 2, [(torch.tensor(3.0),), (torch.tensor(4.0),)]),
        (lambda x: x * 2j, [(torch.ones(3),), (torch.ones(4),)]),
        (lambda x: (x, [x > 0, x.shape[0]], "text"), [(torch.ones(3),), (torch.ones(4),)]),
        (lambda x: x[x > 0], [(torch.arange(-3.0, 3),), (torch.arange(-5.0, 5),)]),
    ],
)
def test_one_program_for_unusual_tensors_and_results(model: Any, calls: list[Any]) -> None:
    run = compiled(model, strict=True)
    for call in calls:
        found, expected = run(*call), model(*call)
        assert str(found) == str(expected)
    assert len(run.programs) == 1


def test_nested_arguments() -> None:
    def model(pair: Any, named: Any) -> Any:
        return pair[0] + pair[1][0], [named["a"] * 2]

    run = compiled(model, strict=True)
    for n in (3, 5):
        check(run, model, (torch.randn(n), [torch.randn(n)]), named={"a": torch.randn(n, 2)})
    assert len(run.programs) == 1
    assert "pair[1][0]: float32[" in run.explain() and "named['a']: float32[" in run.explain()


def test_what_the_model_refuses_is_its_error() -> None:
    run = compiled(Layer())
    with pytest.raises(RuntimeError, match="mat1 and mat2"):
        run(torch.randn(3, 5))
    with pytest.raises(TypeError, match="missing 1 required positional argument"):
        run()


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"budget": 0}, BudgetError, "positive number"),
        ({"budget": "fast"}, BudgetError, "positive number"),
        ({"without": ("speed",)}, InputError, "the optimizations are"),
        ({"target": "cuda"}, UnknownTarget, "target='cpu' only"),
        ({"bounds": {"x": 8}}, InputError, "numbers of dims|pass the names"),
        ({"bounds": {"x": {"batch": 8}}}, InputError, "'batch' is not the number of a dim"),
        ({"bounds": {"x": {0: (8, 1)}}}, DimError, "x, dim 0"),
        ({"bounds": {"y": {0: 8}}}, InputError, "there is no argument 'y'; the arguments are x, scale, both"),
        ({"strict": "yes"}, InputError, "neither True nor False"),
        ({"dynamic": None}, InputError, "neither True nor False"),
        ({"background": 1}, InputError, "neither True nor False"),
        ({"cache": "here"}, Exception, "cache"),
    ],
)
def test_wrong_options_are_refused(options: dict[str, Any], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        compiled(Layer(), **options)


def test_unknown_options_and_what_is_no_model_are_refused() -> None:
    with pytest.raises(TypeError, match="fullgraph"):
        mirage.torch.compile(Layer(), fullgraph=True)  # type: ignore[call-arg]
    with pytest.raises(InputError, match="str is not a model"):
        mirage.torch.compile("bert")  # type: ignore[arg-type]


def test_what_is_told_is_chosen_by_the_environment(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MIRAGE_LOG", "graph")
    with pytest.raises(SettingError, match="graphs, fallbacks, recompiles"):
        compiled(Layer())
    monkeypatch.setenv("MIRAGE_LOG", "graphs")
    compiled(Layer())(torch.randn(3, 4))
    assert "mirage.torch.graphs: Layer" in capsys.readouterr().err
    monkeypatch.delenv("MIRAGE_LOG")
    configure()
    compiled(Layer())(torch.randn(3, 4))
    assert "mirage.torch.graphs" not in capsys.readouterr().err


def test_a_model_is_tuned_at_the_sizes_of_its_first_call() -> None:
    """Sizes of 1, too, though torch exports larger ones; not where users declare that there are no such calls."""
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.LayerNorm(16)).eval()
    x = torch.randn(1, 5, 8)
    for bounds, wanted in ((None, [1, 5]), ({"input": {1: (1, 5)}}, [1, 5])):
        run = mirage.torch.compile(model, bounds=bounds, without=("superoptimize",), background=False)
        with torch.no_grad():
            run(x)
        assert list(run.programs[0].graph.sizes.values()) == wanted
    dynamic = ({0: torch.export.Dim.AUTO, 1: torch.export.Dim.AUTO},)
    exported = torch.export.export(model, (torch.randn(7, 5, 8),), dynamic_shapes=dynamic)
    called: Any = mirage.compile(exported, bounds={"input": {0: 6}}, without=("superoptimize",))
    assert list(called.programs[0].graph.sizes.values()) == [5]


def test_numbers_below_the_smallest_normal_one_may_be_rounded_otherwise() -> None:
    assert difference(torch.tensor([3e-39]), torch.tensor([2e-39])) is None
    assert difference(torch.tensor([3e-37]), torch.tensor([2e-37])) is not None
