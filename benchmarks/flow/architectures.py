"""Every architecture of transformers that can be made small: whether it compiles, is right, and how fast it is.

`python -m benchmarks.run architectures`, or `python -m benchmarks.flow.architectures [--only NAME] [--json] [--markdown]`.
Each is built from its configuration with small sizes and random weights, called once with random arguments, compared with eager
PyTorch, and raced with it, in a process of its own: what takes too long, or brings the process down, is a row like the others.
Small models show what runs, and what a call costs beside its products; times of models as large as users have them are in the
other parts.
"""

from __future__ import annotations

import inspect
import multiprocessing
import re
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from statistics import geometric_mean
from typing import Any

import torch
import transformers
import typer
from torch.utils import _pytree as pytree
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_MAPPING_NAMES

import mirage.torch
from benchmarks.command import command
from benchmarks.flow.exported import first_line
from benchmarks.peers.peers import complain
from benchmarks.tables import Table
from benchmarks.timing import race
from mirage.errors import InputError
from mirage.settings import num_threads

#: seconds for an architecture, and of a race
LIMIT, SECONDS = 120.0, 0.3
#: seconds in which a process that has told its row ends
_END = 5.0
#: weights, at most, and the most of a row of tokens
_WEIGHTS, _BATCH, _TOKENS, _TARGETS, _SAMPLES = 250e6, 2, 12, 7, 8000

#: names of sizes in a configuration, and the most that these are: where all are small, and where others have to fit each other
_DEPTH: Mapping[str, int] = {
    r"(?!.*(shared|codebook|feat_extract|conv)).*_?(layers?|blocks)$": 2,
    r".*vocab_size$": 200,
    r"(num|n)_.*experts?$": 4,
}
_WIDTH: Mapping[str, int] = {
    r"(hidden_size|d_model|n_embd|embed_dim|embedding_size|hidden_dim|dim|(de|en)coder_hidden_size)$": 64,
    r"(.*intermediate_size|.*ffn_dim|n_inner|.*d_ff|.*mlp_dim|.*ffn_hidden_size)$": 128,
    r".*(key_value|kv).*heads$": 2,
    r".*(heads|n_head)$": 4,
    r"(head_dim|d_kv|attention_head_size)$": 16,
    r"(max_position_embeddings|n_positions)$": 512,
}
#: what says of sizes again, or of other things, and is made anew
_DERIVED = ("architectures", "attn_implementation", "layer_types", "mlp_layer_types", "transformers_version", "_name_or_path")


@dataclass(frozen=True)
class ArchitectureRow:
    """An architecture by its `model_type`: medians in ms of a call in eager PyTorch and of ours, seconds of our first call, of
    which all but tracing is ours, operators, and how many of these are calls of ATen's own.

    `error` is the largest difference from eager PyTorch as a share of the largest element. `why` says why PyTorch runs it
    instead, or what went wrong; `None` where a program runs.
    """

    name: str
    eager_ms: float = 0.0
    ours_ms: float = 0.0
    first_s: float = 0.0
    operators: int = 0
    fallbacks: int = 0
    error: float = 0.0
    why: str | None = None


class _NotSmall(Exception):
    """An architecture that cannot be built small and called by what is known of it."""


def measure(names: Sequence[str] = (), say: Callable[[str], None] = complain) -> Iterator[ArchitectureRow]:
    """The rows of these architectures, of all if none is named; raises InputError for a name of nothing.

    Those that cannot be built small, or draw random numbers, have no row.
    """
    known = sorted(MODEL_MAPPING_NAMES.keys() & CONFIG_MAPPING.keys())
    if unknown := [n for n in names if n not in known]:
        raise InputError(f"no architecture is named {', '.join(unknown)}; choose from {', '.join(known)}")
    processes = multiprocessing.get_context("forkserver")
    processes.set_forkserver_preload([__name__])
    for name in names or known:
        ours, theirs = processes.Pipe(duplex=False)
        process = processes.Process(target=_told, args=(name, theirs))
        process.start()
        theirs.close()
        found: dict[str, Any]
        try:
            if not ours.poll(LIMIT):
                process.kill()
                found = {"name": name, "why": f"not done after {LIMIT:.0f} s"}
            else:
                found = ours.recv()
        except EOFError:
            found = {"name": name, "why": "its process ended"}
        process.join(_END)
        process.kill()
        process.join()
        if "skipped" in found:
            say(f"{name} is left out: {found['skipped']}")
            continue
        row = ArchitectureRow(**found)
        say(f"{name}: {row.why or f'{row.eager_ms:.2f} ms, ours {row.ours_ms:.2f}'}")
        yield row


