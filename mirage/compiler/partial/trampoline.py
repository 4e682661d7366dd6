"""Calls within calls as deep as data is: generators that yield the calls whose results they wait for."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, TypeAlias, TypeVar

_T = TypeVar("_T")
#: a computation that yields others, and gets their results
Task: TypeAlias = Generator["Task[Any]", Any, _T]


def run(task: Task[_T]) -> _T:
    """The result of a task. What one raises, the one that waits for it gets."""
    stack: list[Task[Any]] = [task]
    result: Any = None
    error: BaseException | None = None
    while stack:
        try:
            called = stack[-1].send(result) if error is None else stack[-1].throw(error)
        except StopIteration as end:
            stack.pop()
            result, error = end.value, None
        except Exception as e:
            stack.pop()
            result, error = None, e
        else:
            stack.append(called)
            result, error = None, None
    if error is not None:
        raise error
    return result  # type: ignore[no-any-return]
