"""The command line: `mirage demo | superoptimize | compile | show | verify | cache | settings | jobs`.

Errors are one line and exit code 2; `--debug` shows the traceback.
"""

from __future__ import annotations

import math
import sys
import warnings
from collections.abc import Iterable
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

import mirage.api as api
from mirage.cli_cache import app as cache_app
from mirage.cli_compile import compile_
from mirage.cli_jobs import app as jobs_app
from mirage.cli_settings import settings
from mirage.cli_shared import AsJson, check_writable, err, out, print_json, sizes_of, tell
from mirage.drawing.show import picture
from mirage.drawing.show import show as show_view
from mirage.errors import DimError, InputError, MirageError, MirageWarning, TraceError
from mirage.folders import save_file
from mirage.frontends.spec import TensorFunction
from mirage.frontends.upstream import UpstreamFile
from mirage.ir.codec import read_json
from mirage.ir.program import Program
from mirage.kernels.decision import leaves
from mirage.mugraph.files import load_mugraph
from mirage.mugraph.graph import MuGraph
from mirage.mugraph.parse import is_mugraph
from mirage.progress import bars
from mirage.results.cpu.result import Superoptimized
from mirage.results.evidence import Verdict
from mirage.results.page import explore
from mirage.results.ranked import Ranked
from mirage.results.result import Result
from mirage.search.decision import Version
from mirage.verify.certificate import power_text

app = typer.Typer(help=__doc__, no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)
app.add_typer(cache_app, name="cache")
app.add_typer(jobs_app, name="jobs")
app.command("compile")(compile_)
app.command()(settings)
_debug = {"on": False}


def _show_version(wanted: bool) -> None:
    if wanted:
        print(version("mirage-superoptimizer"))
        raise typer.Exit


@app.callback()
def _options(
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
    _: Annotated[
        bool, typer.Option("--version", help="Show the version of the package.", callback=_show_version, is_eager=True)
    ] = False,
) -> None:
    _debug["on"] = debug


def load_target(text: str) -> TensorFunction | Program | api.TargetResult:
    """What `FILE.py:function`, a saved result, a program text file or a program's JSON names.

    A Python file is the user's own code and is imported; nothing else is run. Raises InputError naming the path.
    """
    from mirage.frontends.files import load_function, load_program

    path, _, name = text.partition(":")
    if path.endswith(".py"):
        function = load_function(Path(path), name)
        try:
            if isinstance(function, TensorFunction):
                function.trace()
        except MirageError:
            raise
        except Exception as e:
            raise TraceError(f"{text}: tracing it failed: {type(e).__name__}: {e}") from e
        return function
    if not Path(text).is_file():
        raise InputError(f"{text}: no such file; pass FILE.py:function, a program's text, or a saved result")
    obj = load_program(Path(text))
    return api.load(text) if obj is None else obj


def result_json(result: api.TargetResult) -> dict[str, Any]:
    """The figures of a result, for programs."""
    if not isinstance(result, Superoptimized):
        return _ranked_json(result)
    return {
        "program": result.program.name,
        "target": result.target.name,
        "sizes": result.sizes,
        "all_sizes": result.anchors,
        "threads": result.threads,
        **_search_json(result),
        "best": result.best.kind,
        "best_kernels": len(result.best.graph.kernels) if result.best.graph else 0,
        # there may have been no time to measure it
        "reference_us": reference.median_us if (reference := result.baselines.get("reference")) else None,
        "library_us": result.baselines["library"].median_us,
        "best_us": result.best.timing.median_us,
        "limit_us": result.limit_us,
        "accuracy": [asdict(a) for a in result.accuracy],
        "compiled_versions": sum(v.candidate is not None for v in result.versions),
        "versions": [_version_json(at, result.versions[number]) for at, number in leaves(result.decision.tree)],
        "tune_stop": result.tune_stop,
        "cache_hit": result.cache_hit,
    }


