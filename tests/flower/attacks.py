"""Attacks of a hostile node: functions that turn its honest reply into a hostile one.

Each attack takes the records of an honest reply and returns the records that are sent instead. `ONBOARDING_ATTACKS`
change the answer to the first onboarding, `ANSWER_ATTACKS` the answer to any other task, and `ROUNDS` the answer to a
round. Every attack must lead to a refusal of the node with a reason, while the run continues as if the node did not
exist.

A client app for real processes wraps an honest one::

    from tests.flower.attacks import attacking

    app = make_client_app(load, mods=[attacking("npz")])
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from safetensors.torch import load, save

from coterie.flower.wire import ARRAYS, CONFIG, ONBOARDING, SMALL

Attack = Callable[[RecordDict], RecordDict]
Header = dict[str, Any]


def attacking(name: str) -> Callable[[Message, Context, Callable[[Message, Context], Message]], Message]:
    """Return a mod for a client app that sends this attack in place of the honest reply, wherever it applies."""

    def mod(message: Message, context: Context, call: Callable[[Message, Context], Message]) -> Message:
        honest = call(message, context)
        if not honest.has_content() or not applies(name, honest.content):
            return honest
        return Message(ATTACKS[name](honest.content), reply_to=message)

    return mod


def applies(name: str, honest: RecordDict) -> bool:
    """Return whether this attack changes replies of this kind."""
    task = honest[CONFIG]["task"]
    if name in ONBOARDING_ATTACKS:
        return task == ONBOARDING
    if name in ROUNDS:
        return task == "local-round"
    return task != ONBOARDING


# ---- helpers that change headers and arrays ---------------------------------------------------------------------


def with_header(edit: Callable[[Header], Any]) -> Attack:
    """Change the header; `edit` changes it in place or returns another one."""

    def attack(honest: RecordDict) -> RecordDict:
        header = json.loads(str(honest[CONFIG]["header"]))
        changed = edit(header)
        return with_text(json.dumps(header if changed is None else changed))(honest)

    return attack


def with_text(text: str) -> Attack:
    """Replace the header by this text."""
    return lambda honest: RecordDict(
        {**honest, CONFIG: ConfigRecord({**honest[CONFIG], "header": text})}  # type: ignore[dict-item]
    )


def with_config(**changes: Any) -> Attack:
    """Change entries of the config record; None removes an entry."""

    def attack(honest: RecordDict) -> RecordDict:
        config = {name: value for name, value in {**honest[CONFIG], **changes}.items() if value is not None}
        return RecordDict({**honest, CONFIG: ConfigRecord(config)})

    return attack


def with_records(edit: Callable[[dict[str, Any]], Any]) -> Attack:
    """Change the records in place."""

    def attack(honest: RecordDict) -> RecordDict:
        records = dict(honest)
        edit(records)
        return RecordDict(records)

    return attack


def with_array(make: Callable[[Array], Array]) -> Attack:
    """Replace the first array."""

    def attack(honest: RecordDict) -> RecordDict:
        record = dict(honest[ARRAYS])
        name = next(iter(record))
        return RecordDict({**honest, ARRAYS: ArrayRecord({**record, name: make(record[name])})})

    return attack


def with_small(edit: Callable[[dict[str, torch.Tensor]], Any]) -> Attack:
    """Change the small arrays, and the list of arrays in the header accordingly."""

    def attack(honest: RecordDict) -> RecordDict:
        arrays = load(honest[ARRAYS][SMALL].numpy().tobytes())
        edit(arrays)
        kept = {name: value.contiguous().clone() for name, value in arrays.items()}
        record = {**honest[ARRAYS], SMALL: Array(np.frombuffer(save(kept), np.uint8))}
        header = json.loads(str(honest[CONFIG]["header"]))
        header["arrays"] = [*(name for name in honest[ARRAYS] if name != SMALL), *kept]
        return with_text(json.dumps(header))(RecordDict({**honest, ARRAYS: ArrayRecord(record)}))

    return attack


def raw(data: bytes, dtype: str = "float64", stype: str = "numpy.ndarray") -> Callable[[Array], Array]:
    """Return an array with these bytes, valid or not."""
    return lambda honest: Array(dtype, (1,), stype, data)


def npy(descr: str = "'<f8'", shape: str = "(1,)", body: bytes = b"\0" * 8, order: str = "False") -> bytes:
    """Return the bytes of a numpy file that claims this type and shape."""
    header = f"{{'descr': {descr}, 'fortran_order': {order}, 'shape': {shape}, }}"
    header += " " * (-(len(header) + 11) % 64) + "\n"
    return b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header.encode() + body


def zipped(compressed: bool = False) -> bytes:
    """Return an .npz file, with a mebibyte of zeros if it is compressed."""
    file = io.BytesIO()
    (np.savez_compressed if compressed else np.savez)(file, x=np.zeros(2**17 if compressed else 3))
    return file.getvalue()


def stored(header: object, body: bytes = b"\0" * 8) -> bytes:
    """Return a safetensors file with this header, as an array of bytes."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    data = len(text).to_bytes(8, "little") + text + body
    return npy("'|u1'", f"({len(data)},)", data)


