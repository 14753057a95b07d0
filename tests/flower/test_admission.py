"""Who may bring which clients, and data on which nodes must agree."""

from dataclasses import replace

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from flwr.app import Message

import coterie
from coterie import from_arrays
from coterie.errors import ConfigError, InputError, TrainingError
from coterie.flower.admission import Admission, AllowList
from coterie.flower.client_registry import ClientRegistry
from coterie.flower.clients import clients_of
from coterie.flower.in_process import InProcessGrid
from coterie.flower.node import make_client_app
from coterie.flower.schema import DataSchema, Demanded, difference
from coterie.flower.server import Settings
from coterie.flower.wire import Hosted, hosted_content

random = np.random.default_rng(2)


def node(*ids, classes=None, features=3, load=None):
    def load_data(context):
        data = {}
        for name in ids:
            x = random.normal(size=(8, features))
            data[name] = (x, x.sum(axis=1) if classes is None else np.arange(8) % classes)
        return from_arrays(data)

    return make_client_app(load or load_data)


def key_pair():
    public = ec.generate_private_key(ec.SECP384R1()).public_key()
    pem = public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    return pem, public.public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode()


def registry_of(apps, keys=None, nodes=1, **options):
    return clients_of(InProcessGrid(apps, keys=keys), nodes=nodes, wait=0.3, deadline=5, **options).registry


# ---- the list of allowed nodes -----------------------------------------------------------------------------------


def test_a_node_brings_only_clients_that_its_key_or_id_allows(tmp_path):
    (first, ssh), (second, _) = key_pair(), key_pair()
    file = tmp_path / "nodes.toml"
    file.write_text(f'[[nodes]]\nkey = "{ssh} a comment"\nclients = ["a", "b"]\n[[nodes]]\nid = 7\nclients = ["c"]\n')
    apps = {5: node("a", "b"), 6: node("b"), 7: node("c"), 8: node("d"), 9: node("a")}
    keys = {5: first, 6: second, 9: b"-----BEGIN nonsense"}
    registry = registry_of(apps, keys, allowed=file, nodes=2)
    assert registry.bound == {"a": 5, "b": 5, "c": 7}
    squatter = registry_of({5: node("a", "x"), 7: node("c")}, {5: first}, allowed=file)
    assert squatter.bound == {"c": 7}
    assert "node 5 brings client 'x', which is not allowed there: refused" in [n.reason for n in squatter._untold]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "no node is listed"),
        ("nodes = 3", "no node is listed"),
        ("[[nodes]]\nclients = ['a']", "needs key or id"),
        ("[[nodes]]\nid = 1\nkey = 'a'\nclients = ['a']", "needs key or id"),
        ("[[nodes]]\nid = 1\nclients = 'a'", "needs key or id"),
        ("[[nodes]]\nid = 1\nclients = [3]", "client ids must be texts"),
        ("[[nodes]]\nid = 1\nclients = ['a']\n[[nodes]]\nid = 2\nclients = ['a']", "a client lives at one node"),
        ("[[nodes]]\nkey = 'ssh-rsa AAAA'\nclients = ['a']", "is no public key"),
        ("[[nodes", "cannot be read"),
    ],
)
def test_a_list_that_says_nothing_sensible_is_refused(tmp_path, text, why):
    file = tmp_path / "nodes.toml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=why):
        AllowList.read(file)
    with pytest.raises(ConfigError, match="cannot be read"):
        AllowList.read(tmp_path / "none.toml")


def test_a_node_has_only_so_many_clients_and_a_client_only_so_many_samples():
    apps = {5: node("a", "b", "c"), 7: node("d")}
    assert registry_of(apps, most_clients=2).clients == ("d",)
    with pytest.raises(TrainingError, match="samples must be from 1 to 7, got 8"):
        registry_of({7: node("d")}, most_samples=7)
    with pytest.raises(ConfigError, match="most_clients must be a whole number from 1 on"):
        Admission(most_clients=0)


# ---- what the data must look like ---------------------------------------------------------------------------------

TABLE = DataSchema((2,), 2, ("age", "dose"), ("no", "yes"), "e", "none")
OTHER = {
    "shape": ({"features": (3,), "feature_names": ()}, r"samples of shape \(3,\), but .* \(2,\)"),
    "kind": ({"classes": None, "class_names": ()}, "numbers for labels"),
    "feature names": ({"feature_names": ("age", "weight")}, r"\('age', 'weight'\), but .*\('age', 'dose'\)"),
    "order of features": ({"feature_names": ("dose", "age")}, r"\('dose', 'age'\), but .*\('age', 'dose'\)"),
    "no feature names": ({"feature_names": ()}, "feature names nowhere, but"),
    "class names": (
        {"class_names": ("benign", "malign")},
        r"class names \('benign', 'malign'\), but .*\('no', 'yes'\)",
    ),
    "order of classes": ({"class_names": ("yes", "no")}, r"\('yes', 'no'\), but .*\('no', 'yes'\)"),
    "number of classes": ({"classes": 3, "class_names": ("no", "yes", "perhaps")}, "classes|class names"),
    "encoding": ({"encoding": "f"}, "encodes its table in another way"),
    "scaling": ({"scaling": "0123"}, r"scales its features in another way .* raw_table"),
}


