"""What a schedule decides about the operators of a block, and what else it may: layouts in scratch and vector axes.

The plan of a kernel (`emit/plan.py`) asks for each of them, with its own choice and what is possible; so the space of these
decisions (Mirage, section 6: layouts of block-level tensors and thread-level registers) is known once a kernel is planned.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from mirage.errors import ScheduleError
from mirage.mugraph.schedule import BlockLayout, KernelSchedule


@dataclass(frozen=True)
class Choice:
    """An axis for an operator of the block: the plan's own, and all that are possible."""

    own: str | None
    options: tuple[str, ...]


class Decisions:
    """The decisions about one kernel's operators, as it is planned.

    `numbers` maps nodes of the graph that is printed to the block graph's, by which the schedule names them; nodes that the back
    end has added are not in it, and are not decided about.
    """

    def __init__(self, kernel: int, schedule: KernelSchedule, numbers: Mapping[int, int]) -> None:
        self.kernel = kernel
        self.schedule = schedule
        self.numbers = numbers
        self._vectors = dict(schedule.vectors)
        self._layouts = {x.node: x for x in schedule.layouts}
        #: per operator that has one, its vector axis; per tensor, its last one
        self.vectors: dict[int, Choice] = {}
        self.last: dict[int, Choice] = {}

    def vector(self, node: int) -> str | None:
        """The vector axis of a group (of its first member) or a product, where the schedule gives one."""
        return self._vectors.get(self.numbers.get(node, -1))

    def may_have_vectors(self, node: int, own: str | None, options: Sequence[str]) -> None:
        """What is possible for a group or product. Raises ScheduleError where the schedule wants something else."""
        number = self.numbers.get(node)
        if number is None:
            return
        self.vectors[number] = Choice(own, tuple(options))
        if (axis := self._vectors.get(number, own)) != own and axis not in options:
            self._refuse(f"w{number} cannot have vectors along {axis}", options)

    def layout(self, node: int) -> BlockLayout | None:
        """The layout of a tensor in scratch, where the schedule gives one."""
        return self._layouts.get(self.numbers.get(node, -1))

    def may_be_last(self, node: int, own: str | None, options: Sequence[str]) -> None:
        """What may be stored last in a tensor. Raises ScheduleError where the schedule wants something else."""
        number = self.numbers.get(node)
        if number is None:
            return
        self.last[number] = Choice(own, tuple(options))
        layout = self._layouts.get(number)
        if layout is not None and layout.last not in (None, own, *options):
            self._refuse(f"w{number} cannot be stored with {layout.last} last", options)

    def _refuse(self, what: str, options: Sequence[str]) -> None:
        raise ScheduleError(
            f"kernel {self.kernel}: {what}; " + (f"choose from {', '.join(options)}" if options else "leave it")
        )

    def check(self) -> None:
        """Raises ScheduleError for decisions about operators that are part of others, and tensors that are in registers."""
        for number in self._vectors.keys() - self.vectors.keys():
            raise ScheduleError(
                f"kernel {self.kernel}: the vector axis of w{number} is that of the group that it runs in; give it to the first "
                f"of a group, or to a product: {_operators(self.vectors)}"
            )
        for number in self._layouts.keys() - self.last.keys():
            raise ScheduleError(
                f"kernel {self.kernel}: w{number} has no memory of its own in scratch; give layouts to {_operators(self.last)}"
            )

    @property
    def planned(self) -> KernelSchedule:
        """The schedule with all that the plan has chosen by itself."""
        vectors = {i: self._vectors.get(i, c.own) for i, c in self.vectors.items()}
        layouts = []
        for i, c in sorted(self.last.items()):
            given = self._layouts.get(i, BlockLayout(i))
            layouts.append(given if given.last is not None else replace(given, last=c.own))
        return replace(
            self.schedule, vectors=_without_own(vectors), layouts=tuple(x for x in layouts if x.last is not None)
        )

    # the space

    def with_other_vectors(self) -> Iterator[KernelSchedule]:
        """The schedules that give one group or product another vector axis."""
        for number, choice in self.vectors.items():
            for axis in _others(choice, self._vectors.get(number)):
                found = {**self._vectors, number: axis}
                yield replace(self.schedule, vectors=_without_own(found))

    def with_other_layouts(self) -> Iterator[KernelSchedule]:
        """The schedules that store another axis of one block tensor last."""
        for number, choice in self.last.items():
            now = self._layouts.get(number, BlockLayout(number))
            for axis in _others(choice, now.last):
                yield self._with_layout(replace(now, last=axis))

    def with_other_padding(self, numbers: Sequence[int]) -> Iterator[KernelSchedule]:
        """The schedules that pad the rows of one of these block tensors, or no longer do."""
        for number in numbers:
            now = self._layouts.get(number, BlockLayout(number))
            yield self._with_layout(replace(now, padded=not now.padded))

    def _with_layout(self, layout: BlockLayout) -> KernelSchedule:
        found = {**self._layouts, layout.node: layout}
        if layout == BlockLayout(layout.node):
            del found[layout.node]
        return replace(self.schedule, layouts=tuple(found[i] for i in sorted(found)))


def _operators(numbers: Mapping[int, Choice]) -> str:
    return ", ".join(f"w{i}" for i in sorted(numbers)) or "none"


def _others(choice: Choice, now: str | None) -> list[str | None]:
    """The other options; the plan's own choice goes without saying (None)."""
    found: list[str | None] = [a for a in choice.options if a not in (choice.own, now)]
    return [None, *found] if now not in (None, choice.own) else found


def _without_own(vectors: Mapping[int, str | None]) -> tuple[tuple[int, str], ...]:
    return tuple((i, a) for i, a in sorted(vectors.items()) if a is not None)
