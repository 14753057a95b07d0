"""Messages as Flower's records: named arrays in one ArrayRecord, the rest in one ConfigRecord; nothing is pickled.

::

    RecordDict
      "arrays"  ArrayRecord   "params/weight", "slotted/clusters/change/weight", ... as numpy writes them
                              "small": all arrays of a few kB together, the bytes of a safetensors file
      "config"  ConfigRecord  "format": 6, "task": the task's name, "header": the rest as one JSON text

The names of arrays and the header are those of `core/messages.py`. Every message has the plain type `train`: mods see
no other, and the task's name is in the config.

Flower hands every array on by requests of its own, two from each process to the next; ten numbers cost as many as a
megabyte does. So small arrays travel in one.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from safetensors.torch import save as safetensors_save
from torch import Tensor

import coterie.client.tasks
import coterie.tiers  # noqa: F401 a request names tasks and tier members, which these imports register
from coterie.core.messages import (
    Broadcast,
    Parts,
    Reply,
    broadcast_of,
    broadcast_parts,
    reply_of,
    reply_parts,
)
from coterie.core.plain import NAME, from_plain, to_plain
from coterie.core.registry import UnknownMemberError
from coterie.core.schema import Schema
from coterie.core.shard import ClientId
from coterie.core.task import Task
from coterie.errors import InputError
from coterie.flower.offer import Offer
from coterie.flower.plugins import missing_plugin, origins_of
from coterie.flower.schema import DataSchema
from coterie.flower.terms import Terms
from coterie.flower.untrusted import (
    as_bytes,
    check_texts,
    is_count,
    one_line,
    read_array,
    read_json,
    read_together,
    reading,
    shown,
)

FORMAT = 6
"""Of the messages; nodes and server must have the same."""
HELLO = "hello"
"""The one task that is no client's: who lives at this node?"""
ARRAYS, CONFIG = "arrays", "config"
SMALL = "small"
"""The array that holds the small ones."""
FEW_BYTES = 16 * 1024
"""Of an array that travels with others."""
NAMES = "arrays"
"""In the header: the names of all arrays, since their order counts."""
HEADER, HEADER_PER_CLIENT = 256 * 1024, 4 * 1024
"""Characters that the header of an answer may have: a fixed part, and a part for each client asked."""
HEADER_OF_TABLE = 32 * 2**20
"""Characters that the header of an answer may have more for the summary of a table."""
MOST_BYTES = 2**40
"""Bytes of a request; it holds the models of the run, whatever their size."""
MOST_ARRAYS = 10_000
"""Arrays in one message."""
MOST_PATHS = 16
"""Ways of a learner that one answer names."""
MOST_CLIENTS = 10_000
"""Clients of one node, if nobody says otherwise."""
MOST_SAMPLES = 10**9
"""Samples of one client, if nobody says otherwise."""
MOST_LENGTH = 1e200
"""Squared length of a sample."""
LAST_ROUND = 10**9
"""Largest number of a round."""


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


class Lengths(NamedTuple):
    """Mean squared lengths of the training rows of a node."""

    largest: float
    """Mean over the rows of the client where it is largest."""
    overall: float
    """Mean over all rows."""


@dataclass(frozen=True)
class Hosted:
    """The clients of one node, and what a server may know of their data."""

    clients: tuple[ClientId, ...]
    train: tuple[int, ...]
    """n_i, before anything is held out."""
    test: tuple[int, ...]
    """Test samples of each; 0 where there are none."""
    schema: DataSchema = field(default_factory=DataSchema)
    """Form of their data; unknown as long as there is an offer."""
    offer: Offer | None = None
    """Summary of a table that is not encoded yet, since no schema was agreed on."""
    lengths: Lengths | None = None
    """Lengths of the encoded rows of a table, from which the step size follows; None where nobody may know them."""


@dataclass(frozen=True)
class Hello:
    """The question which clients live at a node."""

    table: Schema | None = None
    """The schema that a table is encoded by; None: none is agreed on yet."""
    summaries: bool = False
    """Whether a node with a table is asked for its summary, or for the lengths of its rows; a question that only asks
    for a sign of life, and one of a private run, does not."""


def hello_content(hello: Hello | None = None) -> RecordDict:
    """Return the question which clients live at a node."""
    asked = Hello() if hello is None else hello
    header = {"table": None if asked.table is None else asked.table.plain(), "summaries": asked.summaries}
    return _packed(HELLO, (header, {}))


def read_hello(content: RecordDict) -> Hello:
    """Return what `hello_content` packed; raise InputError for anything else."""

    def read() -> Hello:
        header = _header(content, HELLO, HEADER_OF_TABLE)
        table = header["table"]
        return Hello(None if table is None else Schema.of_plain(table), header["summaries"] is True)

    return reading(read, "a question which clients live here")


