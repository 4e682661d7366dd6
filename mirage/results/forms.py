"""Which form of a whole program, and of each of its subprograms, was measured to be the fastest: kept for its next compilation.

Nothing of a record is code, and nothing in it has to be true for results to be right: forms are made anew of the program.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from mirage.cache import CallStore, CorruptRecordWarning
from mirage.cache.records import check_key, label, sha256
from mirage.errors import FormatError
from mirage.ir.codec import RESULT, Json, decode, encode, short, within
from mirage.kernels.target import Target
from mirage.results.recall import ENOUGH
from mirage.verify.rules.registry import added_rules


@dataclass(frozen=True)
class SubprogramForm:
    """The form that runs of the subprogram with this name in its module, and what was `said` of that.

    It was compared with what the results store had under the key `tuned` in the record with this `checksum`, if any: with another
    one, it might not be the fastest.
    """

    name: Annotated[str, short]
    form: Annotated[str, short]
    said: Annotated[str, short]
    tuned: Annotated[str, check_key]
    checksum: Annotated[str, check_key] | None = None


@dataclass(frozen=True, kw_only=True)
class StoredForms:
    """The form of a whole program, and those of its subprograms, chosen in a compilation of `spent` seconds."""

    whole: Annotated[str, short]
    subprograms: tuple[SubprogramForm, ...]
    spent: Annotated[float, within(0, 1e12)]
    form: int = RESULT.schema


@dataclass(frozen=True, kw_only=True)
class StoredKernel:
    """A kernel that was made without a search, as its text has it."""

    kernel: Json
    form: int = RESULT.schema


class FormMemory:
    """What is kept of one program in the store, of which `parts` are all that decides how fast its forms are; `name` is for
    whoever looks at records.
    """

    def __init__(self, store: CallStore, name: str, target: Target, parts: Sequence[str]) -> None:
        self.store = store
        self.name = name
        self.target = target
        self.machine = next(iter(target.machines), "")
        own = ["forms", RESULT.schema, target.name, self.machine, added_rules(), *parts]
        self.key = sha256(json.dumps(own))

    def recall(self, budget: float) -> StoredForms | None:
        """The forms that were chosen within such a budget (seconds), unless what they were compared with has changed since.

        A record that is damaged is a warning and none.
        """
        found = self.store.recall(self.key)
        if found is None:
            return None
        try:
            record = decode(StoredForms, found.payload, "record")
        except (FormatError, ValueError) as e:
            text = f"record {self.key[:12]} of the results store is not used: {e}"
            warnings.warn(text, CorruptRecordWarning, stacklevel=3)
            return None
        if record.spent < ENOUGH * budget:
            return None
        same = all(self.store.checksum(s.tuned) == s.checksum for s in record.subprograms)
        return record if same else None

    def keep(self, forms: StoredForms, dtype: str) -> None:
        """Remember the forms in place of what is kept."""
        self.store.put(
            self.key, encode(forms), program=self.name, target=self.target.name, dtype=dtype, best_us=None,
            cut_s=forms.spent, processor=label("; ".join(self.machine.split("\n"))), replaces=self.store.checksum(self.key),
        )  # fmt: skip
