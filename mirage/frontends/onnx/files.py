"""Models from files, checked before anything is made of them: nothing outside of a model's folder is read, and no array is larger
than what the file holds.
"""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import DecodeError, Message
from onnx import GraphProto, ModelProto, TensorProto, checker, external_data_helper, helper

from mirage.errors import FormatError, InputError, UnsupportedNode

#: opsets of ONNX's own operators that are known
OPSETS = range(1, 29)
#: bytes of a model without its external data: protocol buffers hold no more
MAX_BYTES = 2 << 30


def load_model(path: str | os.PathLike[str]) -> ModelProto:
    """The checked model of a file, with its external data, which has to be in the folder of the file or below.

    Raises InputError if it cannot be read, FormatError for what is no valid model, UnsupportedNode for operators of an unknown
    version.
    """
    where = Path(path)
    try:
        if where.stat().st_size > MAX_BYTES:
            raise InputError(f"{where}: it is larger than {MAX_BYTES} bytes; keep its weights as external data")
        content = where.read_bytes()
    except OSError as e:
        raise InputError(f"{where}: cannot be read: {e.strerror}") from None
    try:
        model = ModelProto.FromString(content)
    except DecodeError:
        raise FormatError(f"{where}: it is no ONNX model, or damaged; export it again") from None
    # names are looked at before any of them is made a path
    _check_text(model, str(where))
    for tensor in _tensors(model):
        if tensor.data_location == TensorProto.EXTERNAL:
            _read_external(tensor, where)
    return _checked(model, str(where))


def checked_model(model: ModelProto, what: str) -> ModelProto:
    """The model, if it is a valid one that holds all of its data.

    Raises FormatError and UnsupportedNode, which begin with `what`.
    """
    _check_text(model, what)
    return _checked(model, what)


def _checked(model: ModelProto, what: str) -> ModelProto:
    for tensor in _tensors(model):
        if tensor.data_location == TensorProto.EXTERNAL:
            raise FormatError(f"{what}: tensor {tensor.name!r} is in another file; pass the path of the model's file")
        _check_size(tensor, what)
    try:
        checker.check_model(model)
    except Exception as e:
        text = " ".join(str(e).split())
        raise FormatError(f"{what}: it is no valid model: {text[:400]}") from None
    versions = {o.domain: o.version for o in model.opset_import}
    version = versions.get("", versions.get("ai.onnx", 1))
    if version not in OPSETS and any(n.domain in ("", "ai.onnx") for n in model.graph.node):
        raise UnsupportedNode(
            f"{what}: its operators are of opset {version}; {OPSETS[0]} to {OPSETS[-1]} are known: export it for one of them"
        )
    return model


def _check_text(message: Message, what: str) -> None:
    """Raise FormatError for a name or another text of a model that is not UTF-8, which protocol buffers give as bytes."""
    for field, is_text, is_repeated in _text_fields(message.DESCRIPTOR):
        if not is_repeated and not message.HasField(field):
            continue
        found: Any = getattr(message, field)
        for x in found if is_repeated else (found,):
            if not is_text:
                _check_text(x, what)
            elif isinstance(x, bytes):
                raise FormatError(
                    f"{what}: a {field} of a {message.DESCRIPTOR.name}, {x[:40]!r}, is no UTF-8; export it again"
                )


@cache
def _text_fields(descriptor: Descriptor) -> list[tuple[str, bool, bool]]:
    """The fields of a kind of message that are text, or messages: whether they are text, and whether there may be several."""
    kinds = {FieldDescriptor.TYPE_STRING: True, FieldDescriptor.TYPE_MESSAGE: False}
    return [(f.name, kinds[f.type], f.is_repeated) for f in descriptor.fields if f.type in kinds]


def _tensors(model: ModelProto) -> Iterator[TensorProto]:
    """All tensors of a model: initializers, and constants among attributes."""

    def of_nodes(nodes: object) -> Iterator[TensorProto]:
        for n in nodes:  # type: ignore[attr-defined]
            for a in n.attribute:
                if a.HasField("t"):
                    yield a.t
                yield from a.tensors
                for s in (*((a.sparse_tensor,) if a.HasField("sparse_tensor") else ()), *a.sparse_tensors):
                    yield s.values
                    yield s.indices
                for g in (*((a.g,) if a.HasField("g") else ()), *a.graphs):
                    yield from of_graph(g)

    def of_graph(graph: GraphProto) -> Iterator[TensorProto]:
        yield from graph.initializer
        for s in graph.sparse_initializer:
            yield s.values
            yield s.indices
        yield from of_nodes(graph.node)

    yield from of_graph(model.graph)
    for f in model.functions:
        yield from of_nodes(f.node)


def _read_external(tensor: TensorProto, model: Path) -> None:
    """Read the data of a tensor from its file."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            info = external_data_helper.ExternalDataInfo(tensor)
    except ValueError as e:
        raise FormatError(f"{model}: tensor {tensor.name!r}: {e}") from None
    folder = model.parent.resolve()
    named = folder / info.location
    data = named.resolve()
    if (
        not info.location
        or os.path.isabs(info.location)
        or not data.is_relative_to(folder)
        or data != Path(os.path.abspath(named))
    ):
        raise FormatError(
            f"{model}: the data of tensor {tensor.name!r} is in {info.location!r}, outside of its folder, or behind a link"
        )
    if not data.is_file():
        raise InputError(f"{data}: no such file; it holds tensor {tensor.name!r} of {model.name}")
    offset, size = info.offset or 0, data.stat().st_size
    length = info.length if info.length is not None else size - offset
    if offset < 0 or length < 0 or offset + length > size:
        raise FormatError(
            f"{model}: tensor {tensor.name!r} is bytes {offset} to {offset + length} of {data.name}, which has {size}"
        )
    with data.open("rb") as file:
        file.seek(offset)
        tensor.raw_data = file.read(length)
    tensor.data_location = TensorProto.DEFAULT
    del tensor.external_data[:]


def _check_size(tensor: TensorProto, what: str) -> None:
    """Raise FormatError for a tensor of more elements than there is data for."""
    if any(d < 0 for d in tensor.dims):
        raise FormatError(f"{what}: tensor {tensor.name!r} has the dims {list(tensor.dims)}")
    count = math.prod(tensor.dims)
    if not tensor.HasField("raw_data"):
        held = max(
            len(getattr(tensor, f))
            for f in ("float_data", "int32_data", "int64_data", "double_data", "uint64_data", "string_data")
        )
        # four-bit and two-bit elements share numbers
        if held * 16 < count:
            raise FormatError(f"{what}: tensor {tensor.name!r} has {count} elements, and data of {held}")
        return
    try:
        bits = 8 * helper.tensor_dtype_to_np_dtype(tensor.data_type).itemsize
    except (KeyError, ValueError, TypeError):
        raise FormatError(f"{what}: tensor {tensor.name!r} is of the unknown element type {tensor.data_type}") from None
    if (8 * len(tensor.raw_data) + bits - 1) // max(bits, 1) * 16 < count or (
        bits >= 16 and len(tensor.raw_data) * 8 != count * bits
    ):
        raise FormatError(f"{what}: tensor {tensor.name!r} has {count} elements, and {len(tensor.raw_data)} bytes")