def first(kind: str) -> Callable[[dict[str, torch.Tensor]], str]:
    """Return a function that returns the name of the first small array of this kind."""
    return lambda arrays: next(name for name in arrays if name.startswith(kind))


def values(kind: str, edit: Callable[[torch.Tensor], torch.Tensor]) -> Attack:
    """Change the values of all arrays of this kind."""

    def change(arrays: dict[str, torch.Tensor]) -> None:
        for name in list(arrays):
            if name.startswith(kind):
                arrays[name] = edit(arrays[name])

    return with_small(change)


def filled(value: float) -> Callable[[torch.Tensor], torch.Tensor]:
    return lambda array: torch.full_like(array, value) if array.is_floating_point() else array


DEEP = "[" * 100_000 + "]" * 100_000


# ---- answers to onboarding ------------------------------------------------------------------------------------------


def onboarding(**changes: Any) -> Attack:
    return with_header(lambda header: header.update(changes))


def first_client(**changes: Any) -> Attack:
    """Change the entries of the first client."""

    def edit(header: Header) -> None:
        for name, value in changes.items():
            header[name][0] = value

    return with_header(edit)


def schema(**changes: Any) -> Attack:
    return with_header(lambda header: header["schema"].update(changes))


ONBOARDING_ATTACKS: Mapping[str, Attack] = {
    "sizes of 10^30": first_client(train=10**30),
    "a size of 5000 digits": lambda honest: with_text(
        str(honest[CONFIG]["header"]).replace('"train": [', f'"train": [{"9" * 5000}, ', 1)
    )(honest),
    "a negative size": first_client(train=-1),
    "a size of zero": first_client(train=0),
    "a size that is true": first_client(train=True),
    "a size that is a float": first_client(train=3.5),
    "a size that is NaN": first_client(train=float("nan")),
    "a size that is a text": first_client(train="7"),
    "a huge test size": first_client(test=2**63),
    "a negative test size": first_client(test=-5),
    "a surrogate in an id": first_client(clients="\ud800"),
    "an id of a megabyte": first_client(clients="x" * 2**20),
    "an empty id": first_client(clients=""),
    "an id with a line break": first_client(clients="a\nb"),
    "an id with an escape": first_client(clients="\x1b[2J"),
    "an id that is a number": first_client(clients=7),
    "an id that is a list": first_client(clients=["a"]),
    "an id that is null": first_client(clients=None),
    "a client twice": with_header(
        lambda header: header.update({name: [header[name][0]] * 2 for name in ("clients", "train", "test")})
    ),
    "no clients": onboarding(clients=[], train=[], test=[]),
    "more clients than sizes": with_header(lambda header: header["clients"].append("more")),
    "twenty thousand clients": onboarding(
        clients=[str(i) for i in range(20_000)], train=[1] * 20_000, test=[0] * 20_000
    ),
    "classes 10^10": schema(classes=10**10),
    "classes 0": schema(classes=0),
    "classes -1": schema(classes=-1),
    "classes that are true": schema(classes=True),
    "classes that are a list": schema(classes=[3]),
    "features of 10^13": schema(features=[10**13]),
    "features of 10^7 by 10^7": schema(features=[10**7, 10**7]),
    "many axes of features": schema(features=[10**6] * 10**4),
    "a negative feature": schema(features=[-4]),
    "features that are a text": schema(features="44"),
    "feature names of another number": schema(feature_names=["a"]),
    "feature names that are numbers": schema(feature_names=[1] * 16),
    "class names without classes": schema(classes=None, class_names=["a"]),
    "a scaling that is a list": schema(scaling=[1, 2]),
    "no schema": with_header(lambda header: header.pop("schema") and None),
    "a schema that is a list": onboarding(schema=[]),
    "a header that is a list": with_header(lambda header: []),
    "deep JSON at onboarding": with_text(DEEP),
    "no JSON at onboarding": with_text("{"),
    "another task at onboarding": with_config(task="evaluate"),
    "another format at onboarding": with_config(format=1),
    "nothing at onboarding": lambda honest: RecordDict(),
}


