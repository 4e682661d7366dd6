"""Programs as JSON, and what a machine refuses to load."""

from __future__ import annotations

import contextlib
import json
import random
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import sympy

from mirage.errors import (
    DuplicateFunction,
    FormatError,
    LibraryError,
    MirageError,
    UnknownFunction,
    UnknownOperator,
)
from mirage.ir.annotations import (
    Annotation,
    CallableType,
    DataType,
    NeverType,
    ObjectType,
    PartialTensor,
    ReferenceType,
    ShapeType,
    TupleType,
    TypeVariable,
)
from mirage.ir.codec import decode, encode
from mirage.ir.data import LIST
from mirage.ir.dims import to_dim
from mirage.ir.graph.patterns import Bind, Case, Fields, Wildcard
from mirage.ir.types import tensor
from mirage.runtime import program as vm
from mirage.runtime.packed import register_library, register_packed
from mirage.runtime.vm import VirtualMachine
from tests.runtime import test_vm
from tests.runtime.machines import DOUBLE, KERNELS, dims, function, machine, program
from tests.runtime.test_vm import N, ramp

PROGRAMS: dict[str, Callable[[], VirtualMachine]] = {
    f.__name__: f for f in (test_vm.quadruple, test_vm.static, test_vm.branches, test_vm.data_dependent, test_vm.cache)
}


def loaded(data: Any) -> vm.VMProgram:
    return decode(vm.VMProgram, data, "program")


@pytest.mark.parametrize("name", PROGRAMS)
def test_json_and_back(name: str) -> None:
    made = PROGRAMS[name]().program
    assert loaded(json.loads(json.dumps(encode(made)))) == made


def test_json_of_every_instruction_annotation_and_attribute() -> None:
    attrs = (
        ("shape", (to_dim("n // 2"), sympy.Integer(3))),
        ("scale", Fraction(-1, 3)),
        ("limit", float("inf")),
        ("names", ("a", None, True, 2)),
    )
    parameters: dict[str, Annotation] = {
        "p": PartialTensor((to_dim("n"), None), "int64"),
        "q": PartialTensor(),
        "s": ShapeType((None, to_dim("min(n, 4)"))),
        "t": TupleType((ObjectType(), CallableType((tensor("n"),), ShapeType(), False))),
        "l": DataType("List", (ReferenceType(TypeVariable("a")), NeverType())),
    }
    code: list[vm.Instruction] = [
        vm.AllocStorage(0, to_dim("4*n"), where="line 1"),
        vm.MakeTensor(4, 0, 8, dims("n", 2), "bool"),
        vm.Reshape(5, 4, dims("2*n")),
        vm.CallKernel(0, (4,), (5,), dims("n"), (4,)),
        vm.CallLibrary("f", (4,), (5,), attrs),
        vm.CallPacked(6, "g", (4, 5), attrs, (1,)),
        vm.CallOperator(7, "reshape", (4,), attrs),
        vm.CallFunction(8, "main", (4,), dims("n"), 0),
        vm.If(9, 4, "main", "main", (4,), dims("n"), 0),
        vm.Loop(10, "main", (4,), (5,), to_dim("n"), None, to_dim(9), dims("n"), 0),
        vm.MatchShape(10, tensor("m", dtype="bfloat16"), "x"),
        vm.MakeShape(11, dims("m")),
        vm.ShapeOf(12, 4),
        vm.MakeTuple(13, (4, 5)),
        vm.GetItem(14, 13, 1),
        vm.Free((4, 5)),
        vm.Construct(15, LIST, 1, (4, 5)),
        vm.Match(16, 15, (Case(LIST, 1, (Bind("x"), Wildcard())), Fields((Wildcard(),))), ("main", "main"), (4,), dims("n")),
        vm.MakeClosure(17, "main", (4,), dims("n")),
        vm.CallValue(18, 17, (4,)),
        vm.Reference(19, "new", (4,)),
        vm.Return(14),
    ]
    assert {type(i) for i in code} == set(vm.Instruction.__subclasses__())
    guards = (vm.Guard(to_dim("n"), "%", to_dim(8), "why"),)
    made = program(
        function(parameters, *code, in_place=["p"], extra=("k",), constants=((15, 0),), guards=guards, arena=64),
        constants=(tensor(2, 3),),
    )
    back = loaded(json.loads(json.dumps(encode(made))))
    assert back == made and str(back) == str(made)
    # the user's line is no part of equality
    assert back.functions["main"].code[0].where == "line 1"


def test_attributes_that_have_no_text_are_not_saved() -> None:
    made = program(function({}, vm.CallPacked(0, "f", (), (("x", np.zeros(2)),)), vm.Return(0)))
    with pytest.raises(FormatError, match="of type ndarray cannot be saved"):
        encode(made)


#: where the main function is
MAIN = ["functions", "main"]


