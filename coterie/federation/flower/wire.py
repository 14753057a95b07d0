"""Messages as Flower's records: named arrays in one ArrayRecord, the rest in one ConfigRecord; nothing is pickled.

::

    RecordDict
      "arrays"  ArrayRecord   "params/weight", "slotted/clusters/change/weight", ... as numpy writes them
                              "small": all arrays of a few kB together, the bytes of a safetensors file
      "config"  ConfigRecord  "format": 2, "task": the task's name, "header": the rest as one JSON text

The names of arrays and the header are those of `core/messages.py`. Every message has the plain type `train`: mods see
no other, and the task's name is in the config.

Flower hands every array on by requests of its own, two from each process to the next; ten numbers cost as many as a
megabyte does. So small arrays travel in one.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from safetensors import SafetensorError
from safetensors.torch import load as safetensors_load
from safetensors.torch import save as safetensors_save
from torch import Tensor

from coterie.core.messages import (
    Broadcast,
    Parts,
    Reply,
    Task,
    broadcast_of,
    broadcast_parts,
    reply_of,
    reply_parts,
)
from coterie.core.population import Profile
from coterie.core.shard import ClientId
from coterie.errors import InputError
from coterie.federation.flower.terms import Terms

FORMAT = 2
"""Of the messages; nodes and server must have the same."""
HELLO = "hello"
"""The one task that is no client's: who lives at this node?"""
ARRAYS, CONFIG = "arrays", "config"
DTYPES = ("float64", "float32", "int64", "bool")
"""Of the arrays that messages hold."""
SMALL = "small"
"""The array that holds the small ones."""
FEW_BYTES = 16 * 1024
"""Of an array that travels with others."""
NAMES = "arrays"
"""In the header: the names of all arrays, since their order counts."""

READING = (
    KeyError, IndexError, TypeError, ValueError, AttributeError, RuntimeError, EOFError, OSError, SafetensorError
)  # fmt: skip
"""What may happen to who reads what a stranger has sent."""

Read = TypeVar("Read")


@dataclass(frozen=True)
class Request:
    """What a node is asked to do for some of its clients."""

    terms: Terms
    task: Task
    broadcast: Broadcast
    clients: tuple[ClientId, ...]
    """Whom it is about, in the order of the broadcast's rows."""
    keep_from: tuple[int, ...]
    """The round of each that its oldest kept state must be of; -1: keep all."""


@dataclass(frozen=True)
class Answer:
    """What a node says when it has done so."""

    reply: Reply
    lost: tuple[ClientId, ...] = ()
    """Who should have kept a state and has none, and so began anew."""


@dataclass(frozen=True)
class Hosted:
    """The clients of one node, and what a server may know of their data."""

    clients: tuple[ClientId, ...]
    train: tuple[int, ...]
    """n_i, before anything is held out."""
    test: tuple[int, ...]
    """Test samples of each; 0 where there are none."""
    profile: Profile = field(default_factory=lambda: Profile((), None))


def hello_content() -> RecordDict:
    """The question who lives at a node."""
    return _packed(HELLO, ({}, {}))


def hosted_content(hosted: Hosted) -> RecordDict:
    """The answer to it."""
    header = {
        "clients": hosted.clients,
        "train": hosted.train,
        "test": hosted.test,
        "features": hosted.profile.features,
        "classes": hosted.profile.classes,
    }
    return _packed(HELLO, (header, {}))


def read_hosted(content: RecordDict) -> Hosted:
    """The inverse of `hosted_content`; what cannot be so is refused."""
    header, _ = _unpacked(content, HELLO)

    def read() -> Hosted:
        clients, train, test = (tuple(header[name]) for name in ("clients", "train", "test"))
        if not len(clients) == len(train) == len(test) == len(set(clients)):
            raise ValueError(f"{len(clients)} ids, {len(train)} and {len(test)} sizes, or an id that comes twice")
        if not all(isinstance(c, str) for c in clients) or not all(_counts(n, 1) for n in train):
            raise ValueError("ids must be text, and every client must have training samples")
        if not all(_counts(n, 0) for n in test):
            raise ValueError("the number of test samples must be a number from 0 on")
        features, classes = tuple(header["features"]), header["classes"]
        if not all(_counts(n, 1) for n in features) or not (classes is None or _counts(classes, 1)):
            raise ValueError(f"features {features!r} and classes {classes!r} must be numbers from 1 on")
        return Hosted(clients, train, test, Profile(features, classes))

    return _read(read, "ids, sizes and shapes of the clients of a node")


def request_content(request: Request, packed: dict[Tensor, Array] | None = None) -> RecordDict:
    """A request as records.

    packed: the arrays of other messages of the same exchange; it is added to. So models that go to many nodes are held
        and hashed once.
    """
    header, arrays = broadcast_parts(request.broadcast)
    header |= {
        "terms": request.terms.plain(),
        "settings": dict(request.task.settings),
        "clients": request.clients,
        "keep_from": request.keep_from,
    }
    return _packed(request.task.name, (header, arrays), packed)


def task_of(content: RecordDict) -> str:
    """The name of the task of a request."""
    return _config(content)[0]


