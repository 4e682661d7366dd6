"""Lowering: functions become code of the virtual machine, with memory planned (Relax, sections 4.3, 4.4 and 4.7)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import sympy

from mirage.compiler.constraints import Constraints, Fact, Relation
from mirage.compiler.context import Context
from mirage.compiler.memory.buffers import Plan
from mirage.compiler.memory.liveness import Step, analyze
from mirage.compiler.memory.plan import plan
from mirage.compiler.passes.in_place import views_to_copy, written_parameters
from mirage.compiler.views import is_view
from mirage.errors import GraphError
from mirage.ir.annotations import Annotation, ObjectType, symbols_in
from mirage.ir.dims import Dim
from mirage.ir.graph import nodes
from mirage.ir.graph.effects import callees
from mirage.ir.graph.nodes import Atom, Binding, Constant, Function, Module, ShapeValue, Var
from mirage.ir.graph.order import callees_first
from mirage.ir.graph.traverse import atoms, signature_symbols, variables
from mirage.ir.operators.in_place import EFFECTS
from mirage.ir.types import ELEMENTS, TensorType
from mirage.runtime import program as vm
from mirage.runtime.check import arguments_in_result


@dataclass(frozen=True)
class Lowered:
    """Code of a module, the arrays of its constants, and the memory plan of each function."""

    code: vm.VMProgram
    constants: tuple[np.ndarray, ...]
    plans: Mapping[str, Plan]


def lower(module: Module, context: Context, *, planned: bool = True) -> Lowered:
    """The code of a module whose functions only call what the machine can run.

    `planned` False gives every tensor memory of its own, as without a plan (an ablation). Raises GraphError for recursion.
    """
    kernels = {name: k for k, name in enumerate(module.kernels)}
    constants: list[Constant] = []
    functions: dict[str, vm.VMFunction] = {}
    plans: dict[str, Plan] = {}
    called = {name for f in module for b in f.bindings for name in callees(b.value)}
    for name in callees_first(module):
        f = module.functions[name]
        copied = views_to_copy(f, module.functions, called=name in called)
        written = written_parameters(f, module.functions)
        lowering = _Lowering(f, kernels, constants, functions, context.of(name), planned, copied, written)
        functions[name], plans[name] = lowering.run()
    types = tuple(c.annotation for c in constants)
    return Lowered(
        vm.VMProgram(functions, tuple(kernels), types, module.main), tuple(c.array for c in constants), plans
    )


def bytes_of(t: TensorType) -> Dim:
    """The size of a tensor in bytes."""
    return sympy.expand(sympy.Mul(*t.shape) * ELEMENTS[t.dtype].itemsize)


#: relations with their sides exchanged
_EXCHANGED = {Relation.EQUAL: Relation.EQUAL, Relation.AT_LEAST: Relation.AT_MOST, Relation.AT_MOST: Relation.AT_LEAST}


def _guard(fact: Fact) -> vm.Guard:
    """The guard of a fact, without negative terms (n >= 5 for n - 5 >= 0): each side of it is a size."""
    dim, relation, value = fact.dim, fact.relation, fact.value
    if relation in _EXCHANGED:
        difference = sympy.expand(dim - value)
        dim = sympy.Add(*(t for t in sympy.Add.make_args(difference) if t.as_coeff_Mul()[0] > 0))
        value = sympy.expand(dim - difference)
        if dim.is_Integer:
            dim, relation, value = value, _EXCHANGED[relation], dim
    return vm.Guard(dim, str(relation), value, fact.reason)


@dataclass
class _Lowering:
    function: Function
    kernels: Mapping[str, int]
    constants: list[Constant]
    functions: Mapping[str, vm.VMFunction]
    constraints: Constraints
    planned: bool
    #: views that are in memory of their own, and parameters that effects write to
    copied: frozenset[Var]
    written: frozenset[Var]
    #: by the names of values
    registers: dict[str, int] = field(default_factory=dict)
    own_constants: list[tuple[int, int]] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    #: per step, the instructions but for memory, and the tensors that it needs: (value, register, type)
    code: list[list[vm.Instruction]] = field(default_factory=list)
    tensors: list[list[tuple[str, int, TensorType]]] = field(default_factory=list)
    #: per step, a storage that a callee's arena is in: (value, bytes)
    arenas: dict[int, tuple[str, int]] = field(default_factory=dict)
    introduced: dict[str, int] = field(default_factory=dict)
    #: by the name of a tuple made here, the values in it: an item is in the memory of one of them only
    fields: dict[str, tuple[Atom | str, ...]] = field(default_factory=dict)
    #: the tensors that views are of, and the variables that are read by more than views
    viewed: dict[Atom, Atom] = field(default_factory=dict)
    read: set[Var] = field(default_factory=set)

    def run(self) -> tuple[vm.VMFunction, Plan]:
        f = self.function
        for p in f.parameters:
            self._register(p.name)
        self.read = {v for b in f.bindings if not self._is_view(b) for v in variables(b.value)}
        self.read |= {f.result} if isinstance(f.result, Var) else set()
        known = signature_symbols(f)
        # what passes may have assumed of the dims, and the user's bounds
        facts = self.constraints.guards(known)
        guards = tuple(map(_guard, facts))
        for number, b in enumerate(f.bindings):
            self.code.append([])
            self.tensors.append([])
            step = self._binding(b, number)
            self.steps.append(step)
            for s in sorted(symbols_in(b.var.annotation) - known):
                self.introduced[s] = number
                known.add(s)
        self.code.append([])
        self.tensors.append([])
        result = self._value(f.result)
        self.steps.append(Step(uses=self._names([f.result])))
        live = analyze(self.steps, self._names([f.result]))
        sizes = {value: bytes_of(t) for group in self.tensors for value, _, t in group}
        sizes |= {value: sympy.Integer(n) for value, n in self.arenas.values()}
        buffers = live.buffers(sizes) if self.planned else []
        memory = plan(buffers, self.constraints, self.introduced)
        code: list[vm.Instruction] = []
        allocated: set[int] = set()
        planned = {self.registers[v] for v in memory.places if v in self.registers}
        kept = {result, *planned, *(r for r, _ in self.own_constants), *(self.registers[p.name] for p in f.parameters)}
        dead: dict[int, int] = {}
        for name, register in self.registers.items():
            if register not in kept and name in live.last_use:
                dead[register] = max(dead.get(register, 0), live.last_use[name])
        for number, instructions in enumerate(self.code):
            code += self._memory(number, memory, allocated)
            code += instructions
            # what the plan places needs no dropping; other values hold memory until then
            if registers := tuple(r for r, last in dead.items() if last == number < len(self.code) - 1):
                code.append(vm.Free(registers))
        code.append(vm.Return(result))
        parameters = tuple(vm.Parameter(p.name, p.annotation, p in self.written) for p in f.parameters)
        made = vm.VMFunction(
            f.name, parameters, tuple(code), len(self.registers), f.dims, tuple(self.own_constants), guards, memory.arena
        )
        return made, memory

    def _register(self, name: str) -> int:
        return self.registers.setdefault(name, len(self.registers))

    def _names(self, values: Sequence[Atom]) -> tuple[str, ...]:
        return tuple(v.name for v in values if isinstance(v, Var))

    def _value(self, a: Atom) -> int:
        """The register of an operand; constants get theirs, shapes are made where they are used."""
        match a:
            case Var(name):
                return self.registers[name]
            case Constant():
                number = next((k for k, c in enumerate(self.constants) if c is a), len(self.constants))
                if number == len(self.constants):
                    self.constants.append(a)
                name = f"constant {number}"
                if name not in self.registers:
                    self.own_constants.append((self._register(name), number))
                return self.registers[name]
            case ShapeValue(dims):
                register = self._register(f"shape {len(self.registers)}")
                self.code[-1].append(vm.MakeShape(register, dims))
                return register

    def _values(self, args: Sequence[Atom]) -> tuple[int, ...]:
        return tuple(self._value(a) for a in args)

    def _outputs(self, b: Binding, out: Sequence[TensorType]) -> tuple[tuple[int, ...], tuple[str, ...]]:
        """Registers and names of the tensors that a call writes; several of them become a tuple."""
        names = [b.var.name] if len(out) == 1 else [f"{b.var.name}.{k}" for k in range(len(out))]
        registers = [self._register(n) for n in names]
        self.tensors[-1] += zip(names, registers, out, strict=True)
        return tuple(registers), tuple(names)

    def _binding(self, b: Binding, number: int) -> Step:
        value = b.value
        code = self.code[-1]
        if isinstance(value, Var | Constant | ShapeValue):
            self.registers[b.var.name] = self._value(value)
            return Step(views=((b.var.name, self._names([value])),))
        if self._is_view(b):
            return self._view(b)
        args = self._values(value.args)
        used = self._names(value.args)
        match value:
            case nodes.KernelCall() | nodes.LibraryCall():
                return self._destination(b, value, args, used)
            case nodes.OpCall(op, attrs=attrs):
                code.append(vm.CallOperator(self._register(b.var.name), op, args, attrs, where=b.where))
                # in memory of its own: the machine copies what NumPy gives as a view of an operand
                return Step(uses=used, views=((b.var.name, ()),))
            case nodes.PackedCall(function, attrs=attrs, in_place=in_place):
                code.append(vm.CallPacked(self._register(b.var.name), function, args, attrs, in_place, where=b.where))
                # an effect gives what it wrote to, which is known
                if function not in EFFECTS or b.var.annotation != value.args[0].annotation:
                    self._check_result(b)
                written = self._names([value.args[i] for i in in_place])
                return Step(uses=used, views=((b.var.name, written),))
            case nodes.ShapeCall(function):
                code.append(vm.CallPacked(self._register(b.var.name), function, args, where=b.where))
                self._check_result(b)
                return Step(uses=used, views=((b.var.name, ()),))
            case nodes.FunctionCall(callee, dims=dims):
                memory = self._arena([callee], number)
                code.append(vm.CallFunction(self._register(b.var.name), callee, args, dims, memory, where=b.where))
                return self._called(b, [callee], value.args, used, number)
            case nodes.If(then=then, orelse=orelse, dims=dims):
                memory = self._arena([then, orelse], number)
                code.append(vm.If(self._register(b.var.name), args[0], then, orelse, args[1:], dims, memory, where=b.where))
                return self._called(b, [then, orelse], value.args[1:], used, number)
            case nodes.Loop(body=body, carried=carried, count=count, bound=bound, dims=dims):
                memory = self._arena([body], number)
                times, args = (args[0], args[1:]) if count is None else (None, args)
                code.append(
                    vm.Loop(
                        self._register(b.var.name), body, args[:carried], args[carried:], count, times, bound, dims, memory,
                        where=b.where,
                    )
                )
                # what is carried may come out as it went in
                given = value.args if count is not None else value.args[1:]
                return self._called(b, [body], [None, *given], used, number, given[:carried])
            case nodes.MatchCast((given,), annotation):
                if not self._is_known(given.annotation, annotation):
                    code.append(vm.MatchShape(args[0], annotation, getattr(given, "name", b.var.name), where=b.where))
                self.registers[b.var.name] = args[0]
                return Step(views=((b.var.name, used),))
            case nodes.ShapeOf():
                code.append(vm.ShapeOf(self._register(b.var.name), args[0], where=b.where))
                return Step(uses=used, views=((b.var.name, ()),))
            case nodes.MakeTuple():
                code.append(vm.MakeTuple(self._register(b.var.name), args, where=b.where))
                self.fields[b.var.name] = value.args
                return Step(views=((b.var.name, used),))
            case nodes.TupleItem(_, index):
                code.append(vm.GetItem(self._register(b.var.name), args[0], index, where=b.where))
                fields = self.fields.get(used[0]) if used else None
                if fields is None:
                    return Step(views=((b.var.name, used),))
                of = fields[index]
                return Step(uses=used, views=((b.var.name, (of,) if isinstance(of, str) else self._names([of])),))
        raise GraphError(f"{self.function.name}: {b.var.name}: {type(value).__name__} cannot be lowered")

    def _is_view(self, b: Binding) -> bool:
        return is_view(b.value, b.var.annotation) and b.var not in self.copied

    def _view(self, b: Binding) -> Step:
        given, annotation = atoms(b.value)[0], b.var.annotation
        assert isinstance(annotation, TensorType)
        of = self.viewed[b.var] = self.viewed.get(given, given)
        is_check = isinstance(b.value, nodes.OpCall) and b.value.op == "reshape_to"
        if b.var in self.read or is_check:
            self.code[-1].append(vm.Reshape(self._register(b.var.name), self._value(of), annotation.shape, where=b.where))
        return Step(views=((b.var.name, self._names([of])),))

    def _is_known(self, given: Annotation, wanted: Annotation) -> bool:
        """Whether a value has an annotation at all sizes that the guards let pass."""
        if not isinstance(given, TensorType) or not isinstance(wanted, TensorType) or given.dtype != wanted.dtype:
            return False
        return self.constraints.same_shape(given.shape, wanted.shape)

    def _check_result(self, b: Binding) -> None:
        """A Python function may give anything: what kernels get is checked."""
        if not isinstance(b.var.annotation, ObjectType):
            self.code[-1].append(vm.MatchShape(self.registers[b.var.name], b.var.annotation, b.var.name, where=b.where))

    def _called(
        self,
        b: Binding,
        callees: Sequence[str],
        args: Sequence[Atom | None],
        used: tuple[str, ...],
        number: int,
        through: Sequence[Atom] = (),
    ) -> Step:
        """A call of one of these functions: its arena is in use meanwhile, and its result may be in arguments' memory."""
        program = vm.VMProgram(self.functions, tuple(self.kernels), tuple(c.annotation for c in self.constants))
        places = set().union(*(arguments_in_result(program, c) for c in callees))
        shared = [*through, *(a for k, a in enumerate(args) if k in places and a is not None)]
        workspace = (self.arenas[number][0],) if number in self.arenas else ()
        return Step(uses=used, views=((b.var.name, self._names(shared)),), workspace=workspace)

    def _arena(self, callees: Sequence[str], number: int) -> int | None:
        """A storage for the arena of a callee, None where it needs none. Its number is settled with the plan."""
        need = max(self.functions[c].arena for c in callees)
        if not need or not self.planned:
            return None
        self.arenas[number] = (f"arena of {number}", need)
        return -1

    def _destination(
        self, b: Binding, value: nodes.KernelCall | nodes.LibraryCall, args: tuple[int, ...], used: tuple[str, ...]
    ) -> Step:
        code = self.code[-1]
        outputs, names = self._outputs(b, value.out)
        workspace: tuple[str, ...] = ()
        if isinstance(value, nodes.KernelCall):
            registers = []
            for k, t in enumerate(value.workspace):
                name = f"{b.var.name} workspace {k}"
                registers.append(self._register(name))
                self.tensors[-1].append((name, registers[-1], t))
                workspace += (name,)
            number = self.kernels[value.kernel]
            code.append(vm.CallKernel(number, args, outputs, value.dims, tuple(registers), where=b.where))
        else:
            code.append(vm.CallLibrary(value.function, args, outputs, value.attrs, where=b.where))
        if len(outputs) == 1:
            return Step(defines=names, uses=used, workspace=workspace)
        code.append(vm.MakeTuple(self._register(b.var.name), outputs, where=b.where))
        self.fields[b.var.name] = names
        return Step(defines=names, uses=used, views=((b.var.name, names),), workspace=workspace)

    def _memory(self, number: int, memory: Plan, allocated: set[int]) -> list[vm.Instruction]:
        """The tensors of a step, in the storages that the plan gives them; storages when they are first used."""
        found: list[vm.Instruction] = []
        arena = len(memory.storages)

        def storage(value: str) -> tuple[int, int]:
            place = memory.places[value]
            # bounded buffers have a storage each: a window of the arena
            k = place.storage if place.storage is not None else arena + list(memory.places).index(value)
            if k not in allocated:
                allocated.add(k)
                offset = None if place.storage is not None else place.offset
                found.append(vm.AllocStorage(k, place.bytes, offset))
            return k, place.offset if place.storage is not None else 0

        for value, register, t in self.tensors[number]:
            k, offset = storage(value) if value in memory.places else (None, 0)
            found.append(vm.MakeTensor(register, k, offset, t.shape, t.dtype))
        if number in self.arenas:
            k, _ = storage(self.arenas[number][0])
            for i, instruction in enumerate(self.code[number]):
                if isinstance(instruction, vm.CallFunction | vm.If | vm.Loop):
                    self.code[number][i] = replace(instruction, memory=k)
        return found