# ---- answers to any task ---------------------------------------------------------------------------------------------


def answer(**changes: Any) -> Attack:
    return with_header(lambda header: header.update(changes))


def extra_array(name: str, array: Array, listed: bool = True) -> Attack:
    def attack(honest: RecordDict) -> RecordDict:
        with_it = RecordDict({**honest, ARRAYS: ArrayRecord({**honest[ARRAYS], name: array})})
        return with_header(lambda header: header["arrays"].append(name))(with_it) if listed else with_it

    return attack


ANSWER_ATTACKS: Mapping[str, Attack] = {
    "npz": with_array(raw(zipped())),
    "a compressed npz": with_array(raw(zipped(compressed=True))),
    "a shape of 10^13": with_array(raw(npy(shape="(10000000000000,)"))),
    "a shape of 10^13 bytes": with_array(raw(npy("'|u1'", "(10000000000000,)"))),
    "a shape of 40 digits": with_array(raw(npy(shape=f"({'9' * 40},)"))),
    "a negative shape": with_array(raw(npy(shape="(-1,)"))),
    "an empty shape of 10^18": with_array(raw(npy("'|u1'", "(0, 1000000000000000000)", b""))),
    "a thousand axes": with_array(raw(npy(shape="(" + "1, " * 300 + ")"))),
    "a shape that is code": with_array(raw(npy(shape="(__import__('os').getpid(),)"))),
    "a damaged header": with_array(raw(npy(shape="(1,")[:60] + b"\0\xff'\"\n" * 20)),
    "a header without an end": with_array(raw(b"\x93NUMPY\x01\x00\xff\xff{'descr': '<f8'")),
    "a header of version 9": with_array(raw(b"\x93NUMPY\x09\x00" + npy()[8:])),
    "a header alone": with_array(raw(npy(body=b""))),
    "more bytes than the shape": with_array(raw(npy(body=b"\0" * 64))),
    "no bytes at all": with_array(raw(b"")),
    "random bytes": with_array(raw(bytes(range(256)) * 4)),
    "objects": with_array(raw(npy("'|O'"))),
    "pickled": with_array(raw(b"\x80\x04cos\nsystem\n(S'true'\ntR.")),
    "records": with_array(raw(npy("[('a', '<f8')]"))),
    "big-endian numbers": with_array(raw(npy("'>f8'"))),
    "half floats": with_array(raw(npy("'<f2'", body=b"\0\0"))),
    "complex numbers": with_array(raw(npy("'<c16'", body=b"\0" * 16))),
    "texts": with_array(raw(npy("'<U2'"))),
    "Fortran order": with_array(raw(npy("'|u1'", "(8,)", order="True"))),
    "another kind of array": with_array(raw(npy(), stype="torch.Tensor")),
    "a safetensors header of 2^63": with_array(raw(npy("'|u1'", "(16,)", b"\xff" * 8 + b"\0" * 8))),
    "a safetensors header that is deep": with_array(raw(stored(DEEP.encode()))),
    "a safetensors header that is a list": with_array(raw(stored([]))),
    "a safetensors part that is not present": with_array(
        raw(stored({"sums/x": {"dtype": "F64", "shape": [10**13], "data_offsets": [0, 8 * 10**13]}}))
    ),
    "a safetensors part with a negative offset": with_array(
        raw(stored({"sums/x": {"dtype": "F64", "shape": [1], "data_offsets": [-8, 0]}}))
    ),
    "a safetensors part without a shape": with_array(raw(stored({"sums/x": {"dtype": "F64"}}))),
    "deep JSON": with_text(DEEP),
    "no JSON": with_text("{'"),
    "an empty header": with_text(""),
    "a number of 5000 digits": with_text('{"clients": [' + "1" * 5000 + "]}"),
    "a header of a megabyte": answer(more="x" * 10**6),
    "JSON that is a number": with_text("NaN"),
    "another task": with_config(task="list-clients"),
    "no task": with_config(task=None),
    "a task that is a number": with_config(task=7),
    "another format": with_config(format=2),
    "a header that is bytes": with_config(header=b"{}"),
    "nothing": lambda honest: RecordDict(),
    "no arrays": with_records(lambda records: records.pop(ARRAYS)),
    "metrics for arrays": with_records(lambda records: records.update({ARRAYS: MetricRecord({"a": 1.0})})),
    "no config": with_records(lambda records: records.pop(CONFIG)),
    "arrays for config": with_records(lambda records: records.update({CONFIG: records[ARRAYS]})),
    "a foreign client": answer(clients=["somebody-else"]),
    "a client that answers twice": with_header(lambda header: header["clients"].append(header["clients"][0])),
    "a client that is rejected, too": with_header(lambda header: header["rejected"].append(header["clients"][0])),
    "a foreign client that is rejected": answer(rejected=["somebody-else"]),
    "a foreign client that is lost": answer(lost=["somebody-else"]),
    "a client that is lost twice": with_header(lambda header: header.update(lost=[header["clients"][0]] * 2)),
    "a surrogate among the lost": answer(lost=["\ud800"]),
    "clients that are numbers": with_header(lambda header: header.update(clients=list(range(len(header["clients"]))))),
    "clients that are a text": answer(clients="site"),
    "clients that are missing": with_header(lambda header: header.pop("clients") and None),
    "fewer clients than rows": with_header(lambda header: header.update(clients=header["clients"][:-1] or ["x"])),
    "a path of a megabyte": answer(paths=["x" * 2**20]),
    "ten thousand paths": answer(paths=["a"] * 10**4),
    "a path with an escape": answer(paths=["\x1b[31m"]),
    "sums that are not present": answer(slotted=["clusters", "more"]),
    "an array that was not requested": extra_array("sums/more", Array(np.zeros(3))),
    "a row that was not requested": extra_array("rows/more", Array(np.zeros(1))),
    "an array without a place": extra_array("somewhere/x", Array(np.zeros(3))),
    "an array that is not listed": extra_array("sums/more", Array(np.zeros(3)), listed=False),
    "an array that is listed twice": with_header(lambda header: header["arrays"].append(header["arrays"][0])),
    "an array that is listed and missing": with_header(lambda header: header["arrays"].append("sums/x")),
    "an array with a name of a megabyte": extra_array("sums/" + "x" * 2**20, Array(np.zeros(1))),
    "an array of eight megabytes": extra_array("sums/more", Array(np.zeros(2**20))),
    "no small arrays": with_small(lambda arrays: arrays.clear()),
    "NaN everywhere": with_small(lambda a: a.update({n: filled(float("nan"))(v) for n, v in a.items()})),
    "infinity everywhere": with_small(lambda a: a.update({n: filled(float("inf"))(v) for n, v in a.items()})),
    "1e308 everywhere": with_small(lambda a: a.update({n: filled(1e308)(v) for n, v in a.items()})),
    "single floats everywhere": with_small(lambda a: a.update({n: v.float() for n, v in a.items()})),
    "half floats everywhere": with_small(lambda a: a.update({n: v.half() for n, v in a.items()})),
    "another axis everywhere": with_small(lambda a: a.update({n: v[None] for n, v in a.items()})),
    "nothing in any array": with_small(lambda a: a.update({n: v.flatten()[:0] for n, v in a.items()})),
}