def edited(path: list[Any], value: Any) -> Any:
    data = json.loads(json.dumps(encode(test_vm.quadruple().program)))
    at = data
    for key in path[:-1]:
        at = at[key]
    at[path[-1]] = value
    return data


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (["main"], 3, "program.main: expected a text, found 3"),
        (["functions"], None, "program.functions: expected an object"),
        ([*MAIN, "code", 0, "bytes"], "__import__('os')", r"code\[0\].bytes: dim"),
        ([*MAIN, "code", 0, "bytes"], "n +", r"code\[0\].bytes: dim"),
        ([*MAIN, "code", 0, "bytes"], 4, r"code\[0\].bytes: expected a dim as text, found 4"),
        ([*MAIN, "code", 0, "storage"], True, "storage: expected an integer, found True"),
        ([*MAIN, "code", 0, "extra"], 1, "expected an object of where, storage, bytes, offset"),
        ([*MAIN, "code", 0], {"is": "Return"}, r"code\[0\]: expected an object of where, value"),
        ([*MAIN, "code", 0], {"is": "eval", "value": 1}, 'expected an object whose "is" is one of AllocStorage'),
        ([*MAIN, "code", 0], {"is": "ShapeType", "dims": None}, 'expected an object whose "is" is one of AllocStorage'),
        ([*MAIN, "parameters", 0, "annotation", "dtype"], "complex64", "complex64"),
        ([*MAIN, "parameters", 0, "name"], 1.5, "name: expected a text, found 1.5"),
        ([*MAIN, "code", 0, "offset"], {"number": "1/0"}, "offset: expected an integer"),
    ],
)
def test_json_that_is_wrong(path: list[Any], value: Any, message: str) -> None:
    with pytest.raises(FormatError, match=message):
        loaded(edited(path, value))


