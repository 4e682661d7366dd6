"""What the site has beside the files of `docs/`: pages from the README, from docstrings and from stored measurements; and links
and fences as MkDocs reads them.
"""

from __future__ import annotations

import ast
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"

#: files outside of `docs/` that are pages of the site
OUTSIDE: Mapping[str, str] = {
    "README.md": "overview.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
}
#: folder of the site for other files that pages link to
FILES = "files"

#: pages of the reference: their title, and the modules whose public names they show, of those that `mirage` exports
REFERENCE: Mapping[str, tuple[str, Sequence[str]]] = {
    "programs": (
        "Writing programs",
        ("frontends.annotate", "frontends.spec", "frontends.trace", "frontends.functions"),
    ),
    "calls": ("Superoptimize, compile, verify", ("api", "compilation", "results.", "runtime.executable")),
    "operators": (
        "Functions of tensors",
        ("frontends.ops", "frontends.array_ops", "frontends.graph_ops", "frontends.proxy"),
    ),
    "control": ("Control flow, calls and effects", ("frontends.control", "frontends.calls", "frontends.effects")),
    "extending": ("Extending", ("ir.", "compiler.patterns", "runtime.packed")),
    "more": ("More", ("",)),
}
#: whole modules and single classes with pages of their own
MODULES: Mapping[str, tuple[str, Sequence[str]]] = {
    "torch": ("PyTorch", ("torch.model.compile", "torch.model.CompiledModel", "torch.programs.CompiledPrograms")),
    "certificates": ("Certificates", [f"verify.certificate.{name}" for name in ("Certificate", "Check", "Draw")]),
    "cache": ("Results store", ("cache.store.ResultStore", "cache.records.RecordInfo", "cache.call.StoreWarning")),
    "settings": ("Settings and logs", ("settings", "logs")),
    "errors": ("Errors", ("errors",)),
}