# ---- answers to a round ----------------------------------------------------------------------------------------------


ROUNDS: Mapping[str, Attack] = {
    "a mass of all samples": values("slotted/clusters/mass", lambda mass: mass + 1e3),
    "a negative mass": values("slotted/clusters/mass", lambda mass: -mass),
    "a mass of 1e-300": values("slotted/clusters/mass", filled(1e-300)),
    "a mass that is NaN": values("slotted/clusters/mass", filled(float("nan"))),
    "a mass of 1e308": values("slotted/clusters/mass", filled(1e308)),
    "an infinite loss": values("sums/loss", filled(float("inf"))),
    "a loss that is NaN": values("sums/loss", filled(float("nan"))),
    "a loss of 1e308": values("sums/loss", filled(1e308)),
    "a loss of -1e90": values("sums/loss", filled(-1e90)),
    "more samples than there are": values("sums/samples", filled(1e6)),
    "negative samples": values("sums/samples", filled(-1.0)),
    "no samples": values("sums/samples", filled(0.0)),
    "half a sample": values("sums/samples", lambda samples: samples - 0.5),
    "a cluster that is not there": values("rows/cluster", lambda cluster: cluster + 1000),
    "a negative cluster": values("rows/cluster", lambda cluster: cluster - 1000),
    "a cluster that is a float": values("rows/cluster", lambda cluster: cluster.double()),
    "a slot that is not there": values("slots/clusters", lambda slots: slots + 1000),
    "negative slots": values("slots/clusters", lambda slots: slots - 1000),
    "slots of 2^62": values("slots/clusters", lambda slots: slots + 2**62),
    "negative counts": with_small(lambda a: a.update({"counts/clusters": a["slots/clusters"] * 0 - 10**6})),
    "counts of 2^62": with_small(lambda a: a.update({"counts/clusters": a["slots/clusters"] * 0 + 2**62})),
    "counts that are true": with_small(lambda a: a.update({"counts/clusters": a["slots/clusters"] > -1})),
    "a change that is NaN": values("slotted/clusters/change/", filled(float("nan"))),
    "an infinite change": values("slotted/clusters/change/", filled(-float("inf"))),
    "a change of 1e308": values("slotted/clusters/change/", filled(1e308)),
    "a change of 1e20": values("slotted/clusters/change/", filled(1e20)),
    "a change of another shape": values("slotted/clusters/change/", lambda change: change[:, :-1]),
    "fewer slots than changes": values("slots/clusters", lambda slots: slots[:0]),
    "a loss that is missing": with_small(lambda a: a.pop("sums/loss")),
    "clusters that are missing": with_small(lambda a: a.pop("rows/cluster")),
    "a cluster too many": values("rows/cluster", lambda cluster: cluster.repeat(2, 1)),
}

ATTACKS: Mapping[str, Attack] = {**ONBOARDING_ATTACKS, **ANSWER_ATTACKS, **ROUNDS}