def read_request(content: RecordDict) -> Request:
    """The inverse of `request_content`."""
    name = task_of(content)
    header, arrays = _unpacked(content, name)

    def read() -> Request:
        clients, keep_from = tuple(header["clients"]), tuple(header["keep_from"])
        if len(clients) != len(keep_from):
            raise ValueError(f"{len(clients)} clients but {len(keep_from)} rounds to keep from")
        terms, task = Terms.read(header["terms"]), Task(name, header["settings"])
        return Request(terms, task, broadcast_of(header, arrays), clients, keep_from)

    return _read(read, f"a request for task {name}")


def answer_content(task: str, answer: Answer) -> RecordDict:
    """An answer as records."""
    header, arrays = reply_parts(answer.reply)
    return _packed(task, (header | {"lost": answer.lost}, arrays))


def read_answer(content: RecordDict, task: str) -> Answer:
    """The inverse of `answer_content`; `task` is what was asked."""
    header, arrays = _unpacked(content, task)

    def read() -> Answer:
        answer = Answer(reply_of(header, arrays), tuple(header["lost"]))
        texts = (*answer.reply.clients, *answer.reply.rejected, *answer.reply.paths, *answer.lost)
        if not all(isinstance(text, str) for text in texts):
            raise ValueError("ids and paths must be text")
        return answer

    return _read(read, f"an answer to task {task}")


# ---- records --------------------------------------------------------------------------------------------------


def _packed(task: str, parts: Parts, packed: dict[Tensor, Array] | None = None) -> RecordDict:
    header, arrays = parts
    packed = {} if packed is None else packed
    small = {name: a.detach().cpu().contiguous().clone() for name, a in arrays.items() if a.nbytes <= FEW_BYTES}
    record = ArrayRecord()  # which would copy what it is made from, and with that forget its hashes
    for name, a in arrays.items():
        if name not in small:
            record[name] = packed[a] if a in packed else packed.setdefault(a, Array(_contiguous(a)))
    if small:
        record[SMALL] = Array(np.frombuffer(safetensors_save(small), dtype=np.uint8))
    text = json.dumps({**header, NAMES: list(arrays)})
    config = ConfigRecord({"format": FORMAT, "task": task, "header": text})
    return RecordDict({ARRAYS: record, CONFIG: config})


def _contiguous(array: Tensor) -> npt.NDArray[np.generic]:
    values = array.detach().cpu().numpy()
    return np.ascontiguousarray(values).reshape(values.shape)  # which makes an array of a number


def _unpacked(content: RecordDict, task: str) -> Parts:
    found, header = _config(content)
    if found != task:
        raise InputError(f"a message for task {task!r} was expected, but one for {found!r} has come: drop it")
    arrays = content.get(ARRAYS)
    if not isinstance(arrays, ArrayRecord):
        raise InputError(f"a message must have an ArrayRecord named {ARRAYS!r}, but this one has {_names(content)}")
    found_arrays = {name: _tensor(name, array) for name, array in arrays.items() if name != SMALL}
    if SMALL in arrays:
        found_arrays |= _small(arrays[SMALL])
    return header, _read(
        lambda: {name: found_arrays[name] for name in header[NAMES]}, "arrays as the header lists them"
    )


def _config(content: RecordDict) -> tuple[str, dict[str, Any]]:
    """The task's name and the header."""
    config = content.get(CONFIG)
    if not isinstance(config, ConfigRecord):
        raise InputError(f"a message must have a ConfigRecord named {CONFIG!r}, but this one has {_names(content)}")
    if config.get("format") != FORMAT:
        raise InputError(
            f"messages here have format {FORMAT}, but this one has {config.get('format')!r}: install the same version "
            "of coterie on the server and on every node"
        )
    task, text = config.get("task"), config.get("header")
    if not isinstance(task, str) or not isinstance(text, str):
        raise InputError(f"a message must name its task and have a header, but this one has {sorted(config)}")
    header = _read(lambda: json.loads(text), "a JSON header")
    if not isinstance(header, dict):
        raise InputError(f"the header of a message must be a JSON object, got {type(header).__name__}")
    return task, header


def _tensor(name: str, array: Array) -> torch.Tensor:
    """The array, if it is of a kind that messages hold; numpy reads it and never unpickles."""
    values = _read(array.numpy, f"array {name!r}")
    if values.dtype.name not in DTYPES or not values.dtype.isnative:
        raise InputError(f"array {name!r} must be one of {', '.join(DTYPES)}, got {values.dtype}")
    return torch.from_numpy(values)


def _small(array: Array) -> dict[str, Tensor]:
    """The small arrays; safetensors never unpickles either."""
    found: dict[str, Tensor] = _read(lambda: safetensors_load(array.numpy().tobytes()), f"array {SMALL!r}")
    for name, value in found.items():
        kind = str(value.dtype).removeprefix("torch.")
        if kind not in DTYPES:
            raise InputError(f"array {name!r} must be one of {', '.join(DTYPES)}, got {kind}")
    return found


def _read(read: Callable[[], Read], what: str) -> Read:
    """What `read` gives; what it stumbles over becomes one sentence."""
    try:
        return read()
    except READING as error:
        missing = f"{error} is missing" if isinstance(error, KeyError) else str(error) or type(error).__name__
        raise InputError(f"{what} was expected, but what came cannot be read: {missing}") from None


def _names(content: Mapping[str, object]) -> str:
    return ", ".join(f"{name!r} ({type(record).__name__})" for name, record in content.items()) or "nothing"


def _counts(value: object, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least
