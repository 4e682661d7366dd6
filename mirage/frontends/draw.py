"""Functions over tensors, shown as the programs that they are traced to."""

from __future__ import annotations

from mirage.drawing.show import View, show
from mirage.frontends.spec import TensorFunction


@show.register
def _(function: TensorFunction) -> View:
    return show(function.trace())
