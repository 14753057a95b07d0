"""What a run found: the groups, their models, how sure each client is, and what it cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from coterie.core.clusters import Params
from coterie.core.population import Profile, torch_dtype
from coterie.core.shard import ClientId
from coterie.errors import InputError
from coterie.learners import LearnerChoice, make_learner
from coterie.learners.base import Learner
from coterie.runs.files import read_tensors
from coterie.runs.folder import Record, RunFolder


@dataclass(frozen=True)
class Result:
    """The outcome of `fit`, `resume` or `load`."""

    config: Mapping[str, Any]
    """All options of the run, as settled."""
    profile: Profile
    learner: Learner
    parameters: Sequence[Params]
    """One dict of named tensors for each cluster."""
    records: list[Record]
    """One dict a round."""
    metrics: dict[str, Any]
    """The final figures."""
    clients: list[dict[str, Any]]
    """One dict for each client: id, n, cluster, score, and what else is known of it."""
    fingerprint: str = ""
    """Digest of the training data."""

    @property
    def assignments(self) -> dict[ClientId, int]:
        """The cluster of each client that answered."""
        return {row["id"]: row["cluster"] for row in self.clients}

    @property
    def weights(self) -> npt.NDArray[np.float64]:
        """How much of each client belongs to each cluster, (m, K); rows sum to one, in the order of `clients`."""
        if all("weights" in row for row in self.clients):
            return np.array([row["weights"] for row in self.clients])
        chosen = np.array([row["cluster"] for row in self.clients])
        return np.asarray(np.eye(len(self.parameters))[chosen])

    @property
    def models(self) -> list[dict[str, npt.NDArray[Any]]]:
        """K dicts of named arrays."""
        return [{name: p.detach().cpu().numpy() for name, p in model.items()} for model in self.parameters]

    def predict(
        self, x: npt.ArrayLike, *, client: ClientId | None = None, cluster: int | None = None
    ) -> npt.NDArray[Any]:
        """Predictions for samples x (n, ...), by a client's cluster, its own mixture of them, or a cluster's model."""
        if (client is None) == (cluster is None):
            raise InputError("predict needs to know whose model to use: give client=... or cluster=...")
        if client is not None:
            known = self.assignments
            if str(client) not in known:
                raise InputError(
                    f"client {client!r} was not in the training: use assign(x, y) to find its cluster first"
                )
            cluster = known[str(client)]
            row = next(row for row in self.clients if row["id"] == str(client))
            if "weights" in row:
                return self.predict_mixed(x, row["weights"])
        if not 0 <= int(cluster or 0) < len(self.parameters):
            raise InputError(f"cluster must be 0 to {len(self.parameters) - 1}, got {cluster}")
        theta = {name: p[None] for name, p in self.parameters[int(cluster or 0)].items()}
        with torch.no_grad():
            outputs = self.learner.outputs(theta, self._samples(x)[None])[0]
        predicted = outputs if self.learner.classes is None else outputs.argmax(dim=-1)
        return np.asarray(predicted.cpu().numpy())

    def predict_mixed(self, x: npt.ArrayLike, weights: npt.ArrayLike) -> npt.NDArray[Any]:
        """Predictions for samples x (n, ...) by all models together, each counting by `weights` (K,)."""
        share = np.asarray(weights, dtype=np.float64)
        if share.shape != (len(self.parameters),) or not (share >= 0).all() or not np.isclose(share.sum(), 1):
            raise InputError(f"weights must be {len(self.parameters)} numbers from 0 on that sum to 1, got {weights!r}")
        samples, total = self._samples(x), None
        with torch.no_grad():
            for part, model in zip(share.tolist(), self.parameters, strict=True):
                said = self.learner.outputs({n: p[None] for n, p in model.items()}, samples[None])[0]
                said = part * (said if self.learner.classes is None else torch.softmax(said, dim=-1))
                total = said if total is None else total + said
        assert total is not None
        return np.asarray((total if self.learner.classes is None else total.argmax(dim=-1)).cpu().numpy())

    def losses(self, x: npt.ArrayLike, y: npt.ArrayLike) -> npt.NDArray[np.float64]:
        """Mean loss of each cluster's model on these samples, (K,)."""
        samples = self._samples(x)
        targets = torch.as_tensor(np.asarray(y))
        targets = targets.to(samples.dtype) if self.learner.classes is None else targets.to(torch.int64)
        if targets.shape != samples.shape[:1]:
            raise InputError(f"{samples.shape[0]} samples but labels of shape {tuple(targets.shape)}")
        with torch.no_grad():
            each = [
                self.learner.losses({n: p[None] for n, p in model.items()}, samples[None], targets[None]).mean()
                for model in self.parameters
            ]
        return np.array([float(value) for value in each])

    def assign(self, x: npt.ArrayLike, y: npt.ArrayLike) -> int:
        """The cluster of a new client with labelled samples: the one whose model has the least loss."""
        return int(np.argmin(self.losses(x, y)))

    def _samples(self, x: npt.ArrayLike) -> torch.Tensor:
        some = next(iter(self.parameters[0].values()))
        samples = torch.as_tensor(np.asarray(x)).to(dtype=some.dtype, device=some.device)
        if tuple(samples.shape[1:]) != self.profile.features or samples.shape[0] == 0:
            raise InputError(
                f"samples must have shape (n, {', '.join(map(str, self.profile.features))}), got {tuple(samples.shape)}"
            )
        return samples

    def save(self, folder: str | Path) -> Path:
        """Write a run folder that `coterie.load` and `coterie report` can read."""
        run = RunFolder.create(Path(folder), self.config, self.fingerprint)
        for record in self.records:
            run.append(record)
        run.finish(self.parameters, self.summary())
        return run.path

    def report(self, path: str | Path) -> Path:
        """Write one self-contained HTML page."""
        from coterie.report.page import write_report  # the page is only built when asked for
        from coterie.report.reading import run_from_parts

        return write_report([run_from_parts(self.config, self.records, self.summary())], Path(path))

    def summary(self) -> dict[str, Any]:
        """What result.json holds."""
        return {
            "metrics": self.metrics,
            "clients": self.clients,
            "features": list(self.profile.features),
            "classes": self.profile.classes,
        }

    def __repr__(self) -> str:
        figures = ", ".join(
            f"{name}={self.metrics[name]:.4g}"
            for name in ("accuracy", "rmse", "ari", "loss")
            if self.metrics.get(name) is not None
        )
        return (
            f"Result({self.config['method']}, {len(self.parameters)} clusters, {len(self.clients)} clients, {figures})"
        )


def load(folder: str | Path, *, learner: LearnerChoice | None = None) -> Result:
    """Read a finished run folder. A learner of the user's own has to be passed again."""
    run = RunFolder.open(Path(folder))
    config, result = run.config, run.result
    profile = Profile(tuple(result["features"]), result["classes"])
    dtype = torch_dtype(config["dtype"])
    return Result(
        config=config,
        profile=profile,
        learner=make_learner(config["learner"] if learner is None else learner, profile, read_tensors),
        parameters=[{name: p.to(dtype) for name, p in model.items()} for model in run.models()],
        records=run.records(),
        metrics=result["metrics"],
        clients=result["clients"],
        fingerprint=run.fingerprint,
    )
