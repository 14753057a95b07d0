"""Decoding of texts, JSON and arrays from another machine.

Claimed sizes are checked against the bytes that are present before anything is converted, so that no message can cause
a large allocation. No expression is evaluated and nothing is unpickled.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NoReturn, TypeVar

import numpy as np
import torch
from flwr.app import Array
from torch import Tensor

from coterie.errors import InputError

MOST_TEXT = 200
"""Largest number of characters of an id or a name."""
MOST_REASON = 300
"""Largest number of characters of another machine's text that a note repeats."""
MOST_DIMENSIONS = 16
"""Largest number of axes of an array."""
KINDS: Mapping[str, torch.dtype] = {
    "<f8": torch.float64,
    "<f4": torch.float32,
    "<i8": torch.int64,
    "|b1": torch.bool,
    "|u1": torch.uint8,
}
"""Types of arrays by numpy's codes; arrays of bytes contain other arrays."""
STORED: Mapping[str, torch.dtype] = {
    "F64": torch.float64,
    "F32": torch.float32,
    "I64": torch.int64,
    "BOOL": torch.bool,
}
"""Types of arrays by the names of safetensors."""
NAMES = tuple(str(kind).removeprefix("torch.") for kind in STORED.values())

_MAGIC = b"\x93NUMPY\x01\x00"
_MOST_HEADER = 1024
_HEADER = re.compile(
    r"\{'descr': '([<>|=][A-Za-z]\d{0,4})' ?, 'fortran_order': (False|True), 'shape': \(([0-9, ]*)\), \} *\n"
)

Read = TypeVar("Read")


class MissingPluginError(InputError):
    """Error for a valid message that names a member of a plugin which is not loaded here."""


def reading(read: Callable[[], Read], what: str) -> Read:
    """Return the value of `read`, and turn every error that it raises into an InputError with one sentence.

    Args:
        read: Function that decodes a message.
        what: Kind of the message, for the error.

    Raises:
        InputError: for every error but MissingPluginError, which is raised unchanged.
    """
    try:
        return read()
    except MissingPluginError:
        raise
    except KeyError as error:
        raise InputError(f"{what} was expected, but {one_line(str(error))} is missing") from None
    except Exception as error:  # MemoryError and RecursionError included: no message may stop its reader
        why = one_line(str(error)) or type(error).__name__
        raise InputError(f"{what} was expected, but the message cannot be read: {why}") from None


def one_line(text: str) -> str:
    """Return the last line of a text, with unprintable characters replaced, cut to a length suitable for a note."""
    lines = text.strip().splitlines()
    line = "".join(c if c.isprintable() else "?" for c in lines[-1].strip()) if lines else ""
    return line if len(line) <= MOST_REASON else f"{line[:MOST_REASON]}..."


def check_texts(values: Iterable[object], what: str) -> tuple[str, ...]:
    """Return the values as a tuple of texts; raise ValueError unless each is short, printable and not empty."""
    found: list[str] = []
    for value in values:
        if not isinstance(value, str) or not 0 < len(value) <= MOST_TEXT or not value.isprintable():
            raise ValueError(f"{what} must be texts of 1 to {MOST_TEXT} printable characters, got {shown(value)}")
        found.append(value)
    return tuple(found)


def shown(value: object) -> str:
    """Return a short printable text for any value."""
    if isinstance(value, int) and abs(value) > 10**30:  # writing it out may take longer than reading the message
        return f"a number of {value.bit_length()} bits"
    text = ascii(value) if isinstance(value, str | int | float | None) else type(value).__name__
    return text if len(text) <= 60 else f"{text[:60]}..."


def is_count(value: object, low: int, high: int) -> bool:
    """Return whether a value is an int in this range; True and False are not."""
    return isinstance(value, int) and not isinstance(value, bool) and low <= value <= high


def read_json(text: str, most: int, *, constants: bool = False) -> Any:
    """Return the value of a JSON text of at most `most` characters; `constants` allows NaN and Infinity."""
    if len(text) > most:
        raise ValueError(f"the header has {len(text)} characters, but at most {most} were expected")
    return json.loads(text) if constants else json.loads(text, parse_constant=_no_constant)


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")