_LINK = re.compile(r"(!?\[[^\]]*\]\()([^)\s]+)(\))")
_FENCE = re.compile(r"^(```\w*)[^\n`]*\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def outside_fences(text: str) -> Iterator[tuple[bool, str]]:
    """The text in pieces, with whether each lies outside of fenced blocks."""
    end = 0
    for m in _FENCE.finditer(text):
        yield True, text[end : m.start()]
        yield False, m[0]
        end = m.end()
    yield True, text[end:]


def target_of(link: str, folder: Path) -> str | None:
    """Where a link of a file in that folder leads in the site: None where it stays as it is.

    A link to a page of `docs/` leads to it from wherever it stands; to the README and the like, to their pages; to any other
    file, to its copy.
    """
    path, mark, anchor = link.partition("#")
    if "://" in link or not path or path.startswith("mailto:"):
        return None
    # not resolved: folders of the repository are links
    file = Path(os.path.normpath(folder / path))
    if not file.is_relative_to(ROOT) or not file.is_file():
        return None
    name = file.relative_to(ROOT).as_posix()
    if file.is_relative_to(DOCS):
        name = file.relative_to(DOCS).as_posix()
    else:
        name = OUTSIDE.get(name) or f"{FILES}/{name}"
    return name + mark + anchor


def links_of(text: str, folder: Path) -> set[str]:
    """The copies of other files that a page links to, as paths of the site."""
    found = (target_of(m[2], folder) for out, part in outside_fences(text) if out for m in _LINK.finditer(part))
    return {t.partition("#")[0] for t in found if t is not None and t.startswith(f"{FILES}/")}


def rewritten(text: str, folder: Path) -> str:
    """A page as MkDocs reads it: links within the site, and fences with a language alone."""

    def link(m: re.Match[str]) -> str:
        return m[1] + (target_of(m[2], folder) or m[2]) + m[3]

    return "".join(
        _LINK.sub(link, part) if out else _FENCE.sub(lambda m: f"{m[1]}\n{m[2]}```", part)
        for out, part in outside_fences(text)
    )


def exported(stub: str) -> list[tuple[str, str]]:
    """(module below `mirage`, name) of all that `mirage/__init__.pyi` exports; `mirage.verify` is the function."""
    found = []
    for node in ast.parse(stub).body:
        if isinstance(node, ast.ImportFrom):
            found += [(node.module or "api", alias.name) for alias in node.names]
    return found


def reference_pages(stub: str) -> dict[str, str]:
    """The pages of the reference, by path: every exported name on one of them, in the order of their modules."""
    whole_modules = {n for _, shown in MODULES.values() for n in shown}
    names = [(module, name) for module, name in exported(stub) if module not in whole_modules]
    pages: dict[str, str] = {}
    for page, (title, modules) in REFERENCE.items():
        mine = [
            n for n in names if any(n[0] == m or ((m.endswith(".") or not m) and n[0].startswith(m)) for m in modules)
        ]
        names = [n for n in names if n not in mine]
        if mine:
            pages[f"reference/{page}.md"] = _reference(title, [f"{module}.{name}" for module, name in mine])
    for page, (title, whole) in MODULES.items():
        pages[f"reference/{page}.md"] = _reference(title, whole)
    return pages


def _reference(title: str, names: Sequence[str]) -> str:
    return "\n\n".join([f"# {title}", *(f"::: mirage.{name}" for name in names)]) + "\n"


def slug(text: str) -> str:
    """A text as part of an address."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")


def machine_pages(data: Mapping[str, Mapping[str, Sequence[Mapping[str, Any]]]]) -> dict[str, str]:
    """A page per machine of the stored measurements, by path, with all their rows; `data` is that of `docs/benchmarks.json`."""
    machines = dict.fromkeys(m for part in data.values() for m in part)
    pages = {}
    for machine in machines:
        lines = [
            f"# {machine}", "",
            "What was measured on this machine, as it is stored: rows of `docs/benchmarks.json`, which `make bench` writes. "
            "Members of rows that are tables of their own are there only. [Benchmarks](../benchmarks.md) says what each part is, "
            "and under which conditions it was measured.",
        ]  # fmt: skip
        for part, by_machine in data.items():
            if rows := by_machine.get(machine):
                lines += ["", f"## {part[0].upper()}{part[1:]}", "", *_table(rows)]
        pages[f"machines/{slug(machine)}.md"] = "\n".join(lines) + "\n"
    return pages


def stored() -> Any:
    """The stored measurements."""
    return json.loads((DOCS / "benchmarks.json").read_text(encoding="utf-8"))


def _table(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    # what holds tables of its own fits no cell
    names = [
        n for n in dict.fromkeys(n for r in rows for n in r) if not any(isinstance(r.get(n), dict | list) for r in rows)
    ]
    numbers = {n for n in names if all(isinstance(r.get(n), int | float | None) for r in rows)}
    yield "| " + " | ".join(n.replace("_", " ") for n in names) + " |"
    yield "| " + " | ".join("---:" if n in numbers else "---" for n in names) + " |"
    for r in rows:
        yield "| " + " | ".join(_cell(r.get(n)) for n in names) + " |"


def _cell(value: Any) -> str:
    if value is None or value == "":
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:,.4g}" if abs(value) < 1e4 else f"{value:,.0f}"
    if isinstance(value, int):
        return f"{value:,}"
    return str(value).replace("|", "\\|").replace("\n", " ")


def pages() -> dict[str, tuple[str, Path]]:
    """Every page that is not a file of `docs/`, by its path in the site: its text, and the folder that its links start from."""
    found = {
        to: ((ROOT / name).read_text(encoding="utf-8"), ROOT) for name, to in OUTSIDE.items() if (ROOT / name).is_file()
    }
    stub = (ROOT / "mirage" / "__init__.pyi").read_text(encoding="utf-8")
    made = reference_pages(stub) | machine_pages(stored())
    return found | {path: (text, DOCS) for path, text in made.items()}
