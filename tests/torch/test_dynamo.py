"""torch.compile with the backend "mirage": graphs of all kinds give what eager mode gives, strides and shared memory included."""

from __future__ import annotations

import logging
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from mirage.torch.dynamo import mirage  # noqa: E402
from tests.torch.compared import check_call, check_equal, compiled, counted  # noqa: E402

r = torch.randn


def _shared() -> tuple[Any, ...]:
    b = r(4, 4)
    return b, b[1:]


def _twice() -> tuple[Any, ...]:
    b = r(3, 3)
    return b, b


def _broken(x: Any) -> Any:
    y = x * 2
    torch._dynamo.graph_break()
    n = y.shape[0] + 1
    return y.sum(0) * n, n


def _mutated(x: Any, y: Any) -> Any:
    old = x.clone()
    x.copy_(y + x)
    return old, x.clone(), x[0]


def _both(x: Any, y: Any) -> Any:
    x.add_(1)
    return y * 2


def _itself(x: Any) -> Any:
    x.mul_(2)
    return x


def _autocast(x: Any, y: Any) -> Any:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return x @ y + 1


def _inner(x: Any) -> Any:
    with torch.no_grad():
        return x * 2 + 1


def _interior(x: Any) -> Any:
    y = x * 2
    return y, y.T, y[0], y.view(-1)


def _transposed_interior(x: Any) -> Any:
    y = x.T * 2
    return y, y.T, y[:, 1:], y.unbind(0)


