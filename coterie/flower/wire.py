"""Wire format of messages: named arrays in a Flower ArrayRecord, the rest in a ConfigRecord; nothing is pickled.

::

    RecordDict
      "arrays"  ArrayRecord   "params/weight", "slotted/clusters/change/weight", ... as numpy writes them
                              "small": all arrays of a few kB together, the bytes of a safetensors file
      "config"  ConfigRecord  "format": 7, "task": the task's name, "header": the rest as one JSON text

The names of arrays and the header are those of `core/messages.py`. Every message has Flower's type `train`, which is
the only one that mods see; the name of the task is in the config.

Flower transfers every array by separate requests, two from each process to the next, so that ten numbers cost as much
as a megabyte. Therefore small arrays are sent together.
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

FORMAT = 7
"""Version of the message format, which must be the same on nodes and server."""
ONBOARDING = "list-clients"
"""Name of the task that asks a node for its clients; it is the only task that is not for clients."""
ARRAYS, CONFIG = "arrays", "config"
"""Names of the two records of a message."""
SMALL = "small"
"""Name of the array that contains all small arrays."""
FEW_BYTES = 16 * 1024
"""Largest number of bytes of an array that is sent together with others."""
NAMES = "arrays"
"""Key of the header with the names of all arrays, in their order."""
HEADER, HEADER_PER_CLIENT = 256 * 1024, 4 * 1024
"""Largest number of characters of the header of an answer: a fixed part, and a part for each asked client."""
HEADER_OF_TABLE = 32 * 2**20
"""Additional characters of the header of an answer with the summary of a table."""
MOST_BYTES = 2**40
"""Largest number of bytes of a request, which contains the models of the run."""
MOST_ARRAYS = 10_000
"""Largest number of arrays in one message."""
MOST_PATHS = 16
"""Largest number of computation paths of a learner that one answer names."""
MOST_CLIENTS = 10_000
"""Default of the largest number of clients of one node."""
MOST_SAMPLES = 10**9
"""Default of the largest number of samples of one client."""
MOST_LENGTH = 1e200
"""Largest squared length of a sample."""
LAST_ROUND = 10**9
"""Largest number of a round."""


@dataclass(frozen=True)
class Request:
    """Request to a node to run a task for some of its clients."""

    terms: Terms
    task: Task
    broadcast: Broadcast
    clients: tuple[ClientId, ...]
    """Clients that run the task, in the order of the broadcast's rows."""
    keep_from: tuple[int, ...]
    """First round whose state each client must keep; -1: all rounds."""


@dataclass(frozen=True)
class Answer:
    """Answer of a node to a request."""

    reply: Reply
    """Merged reply of the clients."""
    lost: tuple[ClientId, ...] = ()
    """Clients whose state is lost, so that they started anew."""


class Lengths(NamedTuple):
    """Mean squared lengths of the training rows of a node."""

    largest: float
    """Largest mean over the rows of one client."""
    overall: float
    """Mean over all rows."""


@dataclass(frozen=True)
class HostedClients:
    """Clients of one node, and the facts about their data that the server may know."""

    clients: tuple[ClientId, ...]
    train: tuple[int, ...]
    """Number of training samples n_i of each client, before the validation split."""
    test: tuple[int, ...]
    """Number of test samples of each client."""
    schema: DataSchema = field(default_factory=DataSchema)
    """Form of the data; unknown while there is an offer."""
    offer: Offer | None = None
    """Summary of a table that is not encoded yet, since the nodes have not agreed on a schema."""
    lengths: Lengths | None = None
    """Lengths of the encoded rows of a table, which determine the learning rate; None if they are not sent."""


@dataclass(frozen=True)
class OnboardingRequest:
    """Request for the clients of a node."""

    table: Schema | None = None
    """Schema to encode a table by; None if the nodes have not agreed on one yet."""
    summaries: bool = False
    """Whether a node with a table may send its summary, or the lengths of its rows; False in private runs, and if the
    request only tests whether the node is busy."""


def onboarding_content(request: OnboardingRequest | None = None) -> RecordDict:
    """Return the message that asks a node for its clients."""
    asked = OnboardingRequest() if request is None else request
    header = {"table": None if asked.table is None else asked.table.plain(), "summaries": asked.summaries}
    return _packed(ONBOARDING, (header, {}))


