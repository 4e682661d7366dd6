"""Convolutional and recurrent networks of PyTorch, by ONNX, at sizes that they were not exported with.

They are slow tests, as it takes seconds to export one.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

pytest.importorskip("onnx")
torch = pytest.importorskip("torch")
pytest.importorskip("onnxscript")

import mirage  # noqa: E402
from benchmarks.graphs import networks  # noqa: E402
from benchmarks.graphs.networks import Basic, Bottleneck, Characters, Recurrent, UNet, exported  # noqa: E402
from mirage.frontends.onnx.importer import import_model  # noqa: E402

#: operators run one by one
PLAIN: Any = {"without": ("superoptimize", "fuse", "libraries", "plan", "merge"), "cache": False}

IMAGES = {0: "batch", 2: "height", 3: "width"}
#: the network, the shape that it is exported with, its dims of any size, other shapes
NETWORKS: dict[str, tuple[Callable[[], Any], tuple[int, ...], dict[int, str], tuple[tuple[int, ...], ...]]] = {
    "resnet-18": (
        partial(networks.resnet, Basic, (2, 2, 2, 2), (8, 12, 16, 24)),
        (2, 3, 64, 64), IMAGES, ((1, 3, 64, 64), (3, 3, 97, 80)),
    ),
    "resnet-50": (
        partial(networks.resnet, Bottleneck, (3, 4, 6, 3), (16, 24, 32, 40)),
        (2, 3, 64, 64), IMAGES, ((1, 3, 71, 64), (3, 3, 96, 128)),
    ),
    "mobilenet-v2": (networks.mobilenet, (2, 3, 32, 32), IMAGES, ((1, 3, 32, 32), (3, 3, 45, 50))),
    "vgg-16": (networks.vgg, (2, 3, 32, 32), {0: "batch"}, ((1, 3, 32, 32), (5, 3, 32, 32))),
    "dqn": (networks.dqn, (2, 4, 52, 52), {0: "batch"}, ((1, 4, 52, 52), (7, 4, 52, 52))),
    "u-net": (UNet, (2, 3, 16, 16), {0: "batch"}, ((1, 3, 16, 16), (5, 3, 16, 16))),
    "characters": (Characters, (2, 12), {0: "batch", 1: "length"}, ((1, 12), (5, 31))),
    **{
        f"{kind.lower()}-{layers}{'-both' if both else ''}": (
            partial(Recurrent, kind, layers, both), (2, 7, 6), {0: "batch"}, ((1, 7, 6), (5, 7, 6)),
        )
        for kind in ("LSTM", "GRU")
        for layers in (1, 2)
        for both in (False, True)
    },
}  # fmt: skip


def check(name: str, **options: Any) -> None:
    make, shape, dims, others = NETWORKS[name]
    torch.manual_seed(0)
    model = make().eval()

    def example(shape: tuple[int, ...]) -> Any:
        return torch.randint(0, 40, shape) if name == "characters" else torch.randn(shape)

    given = exported(model, example(shape), dims)
    imported = import_model(given)
    assert not imported.fallback, imported.reasons
    run: Any = mirage.compile(given, **options)
    for size in (shape, *others):
        x = example(size)
        with torch.no_grad():
            torch.testing.assert_close(torch.from_numpy(run(x.numpy())), model(x), rtol=1e-3, atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mobilenet-v2", "u-net", "lstm-2-both"])
def test_networks_are_right_at_other_sizes(name: str) -> None:
    check(name, **PLAIN)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(NETWORKS))
def test_compiled_networks_are_right_at_other_sizes(name: str) -> None:
    check(name, without=("superoptimize",))