def unfit_content(why: str) -> RecordDict:
    """Return the answer to `hello_content` of a node whose table does not fit the schema."""
    return _packed(HELLO, ({"unfit": why}, {}))


def hosted_content(hosted: Hosted) -> RecordDict:
    """Return the answer to `hello_content`."""
    header = {
        "clients": hosted.clients,
        "train": hosted.train,
        "test": hosted.test,
        "schema": hosted.schema.plain() if hosted.offer is None else None,
        "offer": None if hosted.offer is None else hosted.offer.plain(),
        "lengths": hosted.lengths,
    }
    return _packed(HELLO, (header, {}))


def read_hosted(content: RecordDict, most_clients: int = MOST_CLIENTS, most_samples: int = MOST_SAMPLES) -> Hosted:
    """Return what `hosted_content` packed.

    Raises:
        InputError: for anything that no node can host, and for a table that does not fit the schema.
    """
    most_text = HEADER + HEADER_PER_CLIENT * most_clients + HEADER_OF_TABLE
    header = reading(lambda: _header(content, HELLO, most_text), "an answer to the question which clients live there")
    if "unfit" in header:
        raise InputError(f"has a table that does not fit: {one_line(str(header['unfit'])) or 'no reason given'}")

    def read() -> Hosted:
        clients, train, test = (_listed(header[name], most_clients, name) for name in ("clients", "train", "test"))
        ids = check_texts(clients, "client ids")
        if not 0 < len(ids) == len(train) == len(test) == len(set(ids)):
            raise ValueError(f"{len(ids)} ids, {len(train)} and {len(test)} sizes, or an id that comes twice")
        for what, sizes, low in (("training", train, 1), ("test", test, 0)):
            odd = [size for size in sizes if not is_count(size, low, most_samples)]
            if odd:
                raise ValueError(
                    f"the number of {what} samples must be from {low} to {most_samples}, got {shown(odd[0])}"
                )
        if header["offer"] is not None:
            return Hosted(ids, train, test, offer=Offer.read(header["offer"], ids, train, test))
        return Hosted(ids, train, test, DataSchema.read(header["schema"]), lengths=_lengths(header["lengths"]))

    return reading(read, "ids, sizes and the form of the data of a node's clients")


def _lengths(value: object) -> Lengths | None:
    if value is None:
        return None
    largest, overall = _listed(value, 2, "lengths")
    if not isinstance(largest, float) or not isinstance(overall, float) or not 0 <= overall <= largest <= MOST_LENGTH:
        raise ValueError(f"lengths must be two numbers from 0 to {MOST_LENGTH:g}, got {shown(largest)}")
    return Lengths(largest, overall)


def request_content(request: Request, packed: dict[Tensor, Array] | None = None) -> RecordDict:
    """A request as records.

    packed: the arrays of other messages of the same exchange; it is added to. So models that go to many nodes are held
        and hashed once.
    """
    header, arrays = broadcast_parts(request.broadcast)
    header |= {
        "terms": request.terms.plain(),
        "settings": to_plain(request.task),
        "plugins": origins_of(request.task),
        "clients": request.clients,
        "keep_from": request.keep_from,
    }
    return _packed(request.task.name, (header, arrays), packed)


def task_of(content: RecordDict) -> str:
    """Return the name of the task of a request."""
    return str(_config(content)["task"])


def read_request(content: RecordDict) -> Request:
    """Return what `request_content` packed.

    Raises:
        MissingPluginError: if it names a task or a tier member that is not known here.
        InputError: for anything else that is no request.
    """
    name = task_of(content)

    def read() -> Request:
        header, arrays = _unpacked(content, name, MOST_BYTES, MOST_BYTES, constants=True)
        clients = check_texts(_listed(header["clients"], MOST_BYTES, "clients"), "client ids")
        keep_from = _listed(header["keep_from"], len(clients), "keep_from")
        if len(clients) != len(keep_from) or len(set(clients)) != len(clients):
            raise ValueError(f"{len(clients)} clients but {len(keep_from)} rounds to keep from, or a client twice")
        if not all(is_count(round_, -1, LAST_ROUND) for round_ in (header["round"], *keep_from)):
            raise ValueError(f"rounds must be whole numbers from -1 to {LAST_ROUND}")
        try:
            task = from_plain(Task, {**header["settings"], NAME: name}, "task")
        except UnknownMemberError as error:
            raise missing_plugin(error, dict(header["plugins"])) from None
        return Request(Terms.read(header["terms"]), task, broadcast_of(header, arrays), clients, keep_from)

    return reading(read, f"a request for task {name}")


