"""The tensors of a model that a program reads as constants, and whether somebody changed one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import attrgetter, getitem, is_
from typing import Any

import torch

#: how often torch wrote to a tensor, and where its elements are: of a tensor
version = attrgetter("_version")
# twice as fast as by way of a subclass, which parameters are
address = torch._C.TensorBase.data_ptr


class Weights:
    """Tensors at names below a model, such as `encoder.layer.0.weight`, or given as they are.

    A change is seen by another tensor in the model's place, by the counter of writes that torch keeps, and by the address;
    inference tensors have no counter.
    """

    def __init__(self, model: Any, tensors: Sequence[tuple[str | None, Any]]) -> None:
        self._places = [_place(model, name, t) if name is not None else None for name, t in tensors]
        self._owners = [place[0] for place in self._places if place is not None]
        self._names = [place[1] for place in self._places if place is not None]
        self._fixed = [t for _, t in tensors]
        self.tensors: list[Any] = []
        self.note()

    def note(self) -> None:
        """Take what the model has now."""
        self.tensors = [
            t if place is None else place[0][place[1]] for place, t in zip(self._places, self._fixed, strict=True)
        ]
        self._placed = list(map(getitem, self._owners, self._names))
        self._counted = [t for t in self.tensors if not t.is_inference()]
        self._versions = list(map(version, self._counted))
        self._addresses = list(map(address, self.tensors))

    def changed(self) -> bool:
        """Whether a tensor is another one, or was written to, since the last `note`."""
        return not (
            all(map(is_, map(getitem, self._owners, self._names), self._placed))
            and list(map(version, self._counted)) == self._versions
            and list(map(address, self.tensors)) == self._addresses
        )


def _place(model: Any, name: str, tensor: Any) -> tuple[dict[str, Any], str] | None:
    """The dictionary and key under which a module has a tensor; None where it has not."""
    path, _, last = name.rpartition(".")
    try:
        owner = model.get_submodule(path)
    except AttributeError:
        return None
    for found in (owner._parameters, owner._buffers, vars(owner)):
        if found.get(last) is tensor:
            return found, last
    return None


def requires_grad(tensors: Sequence[Any]) -> bool:
    """Whether gradients are needed of any of these."""
    return any(map(_requires_grad, tensors))


_requires_grad: Callable[[torch.Tensor], bool] = attrgetter("requires_grad")
