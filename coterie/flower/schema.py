"""Form of the data that nodes must agree on before models can be averaged: shapes, names, classes and scaling."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from coterie.core.dataset import FederatedDataset, Profile
from coterie.core.schema import Schema, plain_column
from coterie.errors import ConfigError, InputError
from coterie.flower.untrusted import check_texts, is_count, read_json, reading, shown

MOST_CLASSES = 100_000
"""Largest number of classes."""
MOST_VALUES = 10**8
"""Largest number of values in one sample."""
MOST_FILE = 50_000_000
"""Largest number of characters of a schema file."""
UNSCALED = "none"
"""Scaling of features that are not scaled."""


@dataclass(frozen=True)
class DataSchema:
    """Form of a node's data. An empty text or tuple means that this part is unknown."""

    features: tuple[int, ...] = ()
    """Shape of one sample."""
    classes: int | None = None
    """Number of classes; None for a regression."""
    feature_names: tuple[str, ...] = ()
    """Names of the features."""
    class_names: tuple[str, ...] = ()
    """Names of class 0, 1, ..."""
    encoding: str = ""
    """Digest of the encoding of table columns as features; names alone do not show which text is encoded as 0."""
    scaling: str = ""
    """Digest of the means and deviations that features are scaled by, or `none`. Means are data, hence a digest."""

    @classmethod
    def of(cls, data: FederatedDataset) -> DataSchema:
        """Return the schema of a node's data."""
        return cls._of(data.schema, data.profile)

    @classmethod
    def of_table(cls, schema: Schema) -> DataSchema:
        """Return the schema of data that is encoded by the schema of a table."""
        return cls._of(schema, Profile((len(schema.feature_names),), len(schema.classes) or None))

    @classmethod
    def _of(cls, schema: Schema, profile: Profile) -> DataSchema:
        found = cls(profile.features, profile.classes, schema.feature_names)
        columns = [plain_column(column) for column in schema.columns]
        # the replacement of missing values is a mean, and only matters if values are missing
        fills = [column.pop("fill", None) for column in columns]
        for column in columns:
            column.pop("values", None)  # only later rows are compared with them
        unscaled = set(schema.scales) == {(0.0, 1.0)} and not any(column.indicator for column in schema.columns)
        return replace(
            found,
            class_names=tuple(label if isinstance(label, str) else json.dumps(label) for label in schema.classes),
            encoding=_digest(columns) if schema.is_table else "",
            scaling="" if not schema.scales else UNSCALED if unscaled else _digest([schema.scales, fills]),
        )

    @property
    def profile(self) -> Profile:
        """Shape of a sample and number of classes."""
        return Profile(self.features, self.classes)

    def plain(self) -> dict[str, object]:
        """Return the schema as JSON values."""
        return asdict(self)

    @classmethod
    def read(cls, plain: Mapping[str, object]) -> DataSchema:
        """Return the schema that `plain` returned.

        Raises:
            ValueError: if no data can have this schema.
        """
        shape, classes = _lengths(plain["features"]), _class_count(plain["classes"])
        size = math.prod(shape)
        names = check_texts(_items(plain["feature_names"]), "feature names")
        labels = check_texts(_items(plain["class_names"]), "class names")
        if len(names) not in (0, size) or (labels and len(labels) != classes):
            raise ValueError(f"{len(names)} feature names and {len(labels)} class names do not fit the shape")
        digests = check_texts((plain[name] or UNSCALED for name in ("encoding", "scaling")), "digests")
        known = (d if plain[name] else "" for name, d in zip(("encoding", "scaling"), digests, strict=True))
        return cls(shape, classes, names, labels, *known)


@dataclass(frozen=True)
class RequiredSchema:
    """Form that the server requires of every node's data. None: any form that the nodes agree on."""

    features: tuple[int, ...] | None = None
    """Shape of one sample."""
    classes: int | None = None
    """Number of classes, of which a node may have seen only some; 0 for a regression."""
    feature_names: tuple[str, ...] | None = None
    class_names: tuple[str, ...] | None = None
    encoding: str | None = None
    scaling: str | None = None
    table: Schema | None = None
    """Schema that nodes encode their tables by; all other fields follow from it."""

    @classmethod
    def read(cls, source: SchemaSource) -> RequiredSchema:
        """Return the required form from a JSON file, a JSON text that starts with `{`, a mapping or a schema.

        Raises:
            ConfigError: if the file or the text cannot be read, or no data can have this form.
        """
        if source is None:
            return cls()
        plain = source.plain() if isinstance(source, DataSchema | Schema) else source
        if not isinstance(plain, Mapping):
            plain = _from_text(plain)
        if "columns" in plain:
            return cls._of_table(plain)
        given = cls._given_fields(plain)
        whole = {**DataSchema((1,)).plain(), **given}
        whole["classes"] = whole["classes"] or None
        if whole["feature_names"] and "features" not in given:
            given["features"] = whole["features"] = (len(given["feature_names"]),)
        if whole["class_names"] and "classes" not in given:
            given["classes"] = whole["classes"] = len(given["class_names"])
        try:
            DataSchema.read(whole)
        except (ValueError, TypeError) as error:
            raise ConfigError(f"schema of the expected data: {error}") from None
        return cls(**given)

    @classmethod
    def _given_fields(cls, plain: Mapping[str, object]) -> dict[str, Any]:
        """Return the fields that are given and not empty, with tuples in place of lists."""
        known = {field.name for field in fields(cls)} - {"table"}
        odd = [name for name in plain if name not in known]
        if odd:
            raise ConfigError(f"schema has no field {odd[0]!r}: choose from {', '.join(sorted(known))}")
        return {
            name: tuple(value) if isinstance(value, list) else value
            for name, value in plain.items()
            if value is not None and value != "" and value != () and value != []
        }

    @classmethod
    def _of_table(cls, plain: Mapping[str, object]) -> RequiredSchema:
        try:
            table = Schema.of_plain(dict(plain))
            form = DataSchema.of_table(table)
            DataSchema.read(form.plain())
        except (InputError, ValueError, TypeError) as error:
            raise ConfigError(f"schema of the expected tables: {error}") from None
        return cls(
            form.features,
            form.classes or 0,
            form.feature_names,
            form.class_names or None,
            form.encoding,
            form.scaling,
            table,
        )

    def differences(self, schema: DataSchema) -> Iterator[str]:
        """Yield how the schema of a node differs from the required form."""
        if self.features is not None and schema.features != self.features:
            yield f"has samples of shape {schema.features}, but {self.features} was expected"
        if self.classes == 0 and schema.classes is not None:
            yield f"has {schema.classes} classes, but a numeric target was expected"
        elif self.classes and schema.classes is None:
            yield f"has a numeric target, but {self.classes} classes were expected"
        elif self.classes and (schema.classes or 0) > self.classes:
            yield f"has {schema.classes} classes, but {self.classes} were expected"
        names = {"feature names": "feature_names", "class names": "class_names"}
        for what, name in names.items():
            wanted, found = getattr(self, name), getattr(schema, name)
            if wanted is not None and found != wanted:
                yield _named(what, found, f"{_listed(wanted, found)} was expected")
        if self.encoding is not None and schema.encoding != self.encoding:
            yield f"encodes its table differently than expected: {USE_RAW_TABLE}"
        if self.scaling is not None and schema.scaling != self.scaling:
            yield f"scales its features differently than expected: {OWN_SCALES}"


