"""Rounds of linear and logistic models in which each client's samples are read once, compiled by Numba.

A client's samples stay in the processor's cache while the losses of all models, the choice of a model and its gradient
are computed. Clients are divided into chunks; every chunk has its own sums, so that the result does not depend on which
thread computes it.

Shapes: N samples, m clients, S models in R restarts of K clusters, p features, C classes.
"""

from __future__ import annotations

import numpy as np

from coterie.core.compiled import compiled

# ---- products of samples and models --------------------------------------------------------------------------------


@compiled
def outputs(x, first, count, weight, out):  # type: ignore[no-untyped-def]
    """Set `out[s, i]` to the product of sample `first + i` and the model `weight[s]`.

    Four samples and two models are multiplied at once, so that each number is loaded less often.
    """
    p = weight.shape[1]
    zero = x.dtype.type(0)
    i = 0
    while i + 4 <= count:
        x0, x1, x2, x3 = x[first + i], x[first + i + 1], x[first + i + 2], x[first + i + 3]
        s = 0
        while s + 2 <= len(weight):
            u, v = weight[s], weight[s + 1]
            a0 = a1 = a2 = a3 = b0 = b1 = b2 = b3 = zero
            for j in range(p):
                uj, vj = u[j], v[j]
                a0 += x0[j] * uj
                a1 += x1[j] * uj
                a2 += x2[j] * uj
                a3 += x3[j] * uj
                b0 += x0[j] * vj
                b1 += x1[j] * vj
                b2 += x2[j] * vj
                b3 += x3[j] * vj
            out[s, i], out[s, i + 1], out[s, i + 2], out[s, i + 3] = a0, a1, a2, a3
            out[s + 1, i], out[s + 1, i + 1], out[s + 1, i + 2], out[s + 1, i + 3] = b0, b1, b2, b3
            s += 2
        if s < len(weight):
            u = weight[s]
            a0 = a1 = a2 = a3 = zero
            for j in range(p):
                uj = u[j]
                a0 += x0[j] * uj
                a1 += x1[j] * uj
                a2 += x2[j] * uj
                a3 += x3[j] * uj
            out[s, i], out[s, i + 1], out[s, i + 2], out[s, i + 3] = a0, a1, a2, a3
        i += 4
    while i < count:
        x0 = x[first + i]
        for s in range(len(weight)):
            u = weight[s]
            a0 = zero
            for j in range(p):
                a0 += x0[j] * u[j]
            out[s, i] = a0
        i += 1


@compiled
def add_samples(x, first, count, factors, out):  # type: ignore[no-untyped-def]
    """Add the samples from `first` on, each multiplied by its factor, to the vector `out`."""
    p = len(out)
    i = 0
    while i + 4 <= count:
        x0, x1, x2, x3 = x[first + i], x[first + i + 1], x[first + i + 2], x[first + i + 3]
        u0, u1, u2, u3 = factors[i], factors[i + 1], factors[i + 2], factors[i + 3]
        for j in range(p):
            out[j] += u0 * x0[j] + u1 * x1[j] + u2 * x2[j] + u3 * x3[j]
        i += 4
    while i < count:
        x0, u0 = x[first + i], factors[i]
        for j in range(p):
            out[j] += u0 * x0[j]
        i += 1


@compiled
def longest(starts, stops, begin, end):  # type: ignore[no-untyped-def]
    """Return the largest number of samples of the clients from `begin` to `end`."""
    most = 0
    for c in range(begin, end):
        most = max(most, stops[c] - starts[c])
    return most


@compiled
def candidates(fixed, client, restart, clusters):  # type: ignore[no-untyped-def]
    """Return the range of models among which a client chooses in a restart."""
    if len(fixed) > 0 and fixed[client, restart] >= 0:
        return fixed[client, restart], fixed[client, restart] + 1
    return restart * clusters, (restart + 1) * clusters


# ---- linear models -------------------------------------------------------------------------------------------------