def _told(name: str, to: Connection) -> None:
    """Measure one in a process of its own, and tell its row, or why it has none."""
    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity_error()
    torch.set_num_threads(num_threads())
    try:
        found = vars(_measured(name))
    except _NotSmall as e:
        found = {"skipped": str(e)}
    except Exception as e:  # of packages that are no part of this project, or of ours: anything
        found = {"name": name, "why": first_line(e)}
    to.send(found)


def _measured(name: str) -> ArchitectureRow:
    with torch.no_grad():
        model, arguments = _small(name)
        wanted = _tensors(model(**arguments))
        if any(not torch.equal(a, b) for a, b in zip(wanted, _tensors(model(**arguments)), strict=True)):
            raise _NotSmall("its results differ from call to call")
        compiled = mirage.torch.compile(model, without=("superoptimize",))
        start = time.perf_counter()
        found = compiled(**arguments)
        first = time.perf_counter() - start
        error = max(map(_difference, _tensors(found), wanted), default=0.0)
        # the second call prepares what later ones launch
        compiled(**arguments)
        times = race({"eager": lambda: model(**arguments), "ours": lambda: compiled(**arguments)}, seconds=SECONDS)
        milliseconds = {n: t.median_us / 1e3 for n, t in times.items()}
        native = sum(p.imported.native.total() for p in compiled.programs)
        fallbacks = sum(p.imported.fallback.total() for p in compiled.programs)
        why = next(iter(compiled.eager), None)
        return ArchitectureRow(
            name, milliseconds["eager"], milliseconds["ours"], first, native + fallbacks, fallbacks, error, why
        )  # fmt: skip


def _small(name: str) -> tuple[Any, dict[str, Any]]:
    """A small model of an architecture, and arguments that it takes; raises _NotSmall."""
    kind = CONFIG_MAPPING[name]
    why = "it has no default configuration"
    for limits in ({**_WIDTH, **_DEPTH}, _DEPTH):
        try:
            config = kind(**_shrunk(kind().to_dict(), limits))
            classes = MODEL_MAPPING_NAMES[name]
            made = getattr(transformers, classes if isinstance(classes, str) else classes[0])
            with torch.device("meta"):
                weights = sum(p.numel() for p in made(config).parameters())
            if weights > _WEIGHTS:
                raise _NotSmall(f"it has {weights / 1e6:.0f} million weights")
            torch.manual_seed(0)
            model = made(config).eval()
        except Exception as e:  # of a configuration whose sizes do not fit each other: anything
            why = first_line(e)
            continue
        for arguments in _arguments(model, config):
            try:
                model(**arguments)
                return model, arguments
            except Exception as e:  # of arguments that are not those that it wants: anything
                why = first_line(e)
    raise _NotSmall(why)


def _shrunk(values: Mapping[str, Any], limits: Mapping[str, int]) -> dict[str, Any]:
    """A configuration's values with sizes within limits, and token numbers within the vocabulary."""
    found: dict[str, Any] = {}
    for key, value in values.items():
        if key in _DERIVED:
            continue
        if isinstance(value, dict) and ("model_type" in value or key.endswith("_config")):
            value = _shrunk(value, limits)
        elif key == "depths":
            value = [min(n, 2) for n in value]
        elif isinstance(value, int) and not isinstance(value, bool):
            most = next((n for pattern, n in limits.items() if re.match(pattern, key)), value)
            value = min(value, most)
            if re.search(r"token_(id|index)$", key):
                value = min(value, _DEPTH[r".*vocab_size$"] - 1 - len(key) % 20)
        found[key] = value
    return found


