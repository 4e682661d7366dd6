"""The documentation is run: its Python in order, its command lines, its links.

In a fence, the words after the language say what a block is:

| fence | meaning |
| --- | --- |
| `python` | runs after the file's earlier blocks, in one process per file, in a temporary folder |
| `python file=NAME` | is written to that file first, for the command lines and imports of the page |
| `text output` | is what the Python block before it prints; `...` stands for any text |
| `sh` | every line that begins with `mirage` parses |
| `sh run` | every line that begins with `mirage` runs, after the Python blocks, and exits with 0 |

With `needs=PACKAGE` at the end, a block is there only where that package is installed, and with `slow` only where slow tests run:
what it shows has tests that take less.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from mirage.cli import app
from tests import forks
from tests.api.small import limit_tuning

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
#: pages whose blocks are fragments or belong to the test suite
NOT_RUN = {"CONTRIBUTING.md"}
MARK = "\x1e block "
#: what a page says does not depend on how many kernels are tried
FIRST = "from tests.api.small import limit_tuning\nlimit_tuning()"
#: packages that take seconds to import -> what pages that import them need of them
IMPORTED = {
    "torch": ("torch._dynamo.convert_frame", "torch.export._trace", "mirage.torch.dynamo"),
    "transformers": ("transformers.models.bert.modeling_bert", "transformers.models.llama.modeling_llama"),
}

_FENCE = re.compile(r"^```(?P<info>[^\n`]*)\n(?P<body>.*?)^```$", re.MULTILINE | re.DOTALL)
_CODE = re.compile(r"`[^`\n]+`")
_LINK = re.compile(r"!?\[[^\]]*\]\((?P<to>[^)\s]+)\)")


@dataclass(frozen=True)
class Block:
    """A fenced block: the words of its fence, its text, its first line in the page."""

    words: tuple[str, ...]
    body: str
    line: int


def blocks(page: Path, *, slow: bool = True) -> list[Block]:
    """The blocks of a page whose packages are installed, with or without those that are slow."""
    text = page.read_text(encoding="utf-8")
    found = []
    for m in _FENCE.finditer(text):
        words = m["info"].split()
        needs = [w.removeprefix("needs=") for w in words if w.startswith("needs=")]
        if all(find_spec(package) is not None for package in needs) and (slow or "slow" not in words):
            kept = tuple(w for w in words if w != "slow" and not w.startswith("needs="))
            found.append(Block(kept, m["body"], text.count("\n", 0, m.start()) + 2))
    return found


def python_blocks(page: Path, *, slow: bool = True) -> list[Block]:
    return [b for b in blocks(page, slow=slow) if b.words == ("python",)]


def command_lines(page: Path, *, run_only: bool) -> Iterator[list[str]]:
    for b in blocks(page):
        if b.words[:1] == ("sh",) and (not run_only or "run" in b.words):
            for line in b.body.replace("\\\n", " ").splitlines():
                words = shlex.split(line, comments=True)
                if words and Path(words[0]).name == "mirage":
                    yield words[1:]


def matches(wanted: str, found: str) -> bool:
    """Whether an output is the one that a page shows, in which `...` is any text."""
    pattern = ".*".join(re.escape(part) for part in wanted.strip().split("..."))
    return re.fullmatch(pattern, "\n".join(line.rstrip() for line in found.strip().splitlines()), re.DOTALL) is not None


def store_of(folder: Path) -> str:
    """The results store of a page; compiled kernels are shared."""
    return f"sqlite:///{folder}/results.sqlite"


def modules(script: str) -> list[str]:
    """What a process has that runs a script: one that has PyTorch is another one, as arrays and threads are others there."""
    if not re.search(rf"^import .*\b({'|'.join(IMPORTED)})\b", script, re.MULTILINE):
        return []
    return [m for package in IMPORTED if find_spec(package) is not None for m in IMPORTED[package]]


def run(page: Path, folder: Path, slow: bool) -> dict[int, str]:
    """What each Python block of a page prints, by the block's line."""
    for b in blocks(page):
        if b.words[:1] == ("python",) and len(b.words) > 1:
            (folder / b.words[1].removeprefix("file=")).write_text(b.body, encoding="utf-8")
    script = folder / "page.py"
    code = [f"print({MARK + str(b.line)!r}, flush=True)\n{b.body}" for b in python_blocks(page, slow=slow)]
    script.write_text("\n".join([FIRST, *code]), encoding="utf-8")
    env = {**os.environ, "PYTHONPATH": str(ROOT), "MIRAGE_CACHE_URL": store_of(folder)}
    done = forks.run(script, env=env, cwd=folder, modules=modules(script.read_text(encoding="utf-8")))
    assert done.returncode == 0, f"{page.name}, after line {done.stdout.rpartition(MARK)[2][:4]}:\n{done.stderr}"
    parts = (part.partition("\n") for part in done.stdout.split(MARK)[1:])
    return {int(line): text for line, _, text in parts}


