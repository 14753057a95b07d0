"""Proximal term of cluster heads against a plain loop with the penalty in the objective."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from coterie.learners.descent import batches
from coterie.learners.heads import Heads, descend_heads, descend_together, head_losses
from tests.learners.test_heads import LR, WORK, case

PULL = 0.7


def plain(learner, body, heads, centre, block, gamma, work, moves_body):
    """Take steps on the mean loss + PULL/2 |heads - centre|^2 by autograd; finished clients do not move."""
    body = {n: p.clone() for n, p in body.items()}
    own = [heads.weight.clone(), heads.bias.clone()]
    for batch in batches(replace(block, shares=gamma), work):
        names, leaves = list(body), [p.requires_grad_() for p in (*body.values(), *own)]
        now = Heads(*leaves[len(names) :])
        z = learner.features(dict(zip(names, leaves, strict=False)), batch.x)
        losses = head_losses(learner, now, z, batch.y) * batch.shares
        far = sum(((a - b) ** 2).flatten(1).sum(dim=1) for a, b in zip(now.params("h").values(), centre, strict=True))
        here = (batch.counts > 0).double()
        slopes = torch.autograd.grad((losses.sum(dim=(1, 2)) + here * PULL / 2 * far).sum(), leaves)
        moved = [p.detach() - LR * s for p, s in zip(leaves, slopes, strict=True)]
        body = dict(zip(names, moved, strict=False)) if moves_body else {n: p.detach() for n, p in body.items()}
        own = moved[len(names) :]
    return body, own


@pytest.mark.parametrize("together", [False, True])
@pytest.mark.parametrize("work", WORK.values(), ids=WORK)
def test_pulled_heads_are_those_of_plain_steps(work, together):
    learner, block, body, heads, gamma = case("mlp")
    centre = Heads(heads.weight.flip(1).clone(), heads.bias.flip(1).clone())
    work = replace(work, prox=PULL)
    new_body, own = plain(learner, body, heads, [centre.weight, centre.bias], block, gamma, work, together)
    if together:
        change, moved = descend_together(learner, body, heads, block, gamma, work, LR, centre)
        found = [heads.weight + moved.weight, heads.bias + moved.bias]
        for name, value in new_body.items():
            torch.testing.assert_close(body[name] + change[name], value, rtol=1e-10, atol=1e-12)
    else:
        still = descend_heads(learner, heads, learner.features(body, block.x), block, gamma, work, LR, centre)
        found = [still.weight, still.bias]
    for a, b in zip(found, own, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-12)