def answer_content(task: str, answer: Answer) -> RecordDict:
    """An answer as records."""
    header, arrays = reply_parts(answer.reply)
    return _packed(task, (header | {"lost": answer.lost}, arrays))


def read_answer(content: RecordDict, task: str, clients: int = MOST_CLIENTS, most_bytes: int = MOST_BYTES) -> Answer:
    """Return what `answer_content` packed; raise InputError for anything else.

    Args:
        content: The records that a node sent.
        task: Name of the task that it was sent.
        clients: Number of its clients that were asked.
        most_bytes: Largest number of bytes that all arrays of such an answer have.
    """

    def read() -> Answer:
        header, arrays = _unpacked(content, task, HEADER + HEADER_PER_CLIENT * clients, most_bytes)
        listed = {name: _listed(header[name], clients, name) for name in ("clients", "rejected", "lost")}
        ids = {name: check_texts(found, "client ids") for name, found in listed.items()}
        paths = check_texts(_listed(header["paths"], MOST_PATHS, "paths"), "paths")
        slotted = check_texts(_listed(header["slotted"], MOST_ARRAYS, "slotted"), "names of sums")
        reply = reply_of({**header, **ids, "paths": paths, "slotted": slotted}, arrays)
        return Answer(reply, ids["lost"])

    return reading(read, f"an answer to task {task}")


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
        record[SMALL] = as_bytes(safetensors_save(small))
    text = json.dumps({**header, NAMES: list(arrays)})
    config = ConfigRecord({"format": FORMAT, "task": task, "header": text})
    return RecordDict({ARRAYS: record, CONFIG: config})


def _contiguous(array: Tensor) -> npt.NDArray[np.generic]:
    values = array.detach().cpu().numpy()
    return np.ascontiguousarray(values).reshape(values.shape)  # which makes an array of a number


def _unpacked(content: RecordDict, task: str, most_text: int, most_bytes: int, *, constants: bool = False) -> Parts:
    """Return header and arrays of a message for this task that is no larger than expected."""
    header = _header(content, task, most_text, constants=constants)
    record = content.get(ARRAYS)
    if not isinstance(record, ArrayRecord):
        raise InputError(f"a message must have an ArrayRecord named {ARRAYS!r}, but this one has {_names(content)}")
    size = sum(len(array.data) for array in record.values())
    if size > most_bytes or len(record) > MOST_ARRAYS:
        raise InputError(f"{len(record)} arrays have {size} bytes, but at most {most_bytes} bytes were expected")
    names = check_texts(_listed(header[NAMES], MOST_ARRAYS, NAMES), "names of arrays")
    found = {name: read_array(name, array) for name, array in record.items() if name != SMALL}
    if SMALL in record:
        found |= read_together(SMALL, record[SMALL])
    if len(set(names)) != len(names) or len(found) != len(names):
        raise InputError(f"the header lists {len(names)} arrays, but {len(found)} have come")
    return header, {name: found[name] for name in names}


def _header(content: RecordDict, task: str, most_text: int, *, constants: bool = False) -> dict[str, Any]:
    """Return the header of a message for this task."""
    config = _config(content)
    if config["task"] != task:
        raise InputError(f"a message for task {task!r} was expected, but one for {shown(config['task'])} has come")
    header = read_json(str(config["header"]), most_text, constants=constants)
    if not isinstance(header, dict):
        raise InputError(f"the header of a message must be a JSON object, got {type(header).__name__}")
    return header


def _config(content: RecordDict) -> ConfigRecord:
    """Return the record that names task and format of a message."""
    config = content.get(CONFIG)
    if not isinstance(config, ConfigRecord):
        raise InputError(f"a message must have a ConfigRecord named {CONFIG!r}, but this one has {_names(content)}")
    if config.get("format") != FORMAT:
        raise InputError(
            f"messages here have format {FORMAT}, but this one has {shown(config.get('format'))}: install the same "
            "version of coterie on the server and on every node"
        )
    if not isinstance(config.get("task"), str) or not isinstance(config.get("header"), str):
        raise InputError("a message must name its task and have a header")
    return config


def _listed(value: object, most: int, what: str) -> tuple[Any, ...]:
    if not isinstance(value, list) or len(value) > most:
        length = f" of {len(value)}" if isinstance(value, list) else ""
        raise ValueError(f"{what} must be a list of at most {most}, got {type(value).__name__}{length}")
    return tuple(value)


def _names(content: Mapping[str, object]) -> str:
    some = ", ".join(f"{shown(name)} ({type(record).__name__})" for name, record in list(content.items())[:5])
    return some or "nothing"
