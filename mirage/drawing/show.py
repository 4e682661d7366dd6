"""How objects show themselves: one function, `show`, with which the modules that draw a class register what they draw."""

from __future__ import annotations

from dataclasses import dataclass
from functools import singledispatch
from importlib import import_module
from typing import Any, ClassVar

from mirage.errors import InputError


@dataclass(frozen=True)
class View:
    """What an object looks like: a picture as an SVG document, text as HTML without scripts, or both; None for what it lacks."""

    svg: str | None = None
    html: str | None = None


class Displayed:
    """A class whose objects notebooks display as `show` has them: `class Graph(Displayed, drawn_by="package.draw")`.

    The module `drawn_by` registers the class with `show`. It is imported when the first of the objects is shown, so that a
    class costs nothing to draw until then.
    """

    _drawn_by: ClassVar[str] = ""

    def __init_subclass__(cls, drawn_by: str = "", **more: Any) -> None:
        super().__init_subclass__(**more)
        if drawn_by:
            cls._drawn_by = drawn_by

    def _repr_svg_(self) -> str | None:
        return show(self).svg

    def _repr_html_(self) -> str | None:
        return show(self).html

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        """The text beside the picture, for front ends without pictures: that of `print`."""
        printer.text("..." if cycle else str(self))


@singledispatch
def show(thing: object) -> View:
    """The view of a program, muGraph, search, certificate, result or executable, or of anything else that is registered.

    Raises InputError for a thing of any other class.
    """
    if isinstance(thing, Displayed) and thing._drawn_by:
        import_module(thing._drawn_by)
        registered = show.dispatch(type(thing))
        if registered is not show.dispatch(object):
            return registered(thing)
    raise InputError(f"{type(thing).__name__} objects have no view; register one with mirage.drawing.show.show.register")


def picture(thing: object) -> str:
    """The SVG document of a thing; raises InputError, as `show` does, where it has none."""
    svg = show(thing).svg
    if svg is None:
        raise InputError(f"{thing}: there is no graph to draw")
    return svg
