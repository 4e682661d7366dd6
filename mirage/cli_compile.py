"""The command `mirage compile`."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from inspect import signature
from pathlib import Path
from types import FunctionType
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mirage.cli_shared import AsJson, check_writable, err, out, print_json, sizes_of, tell
from mirage.drawing.show import picture
from mirage.errors import DimError, InputError, MirageError, TraceError
from mirage.folders import read_text, save_file
from mirage.frontends.files import load_member
from mirage.frontends.functions import GraphFunction
from mirage.frontends.spec import TensorFunction
from mirage.ir.graph.deduce import located
from mirage.ir.graph.nodes import Module
from mirage.progress import bars

if TYPE_CHECKING:
    from mirage.runtime.executable import Executable
    from mirage.torch.model import CompiledModel


def compile_(
    what: Annotated[
        str,
        typer.Argument(
            metavar="PROGRAM",
            help="FILE.py:function, of a program, or of a function that gives a model of PyTorch and the arguments of a call; "
            "an ONNX model; a module's text, or a saved executable.",
        ),
    ],
    bound: Annotated[
        list[str] | None,
        typer.Option(help="Largest size of a dim, NAME=SIZE, or a range, NAME=LOW:HIGH; for models NAME is ARGUMENT.DIM."),
    ] = None,
    set_: Annotated[list[str] | None, typer.Option("--set", help="Size of a dim to tune at: NAME=SIZE.")] = None,
    constant: Annotated[list[str] | None, typer.Option(help="A parameter whose contents never change.")] = None,
    budget: Annotated[float, typer.Option(help="Seconds for superoptimizing all subprograms together.")] = 60.0,
    without: Annotated[
        list[str] | None, typer.Option(help="Leave an optimization out: merge, fold, superoptimize, libraries, fuse, plan.")
    ] = None,
    weights: Annotated[
        str, typer.Option(help="How weights of products are stored: float32, bfloat16, int8, int8/32, int8/128, int8/dynamic.")
    ] = "float32",
    target: Annotated[
        str, typer.Option(help="What to compile for: cpu, cuda, or an architecture such as cuda:sm_90.")
    ] = "cpu",
    seed: Annotated[int, typer.Option(help="Seed of every random choice.")] = 0,
    no_cache: Annotated[bool, typer.Option("--no-cache", help="Neither read nor write the results store.")] = False,
    print_after: Annotated[list[str] | None, typer.Option(help="Print the module after this pass, or all.")] = None,
    as_json: AsJson = False,
    save: Annotated[Path | None, typer.Option(help="Write the executable, or the compiled model, to this file.")] = None,
    svg: Annotated[Path | None, typer.Option(help="Draw what runs to this file.")] = None,
) -> None:
    """Compile a whole program for all sizes of its dims, and explain what was made of it."""
    from mirage.compilation import compile as compile_program
    from mirage.compilation import load_executable

    check_writable("--save", save)
    check_writable("--svg", svg)
    if _is_executable(what):
        given = {
            "--bound": bound,
            "--set": set_,
            "--constant": constant,
            "--without": without,
            "--print-after": print_after,
        }
        for option, value in given.items():
            if value:
                raise InputError(
                    f"{what}: {option} has no meaning for a program that is compiled already; compile its source"
                )
        executable = load_executable(what)
    else:
        source = what if what.endswith(".onnx") else load_source(what)
        if isinstance(source, FunctionType):
            unused = {"--set": set_, "--constant": constant, "--svg": svg}
            if meant := [option for option, value in unused.items() if value]:
                raise InputError(f"{what}: {meant[0]} has no meaning for a model of PyTorch; leave it out")
            with _printed_after(print_after or []):
                model = _compiled_model(
                    what, source, bounds=_model_bounds(bound or []), target=target, budget=budget,
                    without=tuple(without or ()), weights=weights, cache=not no_cache, seed=seed,
                )  # fmt: skip
            if save is not None:
                model.save(save)
            _report(model, as_json)
            return
        with _printed_after(print_after or []), bars(err) as say:
            executable = compile_program(
                source,
                bounds=_bounds(bound or []),
                sizes=sizes_of("--set", set_ or []) or None,
                constants=tuple(constant or ()),
                target=target,
                budget=budget,
                without=tuple(without or ()),
                weights=weights,
                cache=not no_cache,
                seed=seed,
                progress=say,
            )
        if what.endswith(".onnx"):
            _explain_model(what, executable, save, svg, as_json)
            return
        if executable.interrupted:
            tell("interrupted; what was found by then is used, and what was finished is in the cache")
    _write(executable, save, svg)
    _report(executable, as_json)


def _report(compiled: Executable | CompiledModel, as_json: bool) -> None:
    if as_json:
        print_json(compiled.to_json())
    else:
        out.print(compiled.explain(), end="", highlight=False, soft_wrap=True)


def load_source(text: str) -> Callable[..., Any] | Module:
    """What `FILE.py:function` names, or a module's text. A Python file is the user's own code and is imported; a plain function
    without parameters is one that gives a model.

    Raises InputError naming the path, TraceError if it is something else, ParseError and others for a text that is no module.
    """
    from mirage.compilation import to_module

    path, _, name = text.partition(":")
    if path.endswith(".py"):
        hint = "decorate the function with @mirage.function(...) or @mirage.program(...), which give the types of its parameters"
        kinds = (GraphFunction, TensorFunction, Module)
        found: Callable[..., Any] | Module = load_member(Path(path), name, (*kinds, FunctionType), hint, offered=kinds)
        if isinstance(found, FunctionType) and signature(found).parameters:
            raise TraceError(
                f"{path}:{name} is a function with parameters; {hint}, or let a function without any give a model of PyTorch and "
                "the arguments of a call"
            )
        return found
    if not Path(text).is_file():
        raise InputError(f"{text}: no such file; pass FILE.py:function, a module's text, or a saved executable")
    try:
        return to_module(read_text(Path(text), "a module's text or a saved executable"), None)
    except MirageError as e:
        raise located(e, text) from None


def _compiled_model(what: str, make: Callable[[], Any], **options: Any) -> Any:
    """The compiled model that a user's function gives, after a call with the arguments that it gives beside."""
    model, args, kwargs = load_model(what, make)
    import torch

    import mirage.torch

    run = mirage.torch.compile(model, background=False, strict=True, **options)
    with torch.no_grad():
        run(*args, **kwargs)
    return run