def _search_json(result: api.TargetResult) -> dict[str, Any]:
    """The figures of the search and the verification."""
    stats = result.stats
    return {
        "search_seconds": round(result.seconds.get("search", 0.0), 4),
        "verify_seconds": round(result.seconds.get("verify", 0.0), 4),
        "tune_seconds": round(result.seconds.get("tune", 0.0), 4),
        "prefixes": stats.prefixes,
        "checks": stats.checks,
        "candidates": result.candidates,
        "verified": len(result.graphs),
        "verified_by_kernels": {
            str(n): sum(len(c.graph.kernels) == n for c in result.graphs)
            for n in sorted({len(c.graph.kernels) for c in result.graphs})
        },
        "proved": sum(c.certificate.proof == "proved" for c in result.graphs),
        "stop_reason": stats.stop_reason,
        "interrupted": result.interrupted,
        "certificate": result.certificate.to_json(),
    }


def _ranked_json(result: Ranked) -> dict[str, Any]:
    decision = result.decision
    return {
        "program": result.program.name,
        "target": result.target,
        "device": result.device_name,
        "measured_on": decision.measured_on or None,
        "sizes": result.sizes,
        "all_sizes": result.anchors,
        **_search_json(result),
        "best": "mugraph",
        "best_kernels": len(result.best.graph.kernels) if result.best.graph else 0,
        "best_us": result.best_us,
        "limit_us": result.floor_us,
        "compiled_versions": len(decision.versions),
        "versions": [
            {
                "at": at,
                "kind": "mugraph",
                "kernels": len(result.versions[k].executable.mugraph.kernels),
                "tuned_for": dict(result.versions[k].sizes),
                "us": decision.points[0].times[k] if decision.points[0].times[k] < math.inf else None,
            }
            for at, k in leaves(decision.tree)
        ],
        "tune_stop": result.tune_stop,
        "cache_hit": result.cache_hit,
    }


def _version_json(at: str, version: Version) -> dict[str, Any]:
    """A version, and the sizes at which it runs."""
    c = version.candidate
    return {
        "at": at,
        "kind": version.kind,
        "kernels": len(c.graph.kernels) if c else 0,
        "tuned_for": dict(c.sizes) if c else None,
        "us": version.timing.median_us,
    }


@app.command()
def superoptimize(
    what: Annotated[str, typer.Argument(metavar="FILE.py:function", help="The program.")],
    set_: Annotated[list[str] | None, typer.Option("--set", help="Size of a dim: NAME=SIZE.")] = None,
    sizes: Annotated[
        list[str] | None, typer.Option(help="Named set of sizes of the program; several are all tuned for.")
    ] = None,
    budget: Annotated[float, typer.Option(help="Seconds for search, verification and tuning.")] = 30.0,
    pruner: Annotated[str, typer.Option(help="normal-form, smt or none.")] = "normal-form",
    max_kernels: Annotated[int, typer.Option(help="Kernels of a graph at most.")] = 5,
    target: Annotated[
        str, typer.Option(help="What to compile for: cpu, cuda, or an architecture such as cuda:sm_90.")
    ] = "cpu",
    seed: Annotated[int, typer.Option(help="Seed of every random choice.")] = 0,
    more: Annotated[bool, typer.Option("--more", help="Go on with what was kept, for all of the budget.")] = False,
    no_cache: Annotated[bool, typer.Option("--no-cache", help="Neither read nor write the results store.")] = False,
    as_json: AsJson = False,
    save: Annotated[Path | None, typer.Option(help="Write the result to this file.")] = None,
    svg: Annotated[Path | None, typer.Option(help="Draw the best graph to this file.")] = None,
) -> None:
    """Search, verify and tune a program, and report what was found."""
    check_writable("--save", save)
    check_writable("--svg", svg)
    program = load_target(what)
    given = sizes_of("--set", set_ or [])
    sets: list[dict[str, int]] = [{}]
    if isinstance(program, Result):
        sets = program.anchors
        program = program.program
    if sizes:
        sets = [_named_sizes(program, name) for name in sizes]
    with bars(err) as say:
        result = api.superoptimize(
            program, target=target, sizes=[one | given for one in sets], budget=budget, cache=not no_cache, seed=seed,
            progress=say, pruner=None if pruner == "none" else pruner, max_kernels=max_kernels, more=more,
        )  # fmt: skip
    if result.interrupted:
        tell("interrupted; this is what was found by then")
    if save is not None:
        result.save(save)
    drawing = show_view(result.best).svg
    if svg is not None and drawing is not None:
        save_file(svg, drawing)
    if as_json:
        print_json(result_json(result))
        return
    out.print(result.report())
    out.print(str(result.certificate), highlight=False, soft_wrap=True)