USE_RAW_TABLE = "return raw_table(...) from load on every node, so that all tables are encoded by one schema"
OWN_SCALES = f"every node scales by its own means; {USE_RAW_TABLE}"


def difference(one: DataSchema, other: DataSchema, of: str) -> str | None:
    """Return how the schema of a node differs from another one; None if they agree.

    Args:
        one: Schema of the node.
        other: Schema to compare with.
        of: Owner of the other schema, such as "node 2" or "the run".
    """
    if one.features != other.features:
        return f"has samples of shape {one.features}, but those of {of} have {other.features}"
    if (one.classes is None) != (other.classes is None):
        return f"has a numeric target where {of} has classes, or the reverse"
    if one.feature_names != other.feature_names:
        expected = f"{of} has {_listed(other.feature_names, one.feature_names)}"
        return _named("feature names", one.feature_names, f"{expected}: {USE_RAW_TABLE}")
    if one.class_names != other.class_names:
        expected = f"{of} has {_listed(other.class_names, one.class_names)}"
        return _named("class names", one.class_names, f"{expected}: encode all tables with the same classes")
    if one.classes != other.classes:
        return (
            f"has {one.classes} classes, but {of} has {other.classes}: if no node has seen all of them, give the "
            f"number to the server, schema='{{\"classes\": {max(one.classes or 0, other.classes or 0)}}}'"
        )
    if one.encoding != other.encoding:
        return f"encodes its table differently than {of}: {USE_RAW_TABLE}"
    if one.scaling != other.scaling:
        return f"scales its features differently than {of}: {OWN_SCALES}"
    return None


def _named(what: str, found: tuple[str, ...], expected: str) -> str:
    return f"has {what} {_listed(found, ())}, but {expected}" if found else f"has no {what}, but {expected}"


def _listed(names: tuple[str, ...], other: tuple[str, ...]) -> str:
    """Return some of the names, starting with the first that differs from the other list."""
    if not names:
        return "none"
    first = next((i for i, pair in enumerate(zip(names, other, strict=False)) if pair[0] != pair[1]), 0)
    first = first if len(names) > 6 else 0
    some = ", ".join(repr(name) for name in names[first : first + 6])
    return f"({'..., ' if first else ''}{some}{', ...' if first + 6 < len(names) else ''})"


def _lengths(value: object) -> tuple[int, ...]:
    """Return the shape of a sample; its lengths are checked one by one, since their product may be huge."""
    shape, size = _items(value), 1
    for length in shape:
        size = size * length if isinstance(length, int) and is_count(length, 1, MOST_VALUES) else 0
        if not 1 <= size <= MOST_VALUES:
            raise ValueError(f"features must be lengths of at least 1 with a product of at most {MOST_VALUES}")
    return tuple(length for length in shape if isinstance(length, int))


def _class_count(value: object) -> int | None:
    if value is None or (isinstance(value, int) and is_count(value, 1, MOST_CLASSES)):
        return value
    raise ValueError(f"classes must be a whole number from 1 to {MOST_CLASSES}, got {shown(value)}")


def _items(value: object) -> tuple[object, ...]:
    if not isinstance(value, list | tuple):
        raise ValueError(f"a list was expected, got {shown(value)}")
    return tuple(value)


def _from_text(source: str | Path) -> Mapping[str, object]:
    text = str(source)
    if not text.lstrip().startswith("{"):
        try:
            text = Path(text).expanduser().read_text()
        except (OSError, ValueError) as error:
            raise ConfigError(f"schema {str(source)!r} cannot be read ({error}): name a JSON file") from None
    try:
        plain = reading(lambda: read_json(text, MOST_FILE), "a schema as JSON")
    except InputError as error:
        raise ConfigError(f"schema: {error}") from None
    if not isinstance(plain, dict):
        raise ConfigError('schema must be a JSON object, such as {"features": [4], "classes": 3}')
    return plain


def _digest(value: object) -> str:
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()[:16]


SchemaSource = str | Path | Mapping[str, object] | DataSchema | Schema | None
"""Values that users may give as the expected form of the data."""
