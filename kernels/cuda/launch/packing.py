"""Constant inputs stored as kernels read them: another axis innermost, rows of whole 16 bytes (Mirage, section 6: layouts).

The contract is that of packed constants on a processor (`mirage.kernels.cpu.launch.packing`): a copy is made when an array is
first seen, belongs to its memory, and lasts as long as the object that owns that.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from mirage.ir.dims import evaluate
from mirage.kernels.copies import Copies
from mirage.kernels.cuda.arguments import shapes
from mirage.kernels.cuda.emitted import EmittedTriton, PackedInput
from mirage.kernels.cuda.launch.arrays import DeviceArray, bits, is_torch, read


def copy_packed(emitted: EmittedTriton, packed: PackedInput, sizes: Mapping[str, int], source: Any, to: Any) -> None:
    """Write the elements of an input to its packed copy `to`, of the same library, NumPy or CuPy; behind the ends of rows are
    zeros.
    """
    order, wanted = ([a for d in emitted.tensors[t].axes for a in d] for t in (packed.input, packed.tensor))
    extents = {a: evaluate(emitted.axes[a], sizes) for a in order}
    rows = source.reshape([extents[a] for a in order]).transpose([order.index(a) for a in wanted])
    to[...] = 0
    to[..., : rows.shape[-1]] = rows


class DeviceCopies(Copies[DeviceArray]):
    """The packed copies of the arrays that one input of an emitted muGraph was given, each made on its device at first sight."""

    def __init__(self, emitted: EmittedTriton, packed: PackedInput) -> None:
        super().__init__()
        self.emitted = emitted
        self.packed = packed

    def get(self, cupy: Any, given: Any, array: DeviceArray, sizes: Mapping[str, int]) -> DeviceArray:
        """The copy of an array: `given` is what the user passed, `array` what it is on the device, which is current."""
        key = array.address, array.shape, array.strides, array.device

        def make() -> tuple[Any, DeviceArray]:
            shape = shapes(self.emitted, sizes)[self.packed.tensor]
            source = bits(cupy, array)
            to = cupy.empty(shape, source.dtype)
            copy_packed(self.emitted, self.packed, sizes, source, to)
            # calls on other streams will read it
            cupy.cuda.get_current_stream().synchronize()
            return _owner(cupy, given, array), replace(read(cupy, to, "a packed copy"), dtype=array.dtype)

        return self.find(key, given) or self.add(key, given, make)


def _owner(cupy: Any, given: Any, array: DeviceArray) -> Any:
    """The object whose life the memory lasts at least: of a view, the array or tensor that it is one of."""
    if isinstance(given, cupy.ndarray):
        while isinstance(given.base, cupy.ndarray):
            given = given.base
        return given
    if is_torch(given):
        # what was copied on the way, as lazily negated tensors are, is its own
        owner = given if given.data_ptr() == array.address else array.owner
        return owner if owner._base is None else owner._base
    return array.owner