def load_model(what: str, make: Callable[[], Any]) -> tuple[Callable[..., Any], Sequence[Any], dict[str, Any]]:
    """The model that a user's function gives, and the arguments of a call; raises InputError where it gives something else."""
    try:
        import torch  # noqa: F401

        made = make()
    except MirageError:
        raise
    except ImportError as e:
        raise InputError(f"{what}: {e}; install what it needs") from e
    except Exception as e:
        raise InputError(f"{what}: calling it failed: {type(e).__name__}: {e}") from e
    if not isinstance(made, tuple) or len(made) != 2 or not callable(made[0]):
        raise InputError(f"{what}: it gives a {type(made).__name__}; let it give (model, arguments of a call)")
    model, arguments = made
    args, kwargs = ((), arguments) if isinstance(arguments, dict) else (arguments, {})
    return model, (args if isinstance(args, tuple | list) else (args,)), kwargs


def _explain_model(what: str, model: Any, save: Path | None, svg: Path | None, as_json: bool) -> None:
    """Print what was made of an ONNX model, write it and draw it."""
    if len(model.programs) != 1:
        deciding = ", ".join(model.deciding)
        raise InputError(f"{what}: programs are made at calls, one for each set of values of {deciding}; compile it in Python")
    (program,) = model.programs
    if save is not None:
        model.save(save)
    _write(program.executable, None, svg)
    _report(model, as_json)


def _model_bounds(pairs: list[str]) -> dict[str, dict[int, int | tuple[int, int]]]:
    """Bounds of a model's arguments, of such as `input_ids.1=512`."""
    bounds: dict[str, dict[int, int | tuple[int, int]]] = {}
    for name, bound in _bounds(pairs).items():
        argument, _, dim = name.rpartition(".")
        if not argument or not dim.isdecimal():
            raise DimError(f"--bound {name}: write ARGUMENT.DIM=SIZE for a model, such as --bound input_ids.1=512")
        bounds.setdefault(argument, {})[int(dim)] = bound
    return bounds


def _is_executable(text: str) -> bool:
    return Path(text).is_file() and zipfile.is_zipfile(text)


def _bounds(pairs: list[str]) -> dict[str, int | tuple[int, int]]:
    bounds: dict[str, int | tuple[int, int]] = {}
    for pair in pairs:
        name, _, value = pair.partition("=")
        numbers = [n.strip() for n in value.split(":")]
        if len(numbers) > 2 or not all(n.isdecimal() for n in numbers):
            raise DimError(f"--bound {pair!r}: write NAME=SIZE or NAME=LOW:HIGH, such as --bound t=4096")
        low, high = int(numbers[0]), int(numbers[-1])
        bounds[name.strip()] = high if len(numbers) == 1 else (low, high)
    return bounds


@contextmanager
def _printed_after(passes: list[str]) -> Iterator[None]:
    """The setting `MIRAGE_PRINT_AFTER`, if there are passes."""
    before = os.environ.get("MIRAGE_PRINT_AFTER")
    if passes:
        os.environ["MIRAGE_PRINT_AFTER"] = ",".join(passes)
    try:
        yield
    finally:
        if before is not None:
            os.environ["MIRAGE_PRINT_AFTER"] = before
        elif passes:
            del os.environ["MIRAGE_PRINT_AFTER"]


def _write(executable: Executable, save: Path | None, svg: Path | None) -> None:
    if save is not None:
        executable.save(save)
    if svg is not None:
        save_file(svg, picture(executable))