def _named_sizes(program: Any, name: str) -> dict[str, int]:
    sets = getattr(program, "sizes", {})
    if not isinstance(sets, dict) or name not in sets:
        raise DimError(f"--sizes {name!r}: the program has no such set; it has {', '.join(sets) or 'none'}")
    return dict(sets[name])


@app.command()
def show(
    what: Annotated[str, typer.Argument(help="FILE.py:function, a program's text, or a saved result.")],
    svg: Annotated[Path | None, typer.Option(help="Draw the program, or the best graph of a saved result, to this file.")] = None,
    html: Annotated[Path | None, typer.Option(help="Write a page to this file, in which a browser explores the search.")] = None,
    source: Annotated[bool, typer.Option("--source", help="Print the C or Triton source of a saved result.")] = False,
    set_: Annotated[list[str] | None, typer.Option("--set", help="With --html, size of a program's dim: NAME=SIZE.")] = None,
    budget: Annotated[float, typer.Option(help="With --html, seconds for superoptimizing a program.")] = 30.0,
    as_json: AsJson = False,
) -> None:
    """Print a program, or the best graph of a saved result."""
    check_writable("--svg", svg)
    check_writable("--html", html)
    thing = load_target(what)
    if set_ and (html is None or isinstance(thing, Result)):
        raise InputError(f"{what}: --set has a meaning for the page of a program only; add --html FILE, or leave it out")
    if html is not None:
        result = thing if isinstance(thing, Result) else _searched(thing, sizes_of("--set", set_ or []), budget)
        explore(result).save(html)
    if isinstance(thing, Result):
        if svg is not None:
            drawing = show_view(thing.best).svg
            if drawing is None:
                assert isinstance(thing, Superoptimized)
                raise InputError(f"{what}: the {thing.best.kind} version is best; there is no graph to draw")
            save_file(svg, drawing)
        if as_json:
            print_json(_shown(thing.program, thing.best.graph, thing.source if source else None))
        else:
            print(thing.source if source else thing.best.graph or thing.program)
        return
    if source:
        raise InputError(f"{what}: only a saved result has a source; save one with superoptimize --save")
    program = thing if isinstance(thing, Program) else thing.trace()
    if svg is not None:
        save_file(svg, picture(program))
    if as_json:
        print_json(_shown(program))
    else:
        print(program)


def _searched(program: TensorFunction | Program, sizes: dict[str, int], budget: float) -> api.TargetResult:
    """What is known of a program, and what so many seconds more find."""
    with bars(err) as say:
        return api.superoptimize(program, sizes=sizes, budget=budget, more=True, progress=say)


def _shown(program: Program, graph: MuGraph | None = None, source: str | None = None) -> dict[str, Any]:
    """What `show` prints, for programs: texts."""
    return {"program": str(program), "graph": str(graph) if graph else None, "source": source}


@app.command()
def verify(
    a: Annotated[str, typer.Argument(metavar="A", help="A program, a saved result, or a muGraph's text.")],
    b: Annotated[str, typer.Argument(metavar="B", help="The same, or an upstream FILE.json or FILE.json#CANDIDATE.")],
    seed: Annotated[int, typer.Option(help="Seed of the random tests.")] = 0,
    as_json: AsJson = False,
) -> None:
    """Do two programs or graphs compute the same? Exit code 0 if so, 1 if not or if it is unknown."""
    left, right = load_side(a), load_side(b)
    if isinstance(left, UpstreamFile):
        left, right = right, left
    if isinstance(right, UpstreamFile):
        if isinstance(left, UpstreamFile | MuGraph):
            raise InputError(
                f"{a} and {b}: candidates of an upstream file need their program; pass the program and one file"
            )
        equal = _print_verdicts(api.verify_file(left, right, seed=seed), str(right.path), as_json)
    else:
        certificate = api.verify(left, right, seed=seed)
        equal = certificate.equal
        if as_json:
            print_json(certificate.to_json())
        else:
            print(certificate)
    if not equal:
        raise typer.Exit(1)