@compiled
def best_linear(x, y, first, n, bias, low, high, errors):  # type: ignore[no-untyped-def]
    """Subtract the targets from the outputs in `errors`, (S, n), and return the least sum of squares and its model."""
    least, best = np.inf, low
    for s in range(low, high):
        total = 0.0
        for i in range(n):
            error = errors[s, i] + bias[s] - y[first + i]
            errors[s, i] = error
            total += error * error
        if total < least:  # never true for NaN
            least, best = total, s
    return least, best


@compiled
def linear_step(  # type: ignore[no-untyped-def]
    x, y, starts, stops, weight, bias, clusters, fixed, mass,
    has_bias, rate, factor,
    bounds, chunk, last_chunk, weight_sums, bias_sums, own, loss,
):  # fmt: skip
    """Train the clients of some chunks: choose a model by its squared error, and take one gradient step from it.

    Args:
        x, y: Samples (N, p) and targets (N,).
        starts, stops: Range of samples of each client, (m,).
        weight, bias: Models, (S, p) and (S,); the bias is 0 without `has_bias`.
        clusters: Number of models of a restart (K), among which a client chooses.
        fixed: Models that each client trains without a choice, (m, R), or -1; (0, 0) if all clients choose.
        mass: Weight of each client in the sums, (m,).
        has_bias: 1 if models have a bias, else 0.
        rate: Learning rate times the factor of the gradient, 1 or 2.
        factor: Factor of the loss, 1/2 or 1.
        bounds: First client of each chunk, with m at the end.
        chunk, last_chunk: Range of the chunks.
        weight_sums, bias_sums: Sums of the changes by chunk, (chunks, S, p) and (chunks, S), which start at 0.
        own, loss: Model and loss of each client in each restart, (m, R), which are written.
    """
    most = longest(starts, stops, bounds[chunk], bounds[last_chunk])
    errors, factors = np.empty((len(weight), most), x.dtype), np.empty(most, x.dtype)
    for k in range(chunk, last_chunk):
        for c in range(bounds[k], bounds[k + 1]):
            first, n = starts[c], stops[c] - starts[c]
            if len(fixed) == 0:
                outputs(x, first, n, weight, errors)
            for r in range(own.shape[1]):
                low, high = candidates(fixed, c, r, clusters)
                if len(fixed) > 0:
                    outputs(x, first, n, weight[low:high], errors[low:high])
                least, s = best_linear(x, y, first, n, bias, low, high, errors)
                own[c, r], loss[c, r] = s, factor * least / n
                step = x.dtype.type(rate / n * mass[c])
                for i in range(n):
                    factors[i] = -step * errors[s, i]
                add_samples(x, first, n, factors, weight_sums[k, s])
                if has_bias:
                    for i in range(n):
                        bias_sums[k, s] += factors[i]


@compiled
def descend_quadratic(matrix, side, start, rate, keep, steps, found, step):  # type: ignore[no-untyped-def]
    """Set `found` to the sum of gradient steps whose gradient is `start + matrix found`; `step` is for temporary use.

    After each step but the first, `found` is multiplied by `keep` (proximal term).
    """
    for i in range(side):
        found[i] = -rate * start[i]
    for _ in range(steps - 1):
        for i in range(side):
            total = start[i]
            for j in range(side):
                total += matrix[i * side + j] * found[j]
            step[i] = total
        for i in range(side):
            found[i] = keep * found[i] - rate * step[i]


