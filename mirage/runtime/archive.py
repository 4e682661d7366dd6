"""Archives: what was compiled, in one file with its arrays. A file is a zip of a JSON head, members of bytes, and a digest."""

from __future__ import annotations

import hashlib
import json
import os
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import Any, TypeVar

from mirage.errors import FormatError, InputError, MirageError
from mirage.ir.codec import EXECUTABLE, ONNX_MODEL, TORCH_MODEL, Form, parse_json

T = TypeVar("T")

_DIGEST = "digest"
#: what reads each kind of file
_READERS = {EXECUTABLE: "mirage.load_executable", TORCH_MODEL: "mirage.torch.load", ONNX_MODEL: "mirage.onnx.load"}
#: what reading a file that is no archive, or an altered one, may raise beside our own errors; RuntimeError is raised for
#: encrypted members, unknown compressions, and JSON that is nested too deeply
_DAMAGED = (
    zipfile.BadZipFile, zlib.error, EOFError, KeyError, IndexError, TypeError, ValueError, AttributeError, RuntimeError,
)  # fmt: skip


def pack(form: Form, head: Any, members: Mapping[str, bytes]) -> bytes:
    """The content of a file with this head, a dataclass."""
    found = {_head(form): json.dumps(form.to_json(head), indent=1).encode(), **members}
    memory = BytesIO()
    with zipfile.ZipFile(memory, "w", zipfile.ZIP_STORED) as archive:
        for name, content in (*found.items(), (_DIGEST, digest(found).encode())):
            archive.writestr(name, content)
    return memory.getvalue()


def unpack(form: Form, kind: type[T], file: str | os.PathLike[str] | BytesIO) -> tuple[T, dict[str, bytes]]:
    """The head and the members of a file that `pack` made, to be called in `reading`."""
    with zipfile.ZipFile(file) as archive:
        for other, reader in _READERS.items():
            if other is not form and _head(other) in archive.namelist():
                if other.names(parse_json(archive.read(_head(other)))):
                    raise FormatError(f"a {other.name}, not a {form.name}; pass it to {reader}")
        data = parse_json(archive.read(_head(form)))
        if not form.names(data):
            raise FormatError(f"not a {form.name}; pass a file that save() wrote")
        members = {name: archive.read(name) for name in archive.namelist() if name != _DIGEST}
        if archive.read(_DIGEST) != digest(members).encode():
            raise FormatError(f"altered, or damaged, since it was saved; {form.remedy}")
    return form.from_json(kind, data), members


def _head(form: Form) -> str:
    """The member that holds the head, such as "executable.json"."""
    return f"{form.noun}.json"


@contextmanager
def reading(form: Form, path: str | Path) -> Iterator[None]:
    """Errors of what is made of a file name it: InputError where it cannot be read, FormatError where it is damaged, and those of
    the package.
    """
    try:
        yield
    except OSError as e:
        raise InputError(f"{path}: cannot be read ({e.strerror}); pass a file that save() wrote") from None
    except MirageError as e:
        raise type(e)(f"{path}: {e}") from None
    except _DAMAGED as e:
        raise FormatError(f"{path}: not a {form.name}, or damaged ({e}); {form.remedy}") from None


def digest(members: Mapping[str, bytes]) -> str:
    """What tells a saved file from an altered one, of its members in order.

    It is no signature: who alters a file may compute it anew. Then still no kernel computes anything but its operators, nor
    reads or writes outside of its tensors; but the program may be another one.
    """
    found = hashlib.sha256()
    for name, content in members.items():
        found.update(f"{name} {len(content)} ".encode())
        found.update(content)
    return found.hexdigest()