def read_array(name: str, array: Array) -> Tensor:
    """Return an array in numpy's format, of a type that messages may contain."""
    if array.stype != "numpy.ndarray" or not isinstance(array.data, bytes):
        raise ValueError(f"array {name!r} must be a numpy.ndarray, got {shown(array.stype)}")
    if array.data[: len(_MAGIC)] != _MAGIC:
        raise ValueError(f"array {name!r} does not start like numpy's format 1.0")
    start = 10 + int.from_bytes(array.data[8:10], "little")
    header = array.data[10 : min(start, 10 + _MOST_HEADER)].decode("latin1")
    found = _HEADER.fullmatch(header)
    if found is None or found[2] == "True":
        raise ValueError(f"array {name!r} must have a numpy header and C order, got {shown(header)}")
    if found[1] not in KINDS:
        raise ValueError(f"array {name!r} must be one of {', '.join(NAMES)}, got {found[1]}")
    shape = tuple(int(part) for part in found[3].replace(" ", "").split(",") if part and len(part) <= 18)
    if len(shape) != sum(bool(part.strip()) for part in found[3].split(",")):
        raise ValueError(f"array {name!r} claims the shape ({shown(found[3])})")
    return _from_bytes(name, memoryview(array.data)[start:], shape, KINDS[found[1]])


def read_together(name: str, array: Array) -> dict[str, Tensor]:
    """Return the named arrays of a safetensors file that was sent as one array of bytes."""
    held = read_array(name, array)
    if held.dtype != torch.uint8 or held.dim() != 1:
        raise ValueError(f"array {name!r} must be bytes")
    data = memoryview(held.numpy().tobytes())
    start = 8 + int.from_bytes(data[:8], "little")
    if not 8 < start <= len(data):
        raise ValueError(f"array {name!r} has {len(data)} bytes, but its header claims to end at {start}")
    listed = read_json(bytes(data[8:start]).decode(), len(data))
    if not isinstance(listed, dict):
        raise ValueError(f"array {name!r} must list its parts by name")
    body = data[start:]
    return {part: _stored(part, entry, body) for part, entry in listed.items() if part != "__metadata__"}


def _stored(name: str, entry: Mapping[str, Any], body: memoryview) -> Tensor:
    kind, shape, (begin, end) = entry["dtype"], tuple(entry["shape"]), entry["data_offsets"]
    if kind not in STORED:
        raise ValueError(f"array {name!r} must be one of {', '.join(NAMES)}, got {shown(kind)}")
    if not is_count(end, 0, len(body)) or not is_count(begin, 0, end):
        raise ValueError(f"array {name!r} claims bytes that are not present")
    return _from_bytes(name, body[begin:end], shape, STORED[kind])


def _from_bytes(name: str, data: memoryview, shape: tuple[int, ...], kind: torch.dtype) -> Tensor:
    """Return a copy of the data as an array of this shape, which must need exactly these bytes."""
    if len(shape) > MOST_DIMENSIONS or not all(is_count(length, 0, 2**40) for length in shape):
        raise ValueError(f"array {name!r} claims an impossible shape")
    if math.prod(shape) * kind.itemsize != len(data):
        raise ValueError(f"array {name!r} claims shape {shape}, which does not fit its {len(data)} bytes")
    if math.prod(length for length in shape if length) > 2**48:
        raise ValueError(f"array {name!r} is empty, but claims shape {shape}")
    plain = torch.frombuffer(bytearray(data), dtype=torch.uint8) if len(data) else torch.zeros(0, dtype=torch.uint8)
    if kind == torch.bool and len(plain) and int(plain.max()) > 1:
        raise ValueError(f"array {name!r} has bytes that are neither true nor false")
    return plain.view(kind).reshape(shape)


def as_bytes(data: bytes) -> Array:
    """Return bytes as the array that `read_together` reads."""
    return Array(np.frombuffer(data, dtype=np.uint8))
