"""What a search may do, and what its limits are for a program."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from mirage.errors import SearchError
from mirage.ir.axes import AxisProgram
from mirage.kernels.cpu.processor import CPU_RATES
from mirage.kernels.target import Rates
from mirage.search.cost import COMPARED

#: operators that a kernel may have beyond those of the whole program
SLACK = 2


@dataclass(frozen=True)
class SearchOptions:
    """What a search may do; the defaults are the limits of the paper (section 8.1), which follow the program.

    `max_kernels`: kernel-level operators of a graph. `max_operators`: block operators of a kernel, None for those of the
    fused program, an accumulator per reduction, and `SLACK`. `max_inputs` and `max_results`: tensors that a kernel reads and
    yields, None for 4 and 2, or the program's own numbers if those are larger. `max_loops`: axes that a kernel loops over
    together. `max_values`: values of a kernel beyond which products of sums are no longer multiplied out (`expansion.py`).
    `budget`: seconds. `steps`: no part of the search is limited by seconds, but by counts, and the pieces of a large program
    and of its targets by so many steps together, so that what it finds by a step is the same on every machine. `rules`:
    whether what the rules make of the program is searched too (`targets.py`). `vocabulary`: "table" for the operators of the
    paper's Table 1 that the program has room for, "program" for those that it is written in. `constants`: arguments whose
    contents never change: what follows from them alone costs nothing, as it is computed once. `rates`: what costs weigh that
    order graphs. `compared`: sizes of the symbolic axes, beside the given ones, at which a graph may be the best. `pruner`
    ("normal-form", "smt" or None) and `canonical=False`, which builds equal values again, are for ablations.
    """

    pruner: str | None = "normal-form"
    canonical: bool = True
    max_kernels: int = 5
    max_operators: int | None = None
    max_inputs: int | None = None
    max_results: int | None = None
    max_loops: int = 2
    max_values: int = 50
    budget: float = 30.0
    steps: int | None = None
    rules: bool = True
    vocabulary: str = "table"
    constants: tuple[str, ...] = ()
    rates: Rates = CPU_RATES
    compared: tuple[int, ...] = COMPARED

    def check(self) -> None:
        """Raises SearchError where an option is impossible."""
        for name, value in asdict(self).items():
            optional = name in ("max_operators", "max_inputs", "max_results")
            if not name.startswith("max_") or (optional and value is None):
                continue
            least = 0 if name == "max_loops" else 1
            if type(value) is not int or value < least:
                raise SearchError(f"{name}={value!r} must be a whole number of at least {least}")
        for name in ("canonical", "rules"):
            if not isinstance(getattr(self, name), bool):
                raise SearchError(f"{name}={getattr(self, name)!r} must be True or False")
        if self.vocabulary not in ("table", "program"):
            raise SearchError(f"vocabulary={self.vocabulary!r} must be 'table' or 'program'")
        if isinstance(self.budget, bool) or not isinstance(self.budget, int | float) or not self.budget > 0:
            raise SearchError(f"budget={self.budget!r} must be a positive number of seconds")
        if self.steps is not None and (type(self.steps) is not int or self.steps < 1):
            raise SearchError(f"steps={self.steps!r} must be a whole number of at least 1, or None")


@dataclass(frozen=True)
class Limits:
    """The limits of one search: as `SearchOptions`, all of them known."""

    kernels: int
    operators: int
    inputs: int
    results: int
    loops: int

    @staticmethod
    def of(program: AxisProgram, options: SearchOptions) -> Limits:
        compute = [n for n in program.nodes if n.op not in ("input", "constant", "size")]
        operators = len(compute) + sum(1 for n in compute if n.reduce) + SLACK
        return Limits(
            options.max_kernels,
            options.max_operators or operators,
            options.max_inputs or max(4, len(program.inputs)),
            options.max_results or max(2, len(program.outputs)),
            options.max_loops,
        )

    def __str__(self) -> str:
        return (
            f"{self.kernels} kernels of {self.operators} operators, {self.inputs} inputs and {self.results} results, "
            f"{self.loops} loop axes"
        )