def _arguments(model: Any, config: Any) -> Iterator[dict[str, Any]]:
    """What a model may want to be called with, by its main input."""
    generator = torch.Generator().manual_seed(0)
    taken = set(inspect.signature(model.forward).parameters)
    text, vision, audio = (getattr(config, f"{part}_config", None) or config for part in ("text", "vision", "audio"))
    vocabulary = min(getattr(text, "vocab_size", None) or 100, 160)
    mels = getattr(audio, "num_mel_bins", None) or 80
    frames = 2 * (getattr(config, "max_source_positions", None) or 50)

    def numbers(*shape: int) -> Any:
        return torch.randn(_BATCH, *shape, generator=generator)

    def tokens(count: int) -> Any:
        return torch.randint(min(5, vocabulary - 1), vocabulary, (_BATCH, count), generator=generator)

    def image(*lead: int) -> Any:
        size = getattr(vision, "image_size", None) or 64
        height, width = [size] * 2 if isinstance(size, int) else size.values() if isinstance(size, dict) else size
        return numbers(*lead, getattr(vision, "num_channels", 3) or 3, height, width)

    rest: dict[str, Any] = {"use_cache": False} if "use_cache" in taken else {}
    target = {"decoder_input_ids": tokens(_TARGETS)} if "decoder_input_ids" in taken else {}
    match model.main_input_name:
        case "input_ids":
            if "attention_mask" in taken:
                rest["attention_mask"] = torch.ones(_BATCH, _TOKENS, dtype=torch.long)
            given = {"input_ids": tokens(_TOKENS), **rest, **target}
            if "pixel_values" in taken:
                yield {**given, "pixel_values": image()}
            yield given
        case "pixel_values":
            yield {"pixel_values": image()}
            yield {"pixel_values": image(), "input_ids": tokens(_TOKENS)}
            yield {"pixel_values": image(getattr(config, "num_frames", 8))}
        case "pixel_values_videos":
            yield {"pixel_values_videos": image(getattr(config, "frames_per_clip", None) or 8)}
        case "input_values":
            for shape in ((_SAMPLES,), (1, _SAMPLES), (getattr(config, "max_length", 1024), mels)):
                yield {"input_values": numbers(*shape)}
        case "input_features":
            for shape in ((mels, frames), (frames, mels)):
                yield {"input_features": numbers(*shape), **rest, **target}


def _tensors(result: Any) -> list[Any]:
    return [t for t in pytree.tree_leaves(dict(result)) if isinstance(t, torch.Tensor)]


def _difference(a: Any, b: Any) -> float:
    """The largest difference of two tensors of numbers, as a share of the largest of these."""
    if not b.is_floating_point() or not b.numel():
        return 0.0
    return float((a.double() - b.double()).abs().max() / b.double().abs().max().clamp(min=torch.finfo(b.dtype).tiny))


def summary(rows: Sequence[ArchitectureRow]) -> str:
    """In how many architectures what is true, and the geometric mean of eager PyTorch's time over ours, in words."""
    ran = [r for r in rows if r.why is None]
    native = sum(not r.fallbacks for r in ran)
    ratios = [r.eager_ms / r.ours_ms for r in ran]
    slower = sum(r < 1 for r in ratios)
    mean = geometric_mean(ratios) if ratios else float("nan")
    return (
        f"{len(rows)} architectures: {len(ran)} are programs, {native} of them without a call of ATen's own; the geometric mean "
        f"of eager PyTorch's time over ours is {mean:.2f}, and {slower} are slower than eager."
    )


def architecture_table(rows: Sequence[ArchitectureRow]) -> Table:
    """A line for each that PyTorch runs, in whole or in part, or faster than we do."""
    lines = []
    for r in rows:
        slower = r.why is None and r.ours_ms > r.eager_ms
        if r.why or r.fallbacks or slower:
            times = [f"{r.eager_ms:.2f}", f"{r.ours_ms:.2f}"] if r.why is None else ["", ""]
            lines.append([r.name, *times, str(r.operators or ""), str(r.fallbacks or ""), (r.why or "").replace("|", "\\|")])
    return Table(["median, ms", "PyTorch", "ours", "operators", "ATen's", "in PyTorch, as"], lines)


def section(rows: Sequence[ArchitectureRow]) -> str:
    """The part of the page of benchmarks."""
    return f"{summary(rows)}\n\n{architecture_table(rows).markdown()}"


main = command(
    "Every architecture of transformers that can be made small: whether it compiles, is right, and how fast.",
    "An architecture, such as 'bert'", measure, section, architecture_table,
)  # fmt: skip


if __name__ == "__main__":
    typer.run(main)
