"""Instructions that launch compiled code, prepared once for tensors of known shapes: what loops and straight lines run in C."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias, runtime_checkable

import numpy as np

from mirage.kernels.cpu.launch import (
    attention,
    convolution,
    dequantized,
    grouped,
    linear,
    narrowed,
    narrowed_groups,
    order,
    quantize,
    quantized,
    quantized_convolution,
    separable,
)
from mirage.kernels.cpu.launch.rounds import Launch
from mirage.runtime import program as vm
from mirage.runtime.sizes import Slots
from mirage.runtime.steps import Steps, dims_in

#: library functions, and what prepares launches of them
_LIBRARY: Mapping[str, Callable[..., Launch | None]] = {
    "cpu.attention": attention.prepare,
    "blas.contraction": linear.prepare_contraction,
    "blas.matmul": linear.prepare_matmul,
    "cpu.convolution": convolution.prepare,
    "cpu.dequantized_matmul": dequantized.prepare,
    "cpu.grouped_matmul": grouped.prepare,
    "cpu.narrowed_groups": narrowed_groups.prepare,
    "cpu.narrowed_matmul": narrowed.prepare,
    "cpu.quantize": quantize.prepare,
    "cpu.quantized_convolution": quantized_convolution.prepare,
    "cpu.quantized_matmul": quantized.prepare,
    "cpu.separable_convolution": separable.prepare,
    **order.PREPARED,
}
#: what prepares a call for the values in its registers, and which of them these are
Prepare: TypeAlias = Callable[[Sequence[Any], Slots], "Sequence[Launch] | None"]


@runtime_checkable
class Launchable(Protocol):
    """A kernel whose calls may be prepared."""

    def prepare(
        self,
        inputs: tuple[np.ndarray, ...],
        outputs: tuple[np.ndarray, ...],
        dims: tuple[int, ...],
        workspace: tuple[np.ndarray, ...],
        /,
    ) -> Sequence[Launch] | None:
        """Launches that do what a call with tensors of these shapes and this workspace does, of the addresses that they are
        given; None if there are none.
        """
        ...


@dataclass(frozen=True)
class LaunchedCall:
    """An instruction that launches compiled code: which registers it gives, what prepares it, and for which dims."""

    at: vm.Instruction
    registers: tuple[int, ...]
    prepare: Prepare
    dims: Callable[[Slots], tuple[int, ...]] = lambda _: ()


def launched(i: vm.Instruction, make: Steps) -> LaunchedCall | None:
    """The call of an instruction, if it may be prepared; `make` evaluates its dims."""
    match i:
        case vm.CallKernel(number, inputs, outputs, dims, workspace) if isinstance(
            kernel := make.kernels[number], Launchable
        ):
            sizes, (a, b) = make.slots(dims), (len(inputs), len(inputs) + len(outputs))
            prepare = kernel.prepare

            def launches(given: Sequence[Any], slots: Slots) -> Sequence[Launch] | None:
                return prepare(tuple(given[:a]), tuple(given[a:b]), sizes(slots), tuple(given[b:]))

            return LaunchedCall(i, (*inputs, *outputs, *workspace), launches, sizes)
        case vm.CallLibrary(name, inputs, outputs, attrs) if name in _LIBRARY:
            values, count = make.attrs(attrs), len(inputs)
            function = _LIBRARY[name]

            def call(given: Sequence[Any], slots: Slots) -> Sequence[Launch] | None:
                return one(function(given[:count], given[count:], **values(slots)))

            return LaunchedCall(i, (*inputs, *outputs), call, make.slots(dims_in(value for _, value in attrs)))
        case vm.CallPacked(_, name, args, attrs, (0,)) if name in order.EFFECTS:
            settings, effect = dict(attrs), order.EFFECTS[name]
            return LaunchedCall(i, args, lambda given, slots: one(effect(given, **settings)))
    return None


def one(launch: Launch | None) -> Sequence[Launch] | None:
    """A launch as those of a call."""
    return None if launch is None else (launch,)