def load_side(text: str) -> Any:
    """What `load_target` loads, a muGraph's text, or the candidates of an upstream file: all, or the one after `#`."""
    name, mark, index = text.rpartition("#")
    one = bool(mark) and index.isdecimal() and not Path(text).is_file()
    path = Path(name if one else text)
    if path.is_file() and path.suffix != ".py":
        begins = _first_character(path)
        if begins == b"[" and isinstance(read_json(path), list):
            return UpstreamFile(path, int(index) if one else None)
        if begins != b"{" and is_mugraph(path.read_text(encoding="utf-8", errors="replace")):
            return load_mugraph(path)
    return load_target(text)


def _first_character(path: Path) -> bytes:
    """The first character of a file that is not a space."""
    with path.open("rb") as file:
        return file.read(64).lstrip()[:1]


def _print_verdicts(verdicts: Iterable[Verdict], title: str, as_json: bool) -> bool:
    """Print a row per candidate, and the explanations of those that are not equal; whether all are."""
    found = list(verdicts)
    if as_json:
        print_json([v.to_json() for v in found])
        return all(v.equal for v in found)
    table = Table(title=title, title_justify="left")
    for column in ("candidate", "kernels", "verdict", "error bound", "running maxima"):
        table.add_column(column)
    for v in found:
        c = v.certificate
        kernels = str(v.kernels) if c else "-"
        bound = power_text(c.error_bound) if c and c.error_bound is not None else "-"
        safe = "-" if c is None else "safe" if c.safe_maximum else "unsafe"
        table.add_row(str(v.index), kernels, v.verdict, bound, safe)
    out.print(table)
    for v in found:
        if v.explanation:
            out.print(
                f"candidate {v.index}, {v.verdict}: {v.explanation}", highlight=False, soft_wrap=True
            )
    return all(v.equal for v in found)


@app.command()
def demo(
    budget: Annotated[float, typer.Option(help="Seconds for each program.")] = 10.0,
    drawings: Annotated[Path, typer.Option(help="Folder for the drawings.")] = Path("demo"),
    as_json: AsJson = False,
) -> None:
    """Superoptimize two attention programs and compare with NumPy and PyTorch; a comparison of the same versions on the same
    machine is shown again, with its date.
    """
    from mirage.demo import run_demo

    rows = []
    for shown in run_demo(err, budget, drawings):
        if as_json:
            drawing = str(shown.drawing) if shown.drawing else None
            measured = {"median_us": shown.median_us, "measured": shown.comparison.measured, "earlier": shown.earlier}
            rows.append({**result_json(shown.result), "drawing": drawing, **measured})
            continue
        out.print(shown.result.report())
        out.print(str(shown.result.certificate), highlight=False, soft_wrap=True)
        if shown.drawing:
            out.print(f"drawing: {shown.drawing}", highlight=False)
        out.print(shown.table())
    if as_json:
        print_json(rows)


def _tell_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: Any = None,
    line: str | None = None,
) -> None:
    """A warning of ours in one line as errors are, where Python names a line of the source; others as Python prints them."""
    if issubclass(category, MirageWarning):
        tell(f"warning: {message}", style="yellow")
    else:
        print(warnings.formatwarning(message, category, filename, lineno, line), end="", file=file or sys.stderr)


def main() -> None:
    """Entry point: MirageErrors, and files that cannot be read or written, become one line on standard error, as warnings do."""
    try:
        with warnings.catch_warnings():
            warnings.showwarning = _tell_warning
            app()
    except (MirageError, OSError) as e:
        if _debug["on"]:
            raise
        tell(str(e), style="red")
        sys.exit(2)
    except SystemExit as e:
        # what an interrupt has become by now
        if e.code == 130:
            tell("interrupted; what was finished is kept, and is not done again")
        raise
