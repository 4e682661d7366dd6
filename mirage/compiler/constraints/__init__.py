"""Shape constraints: one store of facts about dims that all passes read (BladeDISC, section 3.1)."""

from mirage.compiler.constraints.bounds import from_bounds
from mirage.compiler.constraints.facts import Fact, Relation
from mirage.compiler.constraints.proofs import Stats
from mirage.compiler.constraints.store import Constraints

__all__ = ["Constraints", "Fact", "Relation", "Stats", "from_bounds"]