SAME: dict[str, tuple[Callable[..., Any], Callable[[], tuple[Any, ...]]]] = {
    "elementwise": (lambda x: torch.relu(x) + 1, lambda: (r(3, 4),)),
    "no operator": (lambda x: x, lambda: (r(3, 4),)),
    "a view of an input": (lambda x: x.view(-1), lambda: (r(3, 4),)),
    "sizes only": (lambda x: (x.shape[0] * 2, x.shape[1]), lambda: (r(3, 4),)),
    "a graph break": (_broken, lambda: (r(3, 4),)),
    "arguments that are no tensors": (lambda x, a, n, s: x * a + n if s == "k" else x, lambda: (r(3, 4), 0.5, 2, "k")),
    "a transposed input": (lambda x: x @ x.T + 1, lambda: (r(4, 3).T,)),
    "an expanded input": (lambda x: x * 2, lambda: (r(1, 3).expand(4, 3),)),
    "a part of an input": (lambda x: x + 1, lambda: (r(4, 6)[1:3, ::2],)),
    "an output in another order": (lambda x: x.permute(2, 0, 1) * 2, lambda: (r(2, 3, 4),)),
    "channels last": (lambda x: x * 2, lambda: (r(2, 3, 4, 5).to(memory_format=torch.channels_last),)),
    "a transposed output": (lambda x: (x * 2).T, lambda: (r(4, 3),)),
    "an expanded output": (lambda x: x.sum(0).expand(5, 4), lambda: (r(3, 4),)),
    "a part as an output": (lambda x: (x * 2)[:, :2], lambda: (r(3, 4),)),
    "views of one value": (_interior, lambda: (r(3, 4),)),
    "views of a transposed value": (_transposed_interior, lambda: (r(3, 4),)),
    "one value twice": (lambda x: ((y := x + 1), y, y.clone()), lambda: (r(3, 4),)),
    "copies of an input": (lambda x: (x.clone(), x.detach(), x.contiguous()), lambda: (r(3, 4),)),
    "inputs that share memory": (lambda x, y: x.sum() + y * 2, _shared),
    "a written input that shares memory": (_both, _shared),
    "one input twice": (lambda x, y: x.add_(1) + y, _twice),
    "a written input": (_mutated, lambda: (r(3, 4), r(3, 4))),
    "a written input as the output": (_itself, lambda: (r(3, 4),)),
    "a written input of gaps": (lambda x: x.add_(1).sum(), lambda: (r(4, 6)[:, ::2],)),
    "complex": (lambda x: (x * x.conj()).real + 1, lambda: (r(3, 4, dtype=torch.complex64),)),
    "a written complex input": (lambda x: x.mul_(2).abs(), lambda: (r(3, 4, dtype=torch.complex64),)),
    "a conjugated input": (lambda x: x.real * 2, lambda: (r(3, dtype=torch.complex64).conj(),)),
    "a negated input": (lambda x: x * 2, lambda: (r(3, dtype=torch.complex64).conj().imag,)),
    "uint8": (lambda x: x + x // 2, lambda: (torch.randint(0, 255, (3, 4), dtype=torch.uint8),)),
    "float8": (lambda x: x.to(torch.float32) * 2, lambda: (r(3, 4).to(torch.float8_e4m3fn),)),
    "bfloat16": (lambda x: x @ x.T, lambda: (r(3, 4).bfloat16(),)),
    "float16, transposed": (lambda x: x * 2, lambda: (r(3, 4).half().T,)),
    "no elements": (lambda x: x * 2 + x.sum(), lambda: (r(0, 4),)),
    "no dims": (lambda x: x * 2, lambda: (r(()),)),
    "random numbers": (lambda x: x + torch.rand_like(x), lambda: (r(3, 4),)),
    "sizes in the data": (lambda x: (x[x > 0] * 2, torch.nonzero(x > 0)), lambda: (r(30),)),
    "a branch on the data": (lambda x: x * 2 if x.sum() > 0 else x - 1, lambda: (r(3, 4),)),
    "containers": (lambda d: {"a": d["x"] + d["y"][0], "n": None}, lambda: ({"x": r(3), "y": [r(3)]},)),
    "a constant": (lambda x: x + torch.tensor([1.0, 2.0, 3.0]), lambda: (r(3),)),
    "autocast": (_autocast, lambda: (r(3, 4), r(4, 5))),
}


@pytest.mark.parametrize("name", SAME)
def test_as_in_eager_mode(name: str) -> None:
    fn, arguments = SAME[name]
    run = compiled(fn)
    for seed in range(2):
        torch.manual_seed(seed)
        with torch.no_grad():
            check_call(fn, run, arguments())
    assert counted().keys() <= {"compiled"}


def test_one_graph_for_all_sizes() -> None:
    def fn(x: Any, y: Any, scale: float) -> Any:
        return torch.cat([x, y]).softmax(-1) * scale, x.shape[0] + y.shape[0]

    run = compiled(fn, dynamic=True)
    for n in range(2, 8):
        check_call(fn, run, (r(n, 4), r(2 * n + 1, 4), n / 3))
    assert counted() == {"compiled": 1}


def test_the_name_is_that_of_the_backend() -> None:
    assert torch._dynamo.lookup_backend("mirage") is mirage
    assert "mirage" in torch._dynamo.list_backends()


@pytest.mark.slow
def test_the_installed_entry_point_needs_no_import() -> None:
    code = (
        "import sys, torch\n"
        "assert 'mirage' in torch._dynamo.list_backends() and 'mirage' not in sys.modules\n"
        "f = torch.compile(lambda x: x + 1, backend='mirage', options={'without': ('superoptimize',), 'strict': True})\n"
        "assert f(torch.ones(3)).tolist() == [2, 2, 2] and 'mirage' in sys.modules\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr


# gradients, modes


def test_gradients_are_those_of_eager_mode() -> None:
    def fn(x: Any) -> Any:
        return (x * x).sum()

    run = compiled(fn)
    for n in (3, 4):
        x = r(n, requires_grad=True)
        run(x).backward()
        torch.testing.assert_close(x.grad, 2 * x.detach())
    # of the second size, a graph for all sizes
    assert counted() == {"gradients": 2}
    with torch.no_grad():
        check_call(fn, run, (r(3, requires_grad=True),))
    assert counted()["compiled"] == 1


def test_gradients_that_a_graph_does_without() -> None:
    run = compiled(_inner)
    check_call(_inner, run, (r(3, requires_grad=True),))
    assert counted() == {"compiled": 1}


def test_inference_mode() -> None:
    def fn(x: Any, y: Any) -> Any:
        y.add_(x)
        return x * 2, y[0]

    run = compiled(fn)
    with torch.inference_mode():
        found = check_call(fn, run, (r(3, 4), r(3, 4)))
        assert all(t.is_inference() for t in found)
    layer = torch.nn.Linear(4, 5)
    run = compiled(layer)
    with torch.inference_mode():
        check_call(layer, run, (r(3, 4),))
        # whoever writes to an inference tensor leaves no trace
        other = compiled(lambda x, w: x @ w)
        w = r(4, 4)
        torch.testing.assert_close(other(w, w), w @ w)
        w.add_(1)
        torch.testing.assert_close(other(w, w), w @ w)


def test_autocast_around_the_call() -> None:
    layer = torch.nn.Linear(4, 5)
    run = compiled(layer)
    x = r(3, 4)
    with torch.no_grad():
        with torch.autocast("cpu", dtype=torch.bfloat16):
            wanted, found = layer(x), run(x)
        assert found.dtype is wanted.dtype is torch.bfloat16
        torch.testing.assert_close(found, wanted, atol=2e-2, rtol=2e-2)
        check_call(layer, run, (x,))


# weights


class Weighted(torch.nn.Module):  # type: ignore[misc, name-defined]
    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Linear(4, 4)
        self.register_buffer("scale", r(4))
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: Any) -> Any:
        self.calls += 1
        return self.first(x) * self.scale, self.scale.clone(), self.calls * 1


def _change_by_operator(model: Any) -> None:
    model.first.weight.mul_(2)


def _change_memory(model: Any) -> None:
    model.scale.data = model.scale.data + 1


def _change_tensor(model: Any) -> None:
    model.first.weight = torch.nn.Parameter(r(4, 4))


def _change_state(model: Any) -> None:
    model.load_state_dict({name: t + 1 for name, t in model.state_dict().items()})


@pytest.mark.parametrize("change", [_change_by_operator, _change_memory, _change_tensor, _change_state])
def test_a_change_of_weights_is_seen(change: Callable[[Any], None]) -> None:
    torch.manual_seed(0)
    model = Weighted()
    run = compiled(model)
    x = r(3, 4)
    with torch.no_grad():
        for _ in range(3):
            calls = float(model.calls)
            found = run(x)
            assert float(model.calls) == float(found[2]) == calls + 1
            torch.testing.assert_close(found[:2], (model.first(x) * model.scale, model.scale))
            change(model)


def test_layers_share_a_graph() -> None:
    layers = [torch.nn.Linear(4, 4) for _ in range(3)]
    torch._dynamo.reset()
    run = compiled(lambda layer, x: layer(x))
    x = r(3, 4)
    with torch.no_grad():
        for layer in (*layers, *layers):
            torch.testing.assert_close(run(layer, x), layer(x))
        layers[1].bias.zero_()
        for layer in layers:
            torch.testing.assert_close(run(layer, x), layer(x))
    assert counted() == {"compiled": 1}


def test_calls_from_several_threads() -> None:
    layer = torch.nn.Linear(8, 8)
    run = compiled(layer, dynamic=True)
    failed: list[BaseException] = []
    with torch.no_grad():
        run(r(3, 8))

    def work(seed: int) -> None:
        try:
            with torch.no_grad():
                for n in range(2, 12):
                    x = torch.full((n + seed, 8), float(n))
                    torch.testing.assert_close(run(x), layer(x))
        except BaseException as e:
            failed.append(e)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not failed


# what is not compiled


@pytest.mark.filterwarnings("ignore")
def test_tensors_on_other_devices_run_in_eager_mode(caplog: pytest.LogCaptureFixture) -> None:
    run = compiled(lambda x: x * 2, strict=False)
    assert run(torch.empty(3, 4, device="meta")).device.type == "meta"
    assert counted() == {"eager": 1}
    (message,) = [m for m in caplog.messages if "eager" in m]
    assert "a tensor is on meta" in message and "\n" not in message


def test_what_fails_runs_in_eager_mode(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*args: Any, **kwargs: Any) -> Any:
        raise RuntimeError("no kernel\nfor this")

    monkeypatch.setattr("mirage.torch.dynamo.compiled_graph", fails)
    run = compiled(lambda x: x * 2 + 1, strict=False)
    x = r(3)
    with caplog.at_level(logging.WARNING):
        check_equal(run(x), x * 2 + 1)
    assert counted() == {"eager": 1}
    assert [m for m in caplog.messages if "RuntimeError: no kernel" in m and "\n" not in m]
    strict = compiled(lambda x: x * 2 + 1)
    with pytest.raises(Exception, match="RuntimeError: no kernel"):
        strict(x)


def test_subclasses() -> None:
    from torch.testing._internal.two_tensor import TwoTensor

    run = compiled(lambda x: x * 2 + 1)
    a, b = r(3), r(3)
    found = run(TwoTensor(a, b))
    check_equal((found.a, found.b), (a * 2 + 1, b * 2 + 1))


@pytest.mark.parametrize("kind", [torch.nn.LSTM, pytest.param(torch.nn.GRU, marks=pytest.mark.slow)])
@pytest.mark.parametrize("whole", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_recurrent_layers(kind: Any, whole: bool) -> None:
    torch.manual_seed(0)
    layer = kind(8, 16, 2, batch_first=True)
    run = compiled(lambda x: layer(x * 2)[0] + 1, strict=whole)
    with torch.no_grad(), torch._dynamo.config.patch(allow_rnn=whole):
        for b, t in ((2, 5), (3, 7)):
            x = r(b, t, 8)
            torch.testing.assert_close(run(x), layer(x * 2)[0] + 1, atol=2e-5, rtol=2e-5)
    # without it, Dynamo leaves functions with such layers alone
    assert ("compiled" in counted()) == whole