RUN = [pytest.param(p, False, id=p.name) for p in PAGES if p.name not in NOT_RUN]
RUN += [
    pytest.param(p, True, id=f"{p.name}, all of it", marks=pytest.mark.slow)
    for p in PAGES
    if p.name not in NOT_RUN and len(blocks(p)) > len(blocks(p, slow=False))
]


@pytest.mark.parametrize(("page", "slow"), RUN)
def test_a_page_runs_and_prints_what_it_shows(
    page: Path, slow: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    printed = run(page, tmp_path, slow)
    latest: int | None = None
    for b in blocks(page, slow=slow):
        if b.words == ("python",):
            latest = b.line
        elif b.words == ("text", "output"):
            assert latest is not None, f"{page.name}:{b.line}: no Python block before this output"
            assert matches(b.body, printed[latest]), (
                f"{page.name}:{b.line}: the block at line {latest} prints\n{printed[latest]}"
            )
    limit_tuning(monkeypatch.setattr)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MIRAGE_CACHE_URL", store_of(tmp_path))
    for words in command_lines(page, run_only=True):
        result = CliRunner().invoke(app, words)
        assert result.exit_code == 0, f"{page.name}: mirage {shlex.join(words)}\n{result.output}{result.exception}"


def parse(words: list[str]) -> None:
    """Parse a command line without running it; raises what the command line would report."""
    if words == ["--help"]:
        return
    command, name = typer.main.get_command(app), "mirage"
    parent = None
    while True:
        context = command.make_context(name, list(words), parent=parent)
        rest = [*context._protected_args, *context.args] if hasattr(context, "_protected_args") else context.args
        if not hasattr(command, "resolve_command"):
            return
        found, child, words = command.resolve_command(context, rest)
        assert found is not None and child is not None
        name, command, parent = found, child, context


LINES = [(p.name, words) for p in PAGES for words in command_lines(p, run_only=False)]


@pytest.mark.parametrize(("page", "words"), LINES, ids=[f"{name}: {shlex.join(w)}" for name, w in LINES])
def test_command_lines_parse(page: str, words: list[str]) -> None:
    parse(words)


@pytest.mark.parametrize("words", [["superoptimize"], ["show", "--sgv", "x", "y"], ["search"], ["cache", "drop"]])
def test_wrong_command_lines_do_not_parse(words: list[str]) -> None:
    with pytest.raises(Exception, match=r"Missing parameter|No such option|No such command"):
        parse(words)


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_links_lead_somewhere(page: Path) -> None:
    text = _CODE.sub("", _FENCE.sub("", page.read_text(encoding="utf-8")))
    for m in _LINK.finditer(text):
        path, _, anchor = m["to"].partition("#")
        if "://" in path:
            continue
        target = page.parent / path if path else page
        assert target.exists(), f"{page.name}: {m['to']} does not exist"
        if anchor:
            headings = re.findall(r"^#+ (.*)$", target.read_text(encoding="utf-8"), re.MULTILINE)
            anchors = {re.sub(r"[^\w\- ]", "", h.lower()).replace(" ", "-") for h in headings}
            assert anchor in anchors, f"{page.name}: {m['to']}: no such heading"


def test_every_fence_is_one_of_the_known_kinds() -> None:
    known = {(), ("python",), ("text",), ("text", "output"), ("sh",), ("sh", "run"), ("c",), ("toml",)}
    for page in PAGES:
        for b in blocks(page):
            kind = ("python",) if b.words[:1] == ("python",) and b.words[1:2] and "file=" in b.words[1] else b.words
            assert kind in known, f"{page.name}:{b.line}: a fence of {b.words}"


def test_a_block_that_needs_what_is_not_installed_is_left_out(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("```python needs=pytest\n1\n```\n```python needs=no_such_package\n2\n```\n")
    assert blocks(page) == [Block(("python",), "1\n", 2)]


def test_outputs_are_compared() -> None:
    assert matches("a ... c\n", "a b c")
    assert not matches("a ... d\n", "a b c")
    assert not matches("a\n", "a\nb")


def test_every_page_is_in_the_index() -> None:
    index = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    for page in (ROOT / "docs").glob("*.md"):
        assert page.name == "index.md" or f"({page.name})" in index, f"docs/index.md does not link {page.name}"


@pytest.mark.parametrize("folder", ["mirage", "mirage/results", "kernels", "search"])
def test_the_tables_of_files_name_them_all(folder: str) -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    table = text.partition(f"The files of `{folder}/`")[2].partition("\n\n")[2].partition("\n\n")[0]
    # of every row, the first cell
    named = [name for row in table.splitlines() for name in re.findall(r"`(\w+\.py)`", row.split("|")[1])]
    assert sorted(named) == sorted({p.name for p in (ROOT / folder).glob("*.py")} - {"__init__.py"})
