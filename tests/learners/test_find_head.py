"""Search for the head of a module, independently of names, without false results."""

import pytest
import torch
from torch import Tensor, nn

from coterie.core.dataset import Profile
from coterie.learners import make_learner
from coterie.learners.find_head import find_head


class Shuffled(nn.Module):
    """Layers of equal shape, not in the order of their names, initialised with zeros."""

    def __init__(self) -> None:
        super().__init__()
        self.out, self.middle, self.first = (nn.Linear(4, 4) for _ in range(3))
        for p in self.parameters():
            nn.init.zeros_(p)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(torch.tanh(self.middle(torch.relu(self.first(x)))))


class Pooled(nn.Module):
    """Mean of the head applied to parts of a sample, which equals the head applied to the mean."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(2, 5), nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.relu(self.body(x.reshape(-1, 2, 2)))).mean(dim=1)


class Number(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(4, 5), nn.Linear(5, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.body(x))).squeeze(-1)


class Twice(nn.Module):
    """The same layer in the middle and at the end."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(torch.relu(self.layer(x)))


class Tied(nn.Module):
    """A head that shares its weight with the layer below."""

    def __init__(self) -> None:
        super().__init__()
        self.head, self.body = nn.Linear(4, 4), nn.Linear(4, 4)
        self.body.weight = self.head.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.relu(self.body(x)))


class NextTo(nn.Module):
    """Sum of two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head, self.other = nn.Linear(4, 4), nn.Linear(4, 3), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.relu(self.body(x))) + self.other(x)


def ending(*layers: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Linear(4, 4), nn.ReLU(), *layers)


def frozen() -> nn.Module:
    built = ending(nn.Linear(4, 3))
    built[2].bias.requires_grad_(False)
    return built


@pytest.mark.parametrize(
    ("module", "head"),
    [(Shuffled(), "out"), (Pooled(), "head"), (Number(), "head"), (ending(ending(nn.Linear(4, 4))), "2.2")],
)
def test_the_head_is_found(module, head):
    assert find_head(module, (4,)) == head


@pytest.mark.parametrize("spec", ["cnn:channels=2,hidden=3", "resnet18:width=0.1", "mobilenet-v2:width=0.1"])
def test_the_heads_of_networks_are_those_they_name(spec):
    learner = make_learner(spec, Profile((3, 8, 8), 3))
    assert find_head(learner.module, (3, 8, 8)) == learner.head


@pytest.mark.parametrize(
    "module",
    [
        Twice(),
        Tied(),
        NextTo(),
        frozen(),
        nn.Linear(4, 3),
        ending(nn.Linear(4, 3, bias=False)),
        ending(nn.Linear(4, 3), nn.LogSoftmax(dim=1)),
        ending(nn.utils.parametrizations.weight_norm(nn.Linear(4, 3))),
    ],
    ids=["twice", "tied", "next to", "frozen", "nothing below", "no bias", "not the end", "another form"],
)
def test_other_layers_are_not_mistaken_for_the_head(module):
    assert find_head(module, (4,)) is None


def test_the_head_is_searched_once_on_first_use(monkeypatch):
    looked = []
    monkeypatch.setattr("coterie.learners.module.find_head", lambda *args: looked.append(args) or find_head(*args))
    learner = make_learner(Shuffled, Profile((4,), 4))
    random = torch.Generator().manual_seed(0)
    theta = {n: torch.rand(p.shape, generator=random) for n, p in learner.start([1, 2], torch.float64).items()}
    x = torch.rand((2, 3, 4), generator=random)
    outputs = learner.outputs(theta, x)
    assert not looked
    features = learner.features(theta, x)
    expected = features @ theta["out.weight"].mT + theta["out.bias"][:, None]
    torch.testing.assert_close(outputs, expected)
    assert learner.head == "out"
    assert len(looked) == 1