def hosting(schema, *ids):
    """An app that says that its data has this form."""
    hosted = Hosted(ids, (8,) * len(ids), (0,) * len(ids), schema)

    def mod(message, context, call):
        return Message(hosted_content(hosted), reply_to=message)

    return make_client_app(lambda context: from_arrays({}), mods=[mod])


@pytest.mark.parametrize("name", OTHER)
def test_nodes_whose_tables_differ_are_told_how(name):
    change, why = OTHER[name]
    other = replace(TABLE, **change)
    apps = {5: hosting(TABLE, "a"), 6: hosting(TABLE, "b"), 7: hosting(other, "c"), 8: hosting(other, "d")}
    with pytest.raises(InputError, match=rf"node 7 .*({why}).*name the expected form"):  # nobody chooses for all
        registry_of(apps, nodes=4)
    registry = registry_of(apps, nodes=2, schema=TABLE)
    assert registry.clients == ("a", "b")
    assert all(note.reason.endswith(": refused") for note in registry._untold)
    late = ClientRegistry(["a", "c"], {"a": 5}, TABLE)
    assert why is not None
    assert late._why_not(7, Hosted(("c",), (8,), (0,), other), b"") is not None
    assert difference(TABLE, TABLE, "") is None


def test_a_table_with_other_columns_is_refused():
    def load(columns, one, other):
        table = {"who": [one, one, other, other] * 3, "y": random.normal(size=12)}
        table |= {name: random.normal(size=12) for name in columns}
        data = coterie.from_table(table, client="who", target="y", holdout=0)
        return lambda context: data

    apps = {5: node(load=load(["age", "dose"], "a", "b")), 7: node(load=load(["age", "weight"], "c", "d"))}
    with pytest.raises(InputError, match=r"\('age', 'weight'\), but node 5 has \('age', 'dose'\).*raw_table"):
        registry_of(apps, nodes=2)


def table_of(one, other, answers, standardize, shift=0.0):
    table = {
        "who": [one, one, other, other] * 3,
        "age": random.normal(size=12) + shift,
        "sex": ["f", "m", "f", "m"] * 3,
        "ill": [answers[i % len(answers)] for i in range(12)],
    }
    data = coterie.from_table(table, client="who", target="ill", features="age,sex", holdout=0, standardize=standardize)
    return lambda context: data


@pytest.mark.skipif(
    not hasattr(table_of("a", "b", ("no", "yes"), False)(None), "schema"), reason="tables do not carry their schema"
)
@pytest.mark.parametrize(
    ("answers", "standardize", "why"),
    [
        (("no", "yes"), False, None),
        (("benign", "malign"), False, r"class names \('benign', 'malign'\), but node 5 has \('no', 'yes'\)"),
        (("no", "perhaps", "yes"), False, "class names"),
        (("no", "yes"), True, r"scales its features in another way than node 5: .*raw_table"),
    ],
)
def test_tables_that_nodes_encode_by_themselves_must_come_out_alike(answers, standardize, why):
    first = table_of("a", "b", ("no", "yes"), standardize)
    apps = {5: node(load=first), 7: node(load=table_of("c", "d", answers, standardize, shift=1.0))}
    if why is None:
        assert registry_of(apps, nodes=2).schema.class_names == ("no", "yes")
        return
    with pytest.raises(InputError, match=why):
        registry_of(apps, nodes=2)


def test_a_node_may_have_met_fewer_classes_than_the_server_knows():
    apps = {5: node("a", classes=2), 7: node("b", classes=4)}
    with pytest.raises(InputError, match=r"node 7 has 4 classes, but node 5 has 2.*schema='\{\"classes\": 4\}'"):
        registry_of(apps, nodes=2)
    assert registry_of(apps, nodes=2, schema='{"classes": 4}').profile.classes == 4
    few = registry_of(apps, schema={"classes": 3})
    assert few.bound == {"a": 5}
    assert few.profile.classes == 3
    assert Settings.read({"schema": '{"classes": 4}', "change-factor": 0}).exchange["change_factor"] is None


@pytest.mark.parametrize(
    ("schema", "why"),
    [
        ('{"classes": "x"}', "classes must be a whole number"),
        ('{"clases": 3}', "no field 'clases'"),
        ('{"features": [0]}', "features must be lengths from 1 on"),
        ('{"feature_names": ["a"], "features": [2]}', "1 feature names and 0 class names do not fit"),
        ("{", "as JSON was expected"),
        ("nowhere.json", "cannot be read"),
        ('{"features": 3}', "a list was expected"),
    ],
)
def test_a_schema_that_no_data_has_is_one_sentence(schema, why):
    with pytest.raises(ConfigError, match=why):
        Demanded.read(schema)


def test_the_form_of_the_data_is_written_down_and_read_again(tmp_path):
    apps = {5: node("a", "b", classes=3), 7: node("c", classes=3)}
    clients = clients_of(InProcessGrid(apps), nodes=2, wait=1)
    clients.save(tmp_path)
    again = clients_of(InProcessGrid(apps), wait=1, again=tmp_path)
    assert again.registry.schema == clients.registry.schema
    assert again.fingerprint() == clients.fingerprint()