@compiled
def linear_steps_by_matrix(  # type: ignore[no-untyped-def]
    x, y, starts, stops, weight, bias, clusters, fixed, mass,
    has_bias, rate, factor, keep, steps, matrices, offsets,
    bounds, chunk, last_chunk, weight_sums, bias_sums, own, loss,
):  # fmt: skip
    """Do the same with several steps, given the Gram matrix of each client, or its moment matrix if that is smaller.

    Args:
        keep: Factor of the change after each step but the first.
        steps: Number of gradient steps.
        matrices: Gram matrices (n_i, n_i) or moment matrices (q, q) of all clients, one after the other. With a bias,
            every sample has a last feature 1.
        offsets: Where the matrix of each client begins, (m,). Further arguments are those of `linear_step`.
    """
    p = weight.shape[1]
    q = p + has_bias
    most = longest(starts, stops, bounds[chunk], bounds[last_chunk])
    errors, factors = np.empty((len(weight), most), x.dtype), np.empty(most, x.dtype)
    gradient, change, spare = np.empty(p, x.dtype), np.empty(q, x.dtype), np.empty(max(most, q), x.dtype)
    start = np.empty(q, x.dtype)
    kept = x.dtype.type(keep)
    for k in range(chunk, last_chunk):
        for c in range(bounds[k], bounds[k + 1]):
            first, n = starts[c], stops[c] - starts[c]
            if len(fixed) == 0:
                outputs(x, first, n, weight, errors)
            for r in range(own.shape[1]):
                low, high = candidates(fixed, c, r, clusters)
                if len(fixed) > 0:
                    outputs(x, first, n, weight[low:high], errors[low:high])
                least, s = best_linear(x, y, first, n, bias, low, high, errors)
                own[c, r], loss[c, r] = s, factor * least / n
                step, weigh = x.dtype.type(rate / n), x.dtype.type(mass[c])
                matrix = matrices[offsets[c] :]
                if n <= q:
                    descend_quadratic(matrix, n, errors[s], step, kept, steps, factors, spare)
                    for i in range(n):
                        factors[i] *= weigh
                        if has_bias:
                            bias_sums[k, s] += factors[i]
                    add_samples(x, first, n, factors, weight_sums[k, s])
                    continue
                gradient[:] = 0
                add_samples(x, first, n, errors[s], gradient)
                start[:p] = gradient
                if has_bias:
                    start[p] = 0
                    for i in range(n):
                        start[p] += errors[s, i]
                descend_quadratic(matrix, q, start, step, kept, steps, change, spare)
                for j in range(p):
                    weight_sums[k, s, j] += weigh * change[j]
                if has_bias:
                    bias_sums[k, s] += weigh * change[p]


@compiled
def linear_steps_by_passes(  # type: ignore[no-untyped-def]
    x, y, starts, stops, weight, bias, clusters, fixed, mass,
    has_bias, rate, factor, keep, steps,
    bounds, chunk, last_chunk, weight_sums, bias_sums, own, loss,
):  # fmt: skip
    """Do the same with repeated passes over the samples of a client, which are in the cache."""
    most = longest(starts, stops, bounds[chunk], bounds[last_chunk])
    errors, factors = np.empty((len(weight), most), x.dtype), np.empty(most, x.dtype)
    change, moved = np.empty((1, weight.shape[1]), x.dtype), np.empty((1, most), x.dtype)
    kept = x.dtype.type(keep)
    for k in range(chunk, last_chunk):
        for c in range(bounds[k], bounds[k + 1]):
            first, n = starts[c], stops[c] - starts[c]
            if len(fixed) == 0:
                outputs(x, first, n, weight, errors)
            for r in range(own.shape[1]):
                low, high = candidates(fixed, c, r, clusters)
                if len(fixed) > 0:
                    outputs(x, first, n, weight[low:high], errors[low:high])
                least, s = best_linear(x, y, first, n, bias, low, high, errors)
                own[c, r], loss[c, r] = s, factor * least / n
                step, weigh = x.dtype.type(rate / n), x.dtype.type(mass[c])
                change[:] = 0
                moved[:] = 0
                offset = x.dtype.type(0)
                for t in range(steps):
                    if t > 0:
                        outputs(x, first, n, change, moved)
                    drift = x.dtype.type(0)
                    for i in range(n):
                        factors[i] = -step * (errors[s, i] + moved[0, i] + offset)
                        drift += factors[i]
                    if t > 0:
                        offset *= kept
                        for j in range(change.shape[1]):
                            change[0, j] *= kept
                    add_samples(x, first, n, factors, change[0])
                    if has_bias:
                        offset += drift
                for j in range(change.shape[1]):
                    weight_sums[k, s, j] += weigh * change[0, j]
                bias_sums[k, s] += weigh * offset