def places(data: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Paths to all values in a JSON object."""
    inside = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    return [path] + [p for key, value in inside for p in places(value, (*path, key))]


@pytest.mark.parametrize("name", PROGRAMS)
def test_altered_json_is_refused_or_loads(name: str) -> None:
    """Nothing but errors of ours: numbers beyond all bounds, parts in wrong places, parts left out."""
    text, rng = json.dumps(encode(PROGRAMS[name]().program)), random.Random(name)
    refused = 0
    for _ in range(150):
        data = json.loads(text)
        where = places(data)[1:]
        *path, last = rng.choice(where)
        at = data
        for key in path:
            at = at[key]
        wrong: list[Any] = [
            None,
            -1,
            0,
            7,
            1 << 70,
            1.5,
            "n",
            "float32",
            [],
            {},
            [0, 0],
            "m // n",
            str(1 << 62),
        ]
        other = json.loads(text)
        for key in rng.choice(where):
            other = other[key]
        if rng.random() < 0.1:
            del at[last]
        else:
            at[last] = rng.choice([*wrong, other])
        try:
            run = VirtualMachine(loaded(data), list(KERNELS.values()))
        except MirageError:
            refused += 1
            continue
        with contextlib.suppress(MirageError, TypeError, ValueError, IndexError):
            run(ramp(3))
    assert refused > 75


def test_json_that_nests_without_end() -> None:
    data: Any = {"is": "ObjectType"}
    for _ in range(5000):
        data = {"is": "TupleType", "fields": [data]}
    with pytest.raises(FormatError, match="too deeply"):
        loaded(edited([*MAIN, "parameters", 0, "annotation"], data))
    with pytest.raises(FormatError, match="expected an object of functions"):
        loaded([])


MADE = vm.MakeTensor(1, None, 0, dims("n"), "float32")
ARENA = vm.AllocStorage(0, to_dim(256), 0)
IN_ARENA = vm.MakeTensor(1, 0, 0, dims("n"), "float32")


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ([], "function 'main', its head: the last instruction is not a Return"),
        ([MADE], "the last instruction is not a Return"),
        ([vm.Return(0), vm.Return(0)], r"Return\(value=0\): it is not the last instruction"),
        ([vm.Return(7)], "r7 is used before it is written"),
        ([MADE, replace(MADE), vm.Return(1)], "r1 is written twice"),
        ([vm.MakeShape(1, (to_dim(1 << 63),)), vm.Return(1)], "dim 9223372036854775808 is larger than a size can be"),
        ([vm.MakeTensor(-1, None, 0, (), "bool"), vm.Return(0)], "there is no register r-1"),
        ([MADE, vm.Free((1,)), vm.Return(1)], "r1 is used after it is freed"),
        ([IN_ARENA, vm.Return(1)], "storage 0 is not allocated before"),
        ([ARENA, ARENA, vm.Return(0)], "storage 0 is allocated twice"),
        ([replace(ARENA, offset=32), vm.Return(0)], "does not fit the arena of 256 bytes at a multiple of 64"),
        ([replace(ARENA, offset=64), vm.Return(0)], "does not fit the arena of 256 bytes"),
        ([replace(ARENA, bytes=to_dim("n")), vm.Return(0)], "does not fit the arena"),
        ([ARENA, IN_ARENA, vm.Return(1)], "it returns memory of the arena"),
        (
            [ARENA, IN_ARENA, vm.Reshape(2, 1, dims(1, "n")), vm.MakeTuple(3, (0, 2)), vm.Return(3)],
            "memory of the arena",
        ),
        ([ARENA, IN_ARENA, vm.CallFunction(2, "same", (1,)), vm.Return(2)], "memory of the arena"),
        ([ARENA, IN_ARENA, vm.Loop(2, "loop", (1,), count=to_dim(0)), vm.Return(2)], "memory of the arena"),
        ([ARENA, IN_ARENA, vm.CallPacked(2, "test.same", (1,), in_place=(0,)), vm.Return(2)], "memory of the arena"),
        ([replace(MADE, dtype="complex64"), vm.Return(1)], "its type or offset"),
        ([replace(MADE, offset=8), vm.Return(1)], "its type or offset"),
        ([ARENA, replace(IN_ARENA, offset=(1 << 63) - 1), vm.Return(0)], "its type or offset"),
        ([vm.CallKernel(3, (0,), (0,)), vm.Return(0)], "there is no kernel 3"),
        (
            [vm.CallPacked(1, "test.same", (0,), in_place=(1,)), vm.Return(1)],
            "it updates an argument that it does not have",
        ),
        ([vm.CallFunction(1, "nobody", (0,)), vm.Return(1)], "there is no function 'nobody'"),
        ([vm.CallFunction(1, "same", (0, 0)), vm.Return(1)], "'same' has 1 parameters and 0 extra dims, not 2 and 0"),
        ([vm.CallFunction(1, "same", (0,), dims("n")), vm.Return(1)], "not 1 and 1"),
        (
            [ARENA, vm.CallFunction(1, "big", (0,), (), 0), vm.Return(1)],
            "the arena of 'big' has 512 bytes, its memory 256",
        ),
        ([vm.Loop(1, "loop", (0,)), vm.Return(1)], "it has no count, or two"),
        ([vm.GetItem(1, 0, -1), vm.Return(1)], "its index is negative"),
        ([vm.MakeTuple(1, (0,)), vm.GetItem(2, 1, 1), vm.Return(2)], "a tuple of 1 items has no item 1"),
        (
            [vm.MakeShape(1, dims("m")), vm.MatchShape(0, tensor("m"), "x"), vm.Return(1)],
            "m is used before its size is known",
        ),
    ],
)
def test_code_that_is_not_well_formed(code: list[vm.Instruction], message: str) -> None:
    same = function({"x": N}, vm.Return(0), name="same")
    big = function({"x": N}, vm.Return(0), name="big", arena=512)
    loop = function({"i": tensor(dtype="int64"), "x": N}, MADE_2, vm.Return(2), name="loop")
    with pytest.raises(FormatError, match=message):
        machine(function({"x": N}, *code, arena=256), same, big, loop)


MADE_2 = replace(MADE, out=2)


def two_storages(offset: int) -> list[vm.Instruction]:
    """x doubled twice, by way of two tensors that are needed at the same time."""
    return [
        replace(ARENA, bytes=to_dim(64)),
        vm.AllocStorage(1, to_dim(64), offset),
        IN_ARENA,
        vm.MakeTensor(2, 1, 0, dims("n"), "float32"),
        replace(MADE, out=3),
        vm.CallKernel(DOUBLE, (0,), (1,)),
        vm.CallKernel(DOUBLE, (1,), (2,)),
        vm.CallKernel(DOUBLE, (2,), (3,)),
        vm.Return(3),
    ]


def test_memory_that_is_in_use_is_not_given_to_another_storage() -> None:
    assert np.array_equal(machine(function({"x": N}, *two_storages(64), arena=128))(ramp(3)), 8 * ramp(3))
    with pytest.raises(FormatError, match="its memory is that of storage 0, which is in use at the same time"):
        machine(function({"x": N}, *two_storages(0), arena=128))


def test_memory_of_what_is_not_read_any_more_may_be_used_again() -> None:
    code = [i for i in two_storages(0) if not isinstance(i, vm.CallKernel)]
    calls = [vm.CallKernel(DOUBLE, (0,), (1,)), vm.CallKernel(DOUBLE, (0,), (2,)), vm.CallKernel(DOUBLE, (2,), (3,))]
    run = machine(function({"x": N}, *code[:-1], *calls, code[-1], arena=128))
    assert np.array_equal(run(ramp(3)), 4 * ramp(3))


def test_our_library_functions_refuse_what_does_not_fit() -> None:
    for attrs in ((("left", (0, 5)),), (("sideways", True),)):
        code = [MADE, vm.CallLibrary("blas.matmul", (0, 0), (1,), attrs), vm.Return(1)]
        with pytest.raises(LibraryError, match=r"main: blas\.matmul refuses its tensors: .*compile the program again"):
            machine(function({"x": N}, *code))(ramp(3))


def test_operators_refuse_what_does_not_fit() -> None:
    # indices that are no integers
    code = [vm.CallOperator(1, "take", (0, 0), (("axis", 0),)), vm.Return(1)]
    with pytest.raises(MirageError, match=r"main: take refuses its operands: .*compile the program again"):
        machine(function({"x": N}, *code))(ramp(3))


def test_an_item_of_a_tuple_may_leave_where_another_is_in_the_arena() -> None:
    code = [
        ARENA,
        IN_ARENA,
        MADE_2,
        vm.CallKernel(DOUBLE, (0,), (2,)),
        vm.MakeTuple(3, (1, 2)),
        vm.GetItem(4, 3, 1),
        vm.Return(4),
    ]
    assert np.array_equal(machine(function({"x": N}, *code, arena=256))(ramp(3)), 2 * ramp(3))


def test_tensors_that_outgrow_their_storage_are_refused() -> None:
    run = machine(function({"x": N}, ARENA, IN_ARENA, vm.CallKernel(DOUBLE, (0,), (1,)), vm.Return(0), arena=256))
    run(ramp(64))
    with pytest.raises(FormatError, match=r"main: r1, float32\[65\] at 0 bytes, does not fit storage 0 of 256 bytes"):
        run(ramp(65))


@pytest.mark.parametrize(
    ("code", "error", "message"),
    [
        (
            vm.CallPacked(1, "nobody", (0,)),
            UnknownFunction,
            r"packed function 'nobody' .* call register_packed\('nobody'",
        ),
        (vm.CallLibrary("nobody", (0,), (0,)), UnknownFunction, r"library function 'nobody' .* call register_library"),
        (vm.CallOperator(1, "nobody", (0,)), UnknownOperator, "nobody"),
    ],
)
def test_names_that_nobody_registered(code: vm.Instruction, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        machine(function({"x": N}, code, vm.Return(0)))


def test_a_name_is_registered_once() -> None:
    register_packed("test.once", len)
    register_packed("test.once", len)
    with pytest.raises(DuplicateFunction, match=r"packed function 'test\.once' is registered already"):
        register_packed("test.once", str)
    register_library("test.once", test_vm.matmul)
    with pytest.raises(DuplicateFunction, match=r"library function 'test\.once'"):
        register_library("test.once", lambda inputs, outputs: None)


def test_kernels_constants_and_main_must_fit() -> None:
    made = program(function({}, vm.Return(0), constants=((0, 0),)), constants=(tensor(3),))
    kernels = list(KERNELS.values())
    assert VirtualMachine(made, kernels, [ramp(3)])().tolist() == [0, 1, 2]
    for constants in ([], [ramp(2)], [ramp(3, dtype=np.float64)], [ramp(3), ramp(3)]):
        with pytest.raises(FormatError, match="constant"):
            VirtualMachine(made, kernels, constants)
    with pytest.raises(FormatError, match="the program names 3 kernels, not 1"):
        VirtualMachine(made, kernels[:1], [ramp(3)])
    with pytest.raises(FormatError, match="no function 'other', which is its main one"):
        VirtualMachine(replace(made, main="other"), kernels, [ramp(3)])
    with pytest.raises(FormatError, match="function 'main' is listed as 'f'"):
        VirtualMachine(vm.VMProgram({"f": made.functions["main"]}, main="f"))
    with pytest.raises(FormatError, match="function 'main' has extra shape parameters"):
        machine(function({"x": N}, vm.Return(0), extra=("k",)))
    with pytest.raises(FormatError, match="a guard has none of the relations"):
        machine(function({"x": N}, vm.Return(0), guards=(vm.Guard(to_dim("n"), "<", to_dim(3)),)))
    with pytest.raises(FormatError, match="it has 9 registers, more than values"):
        machine(vm.VMFunction("main", (), (vm.MakeShape(0, ()), vm.Return(0)), 9))
    with pytest.raises(FormatError, match="there is no constant 1"):
        machine(function({}, vm.Return(0), constants=((0, 1),)))


def test_a_program_prints() -> None:
    text = str(test_vm.static().program)
    assert "function main(r0 x: float32[n]), arena of 320 bytes" in text
    assert "guard n <= 64 (bounds['n'])" in text
    assert "r3 = MakeTensor(storage=None, offset=0, shape=[n], dtype='float32')" in text
    assert "CallKernel(kernel=2, inputs=[], outputs=[1], dims=[3*n], workspace=[2])" in text
