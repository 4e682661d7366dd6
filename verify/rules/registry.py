"""The rules that saturation uses: those of the package, and those that users have added."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from mirage.errors import RuleError
from mirage.verify.rules.builtin import RING, SUBJECTS
from mirage.verify.rules.rule import Rule

_RULES: dict[str, Rule] = {rule.name: rule for group in SUBJECTS.values() for rule in group}
#: the names of rules that came with the package
BUILT_IN = frozenset(_RULES)
_RING = frozenset(rule.name for rule in SUBJECTS[RING])


def rules() -> tuple[Rule, ...]:
    """All rules: the built-in ones, others in the order in which they were added, and those of the ring, which apply almost
    everywhere, so that a bound keeps no other rule from being used.
    """
    return tuple(sorted(_RULES.values(), key=lambda rule: rule.name in _RING))


def find_rule(name: str) -> Rule | None:
    """The rule of a name, if there is one."""
    return _RULES.get(name)


def add_rule(rule: Rule) -> Rule:
    """Add a rule; raises RuleError if its name is taken."""
    if rule.name in _RULES:
        raise RuleError(f"a rule is called {rule.name!r} already; choose another name")
    _RULES[rule.name] = rule
    return rule


def remove_rule(name: str) -> None:
    """Take out a rule that was added; raises RuleError if there is none of that name, or it came with the package."""
    if name not in _RULES or name in BUILT_IN:
        raise RuleError(f"no rule that was added is called {name!r}")
    del _RULES[name]


def added_rules() -> str:
    """The rules that users have added, as text: what results that follow from rules depend on beside the package."""
    return "\n".join(str(rule) for name, rule in _RULES.items() if name not in BUILT_IN)


@contextmanager
def only(*names: str) -> Iterator[None]:
    """With no other rules than those of these names, for ablations and tests."""
    kept = dict(_RULES)
    for name in set(kept) - set(names):
        del _RULES[name]
    try:
        yield
    finally:
        _RULES.clear()
        _RULES.update(kept)
