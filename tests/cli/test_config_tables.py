"""TOML files: tables for named values, configs of run folders, and errors in them."""

import tomllib

import pytest

SMALL = 'scenario = "rotated-digits"\nclients = 8\nrounds = 2\nlearner = "logistic"\n'


def run(coterie, tmp_path, text, *more):
    (tmp_path / "run.toml").write_text(SMALL + text)
    return coterie("run", "--config", "run.toml", "--out", "run", *more)


def test_tables_and_texts_give_the_same_run(coterie, tmp_path):
    table = """method = "ifca"
restarts = 1
[init]
name = "odcl"
clustering = "spectral"
[optimizer]
name = "sgd"
momentum = 0.9
"""
    assert run(coterie, tmp_path, table)[0] == 0
    flags = ["--init", "odcl:clustering=spectral", "--optimizer", "sgd:momentum=0.9", "--restarts", "1"]
    code, _, err = coterie(
        "run", "rotated-digits", "--method", "ifca", "--clients", 8, "--rounds", 2, "--learner", "logistic",
        *flags, "--out", "flags",
    )  # fmt: skip
    assert code == 0, err
    for name in ("config.toml", "models.safetensors"):
        assert (tmp_path / "run" / name).read_bytes() == (tmp_path / "flags" / name).read_bytes()
    config = tomllib.loads((tmp_path / "run" / "config.toml").read_text())
    assert config["init"] == {"name": "odcl", "clustering": "spectral"}
    assert config["optimizer"] == {"name": "sgd", "momentum": 0.9}


def test_a_procedure_is_an_array_of_tables(coterie, tmp_path):
    mix = """method = "tiered"
assignment = "assigned"
distance = "update-cosine"
max_clusters = 3
[[procedure]]
name = "split-by-norm"
eps1 = 10
eps2 = 0
warmup = 1
"""
    code, _, err = run(coterie, tmp_path, mix)
    assert code == 0, err
    config = tomllib.loads((tmp_path / "run" / "config.toml").read_text())
    assert config["procedure"] == [{"name": "split-by-norm", "eps1": 10.0, "eps2": 0.0, "warmup": 1}]
    code, _, err = coterie("run", "--config", "run/config.toml", "--out", "again")
    assert code == 0, err
    models = [(tmp_path / name / "models.safetensors").read_bytes() for name in ("run", "again")]
    assert models[0] == models[1]


def test_recommendations_of_the_scenario_do_not_change_the_config_of_a_typed_run(coterie, tmp_path):
    """diverse-shift recommends batches of 20 samples; a typed method with full batches must keep them."""
    import coterie as library
    from coterie.methods import IFCA

    data = library.scenario("diverse-shift", clients=6, samples=30, test_samples=10)
    library.fit(data, IFCA(clusters=2), rounds=2, learner="logistic", out=tmp_path / "typed")
    assert "batch_size" not in (tmp_path / "typed" / "config.toml").read_text()
    assert coterie("run", "--config", "typed/config.toml", "--out", "again")[0] == 0
    for name in ("config.toml", "models.safetensors"):
        assert (tmp_path / "typed" / name).read_bytes() == (tmp_path / "again" / name).read_bytes()
    assert coterie("run", "--config", "typed/config.toml", "--local-epochs", 2, "--out", "flagged")[0] == 0
    config = tomllib.loads((tmp_path / "flagged" / "config.toml").read_text())
    assert config["local_steps"] == 2, "an epoch of full batches is one step"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[seed]\nname = 3\n", "seed must be a single value, not a table or a list"),
        ("lr = [0.1, 0.2]\n", "lr must be a single value, not a table or a list"),
        ('[init]\nname = "odlc"\n', "unknown init 'odlc': did you mean 'odcl'?"),
        ('[init]\nclustering = "spectral"\n', "init must be"),
        ('[init]\nname = "odcl"\nclustring = "spectral"\n', "did you mean 'clustering'?"),
        ('[init]\nname = "odcl"\nclustering = "spectrum"\n', "clustering"),
        ('[optimizer]\nname = "adam"\nbeta1 = "big"\n', "beta1 must be a number, got 'big'"),
        ('[[optimizer]]\nname = "adam"\n', "optimizer must be"),
        ("optimizer = 3\n", "optimizer must be"),
        ('method = "tiered"\nprocedure = "split-by-gap:rho=a"\n', "rho must be a number"),
        ("procedure = []\n", "--procedure is an option of tiered, but not of scenario rotated-digits or method ifca"),
    ],
)
def test_an_error_in_a_file_is_one_sentence_and_writes_nothing(coterie, tmp_path, text, message):
    code, out, err = run(coterie, tmp_path, text)
    assert (code, out) == (2, "")
    assert message in err
    assert len(err.splitlines()) == 1
    assert not (tmp_path / "run").exists()