def read_onboarding(content: RecordDict) -> OnboardingRequest:
    """Return what `onboarding_content` packed; raise InputError for anything else."""

    def read() -> OnboardingRequest:
        header = _header(content, ONBOARDING, HEADER_OF_TABLE)
        table = header["table"]
        return OnboardingRequest(None if table is None else Schema.of_plain(table), header["summaries"] is True)

    return reading(read, "a request for the clients of this node")


def unfit_content(why: str) -> RecordDict:
    """Return the answer to `onboarding_content` of a node whose table does not fit the schema."""
    return _packed(ONBOARDING, ({"unfit": why}, {}))


def hosted_content(hosted: HostedClients) -> RecordDict:
    """Return the answer to `onboarding_content`."""
    header = {
        "clients": hosted.clients,
        "train": hosted.train,
        "test": hosted.test,
        "schema": hosted.schema.plain() if hosted.offer is None else None,
        "offer": None if hosted.offer is None else hosted.offer.plain(),
        "lengths": hosted.lengths,
    }
    return _packed(ONBOARDING, (header, {}))


def read_hosted(
    content: RecordDict, most_clients: int = MOST_CLIENTS, most_samples: int = MOST_SAMPLES
) -> HostedClients:
    """Return what `hosted_content` packed.

    Raises:
        InputError: if the answer is invalid, or the node's table does not fit the schema.
    """
    most_text = HEADER + HEADER_PER_CLIENT * most_clients + HEADER_OF_TABLE
    header = reading(lambda: _header(content, ONBOARDING, most_text), "a list of the clients of a node")
    if "unfit" in header:
        reason = one_line(str(header["unfit"])) or "no reason given"
        raise InputError(f"has a table that does not fit the schema: {reason}")

    def read() -> HostedClients:
        clients, train, test = (_listed(header[name], most_clients, name) for name in ("clients", "train", "test"))
        ids = check_texts(clients, "client ids")
        if not 0 < len(ids) == len(train) == len(test) == len(set(ids)):
            raise ValueError(f"{len(ids)} ids, but {len(train)} and {len(test)} sizes, or an id occurs twice")
        for what, sizes, low in (("training", train, 1), ("test", test, 0)):
            odd = [size for size in sizes if not is_count(size, low, most_samples)]
            if odd:
                raise ValueError(
                    f"the number of {what} samples must be from {low} to {most_samples}, got {shown(odd[0])}"
                )
        if header["offer"] is not None:
            return HostedClients(ids, train, test, offer=Offer.read(header["offer"], ids, train, test))
        return HostedClients(ids, train, test, DataSchema.read(header["schema"]), lengths=_lengths(header["lengths"]))

    return reading(read, "ids, sizes and the form of the data of a node's clients")


def _lengths(value: object) -> Lengths | None:
    if value is None:
        return None
    largest, overall = _listed(value, 2, "lengths")
    if not isinstance(largest, float) or not isinstance(overall, float) or not 0 <= overall <= largest <= MOST_LENGTH:
        raise ValueError(f"lengths must be two numbers from 0 to {MOST_LENGTH:g}, got {shown(largest)}")
    return Lengths(largest, overall)


def request_content(request: Request, packed: dict[Tensor, Array] | None = None) -> RecordDict:
    """Return the message of a request.

    Args:
        request: The request.
        packed: Arrays of other messages of the same exchange; new ones are added, so that models for many nodes are
            stored and hashed only once.
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
        MissingPluginError: if it names a task or a tier member that is not registered here.
        InputError: if the request is invalid.
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
    """Return the message of an answer."""
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
    record = ArrayRecord()  # filled below: its constructor would copy arrays and lose their hashes
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
    return np.ascontiguousarray(values).reshape(values.shape)  # a scalar would become an array


def _unpacked(content: RecordDict, task: str, most_text: int, most_bytes: int, *, constants: bool = False) -> Parts:
    """Return header and arrays of a message for this task, if the message is not larger than allowed."""
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
        raise InputError(f"the header lists {len(names)} arrays, but {len(found)} were sent")
    return header, {name: found[name] for name in names}


def _header(content: RecordDict, task: str, most_text: int, *, constants: bool = False) -> dict[str, Any]:
    """Return the header of a message for this task."""
    config = _config(content)
    if config["task"] != task:
        raise InputError(f"a message for task {task!r} was expected, but one for {shown(config['task'])} was sent")
    header = read_json(str(config["header"]), most_text, constants=constants)
    if not isinstance(header, dict):
        raise InputError(f"the header of a message must be a JSON object, got {type(header).__name__}")
    return header


def _config(content: RecordDict) -> ConfigRecord:
    """Return the record with the task and the format of a message."""
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
