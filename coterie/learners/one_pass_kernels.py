"""Rounds of linear and logistic models in which each client's samples are read once, compiled by Numba.

A client's samples stay in the processor's cache while the losses of all models, the choice of a model and its gradient
are computed. Clients are divided into chunks; every chunk has its own sums, so that the result does not depend on which
thread computes it.

Shapes: N samples, m clients, S models in R restarts of K clusters, p features, C classes.
"""

from __future__ import annotations

import numpy as np

from coterie.core.compiled import compiled, compiled_in_order

# ---- products of samples and models --------------------------------------------------------------------------------


@compiled
def outputs(x, first, count, weight, out):  # type: ignore[no-untyped-def]
    """Set `out[s, i]` to the product of sample `first + i` and the model `weight[s]`.

    Four samples and two models are multiplied at once, so that each number is loaded less often. The last four samples
    may overlap with those before them. Rows are not taken out as arrays, since counting references takes time.
    """
    models, p = weight.shape
    zero = x.dtype.type(0)
    for block in range((count + 3) // 4 if count >= 4 else 0):
        i = min(4 * block, count - 4)
        f = first + i
        for s in range(0, models - 1, 2):
            a0 = a1 = a2 = a3 = b0 = b1 = b2 = b3 = zero
            for j in range(p):
                u, v = weight[s, j], weight[s + 1, j]
                a0 += x[f, j] * u
                a1 += x[f + 1, j] * u
                a2 += x[f + 2, j] * u
                a3 += x[f + 3, j] * u
                b0 += x[f, j] * v
                b1 += x[f + 1, j] * v
                b2 += x[f + 2, j] * v
                b3 += x[f + 3, j] * v
            out[s, i], out[s, i + 1], out[s, i + 2], out[s, i + 3] = a0, a1, a2, a3
            out[s + 1, i], out[s + 1, i + 1], out[s + 1, i + 2], out[s + 1, i + 3] = b0, b1, b2, b3
        if models % 2 == 1:
            s = models - 1
            a0 = a1 = a2 = a3 = zero
            for j in range(p):
                u = weight[s, j]
                a0 += x[f, j] * u
                a1 += x[f + 1, j] * u
                a2 += x[f + 2, j] * u
                a3 += x[f + 3, j] * u
            out[s, i], out[s, i + 1], out[s, i + 2], out[s, i + 3] = a0, a1, a2, a3
    for i in range(count if count < 4 else 0):
        for s in range(models):
            a0 = zero
            for j in range(p):
                a0 += x[first + i, j] * weight[s, j]
            out[s, i] = a0


@compiled
def add_samples(x, first, count, factors, out, row):  # type: ignore[no-untyped-def]
    """Add the samples from `first` on, each multiplied by its factor, to `out[row]`."""
    p, whole = out.shape[1], 4 * (count // 4)
    for i in range(0, whole, 4):
        f = first + i
        u0, u1, u2, u3 = factors[i], factors[i + 1], factors[i + 2], factors[i + 3]
        for j in range(p):
            out[row, j] += u0 * x[f, j] + u1 * x[f + 1, j] + u2 * x[f + 2, j] + u3 * x[f + 3, j]
    for i in range(whole, count):
        u0 = factors[i]
        for j in range(p):
            out[row, j] += u0 * x[first + i, j]


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
        weight_sums, bias_sums: Sums of the changes by chunk, (chunks S, p) and (chunks, S), which start at 0.
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
                add_samples(x, first, n, factors, weight_sums, k * len(weight) + s)
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
    gradient, change, spare = np.empty((1, p), x.dtype), np.empty(q, x.dtype), np.empty(max(most, q), x.dtype)
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
                    add_samples(x, first, n, factors, weight_sums, k * len(weight) + s)
                    continue
                gradient[:] = 0
                add_samples(x, first, n, errors[s], gradient, 0)
                start[:p] = gradient[0]
                if has_bias:
                    start[p] = 0
                    for i in range(n):
                        start[p] += errors[s, i]
                descend_quadratic(matrix, q, start, step, kept, steps, change, spare)
                for j in range(p):
                    weight_sums[k * len(weight) + s, j] += weigh * change[j]
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
                    add_samples(x, first, n, factors, change, 0)
                    if has_bias:
                        offset += drift
                for j in range(change.shape[1]):
                    weight_sums[k * len(weight) + s, j] += weigh * change[0, j]
                bias_sums[k, s] += weigh * offset


@compiled
def respond(y, first, n, bias, low, high, prior, scale, errors, gammas, share):  # type: ignore[no-untyped-def]
    """Set `gammas`, (S, n), to the responsibilities of the models from `low` to `high` for a client's samples.

    Args:
        prior: Logarithm of the client's weight of each model, (S,).
        scale: Factor of a squared error in -log L.
        errors: Outputs of all models, (S, n), from which the targets are subtracted.
        share: Sums of the responsibilities, (S,), which are written.

    Returns:
        The sum of the squared errors weighted by the responsibilities, and the sum of the log-likelihoods.
    """
    fit = likelihood = 0.0
    for s in range(low, high):
        share[s] = 0.0
    for i in range(n):
        top, total = -np.inf, 0.0
        for s in range(low, high):
            error = errors[s, i] + bias[s] - y[first + i]
            errors[s, i] = error
            gammas[s, i] = prior[s] - scale * np.float64(error) * np.float64(error)
            top = max(top, gammas[s, i])
        for s in range(low, high):
            gammas[s, i] = exponential(gammas[s, i] - top)
            total += gammas[s, i]
        for s in range(low, high):
            gamma = gammas[s, i] / total
            gammas[s, i] = gamma
            share[s] += gamma
            fit += gamma * np.float64(errors[s, i]) * np.float64(errors[s, i])
        likelihood += top + np.log(total)
    return fit, likelihood


@compiled
def linear_mixture(  # type: ignore[no-untyped-def]
    x, y, starts, stops, weight, bias, clusters, fixed, mass,
    has_bias, rate, factor, keep, steps, by_share, prior, scale, shift, shares, likelihood,
    bounds, chunk, last_chunk, weight_sums, bias_sums, own, loss,
):  # fmt: skip
    """Train all models, each sample weighted by the responsibilities of the models, with passes over the samples.

    Args:
        by_share: 1 if changes are weighted by the mean responsibilities, else 0.
        prior: Logarithm of each client's weight of each model, (m, S).
        scale, shift: -log L is `shift[r]` plus `scale[r]` times the squared error, (R,).
        shares: Mean responsibilities, (m, S), which are written.
        likelihood: Mean log-likelihoods, (m, R), which are written. Further arguments are those of
            `linear_steps_by_passes`; `own` is the model with the largest mean responsibility.
    """
    most = longest(starts, stops, bounds[chunk], bounds[last_chunk])
    errors, gammas = np.empty((len(weight), most), x.dtype), np.empty((len(weight), most))
    factors, moved = np.empty(most, x.dtype), np.empty((1, most), x.dtype)
    change = np.empty((1, weight.shape[1]), x.dtype)
    kept = x.dtype.type(keep)
    for k in range(chunk, last_chunk):
        for c in range(bounds[k], bounds[k + 1]):
            first, n = starts[c], stops[c] - starts[c]
            outputs(x, first, n, weight, errors)
            for r in range(own.shape[1]):
                low, high = r * clusters, (r + 1) * clusters
                fit, total = respond(y, first, n, bias, low, high, prior[c], scale[r], errors, gammas, shares[c])
                loss[c, r], likelihood[c, r], own[c, r] = factor * fit / n, total / n - shift[r], low
                for s in range(low, high):
                    shares[c, s] /= n
                    if shares[c, s] > shares[c, own[c, r]]:
                        own[c, r] = s
                    weigh = x.dtype.type(mass[c] * (shares[c, s] if by_share else 1.0))
                    step = x.dtype.type(rate / n)
                    change[:] = 0
                    moved[:] = 0
                    offset = x.dtype.type(0)
                    for t in range(steps):
                        if t > 0:
                            outputs(x, first, n, change, moved)
                        drift = x.dtype.type(0)
                        for i in range(n):
                            pull = x.dtype.type(gammas[s, i])
                            factors[i] = -step * pull * (errors[s, i] + moved[0, i] + offset)
                            drift += factors[i]
                        if t > 0:
                            offset *= kept
                            for j in range(change.shape[1]):
                                change[0, j] *= kept
                        add_samples(x, first, n, factors, change, 0)
                        if has_bias:
                            offset += drift
                    for j in range(change.shape[1]):
                        weight_sums[k * len(weight) + s, j] += weigh * change[0, j]
                    bias_sums[k, s] += weigh * offset


# ---- logistic models -----------------------------------------------------------------------------------------------

# Unlike those of a mathematical library, these functions are computed for several numbers at once.

LOG2_E, LN2_HIGH, LN2_LOW = 1.4426950408889634, 0.693147180369123816490, 1.90821492927058770002e-10
ROUND = 6755399441055744.0
"""1.5 times 2^52: a number plus this one has the nearest integer in its lowest bits."""


@compiled_in_order
def exponential(z):  # type: ignore[no-untyped-def]
    """Return exp(z) for z of at most 709, to about two units in the last place; 0 below -708, and NaN for NaN."""
    if z < -708.0:
        z = -708.0
    shifted = z * LOG2_E + ROUND
    whole = shifted - ROUND
    r = (z - whole * LN2_HIGH) - whole * LN2_LOW
    value = 1.0 / 479001600.0
    value = value * r + 1.0 / 39916800.0
    value = value * r + 1.0 / 3628800.0
    value = value * r + 1.0 / 362880.0
    value = value * r + 1.0 / 40320.0
    value = value * r + 1.0 / 5040.0
    value = value * r + 1.0 / 720.0
    value = value * r + 1.0 / 120.0
    value = value * r + 1.0 / 24.0
    value = value * r + 1.0 / 6.0
    value = value * r + 0.5
    value = value * r + 1.0
    value = value * r + 1.0
    bits = np.float64(shifted).view(np.int64)
    return value * np.int64((bits + 1023) << 52).view(np.float64)


@compiled_in_order
def log_of_one_plus(e):  # type: ignore[no-untyped-def]
    """Return log(1 + e) for e from 0 to 1, to a few units in the last place.

    It is 2 artanh(e / (2 + e)); for large e, the logarithm of the square root of 2 is taken out first.
    """
    large = e > 0.4142135623730950488
    s = (e - 0.4142135623730950488) / (e + 2.4142135623730950488) if large else e / (2.0 + e)
    q = s * s
    value = 1.0 / 23.0
    value = value * q + 1.0 / 21.0
    value = value * q + 1.0 / 19.0
    value = value * q + 1.0 / 17.0
    value = value * q + 1.0 / 15.0
    value = value * q + 1.0 / 13.0
    value = value * q + 1.0 / 11.0
    value = value * q + 1.0 / 9.0
    value = value * q + 1.0 / 7.0
    value = value * q + 1.0 / 5.0
    value = value * q + 1.0 / 3.0
    value = value * q + 1.0
    return 2.0 * s * value + (0.34657359027997265471 if large else 0.0)


@compiled
def best_logistic(signs, n, bias, low, high, logits):  # type: ignore[no-untyped-def]
    """Add the biases to `logits`, (S, n), and return the least sum of the losses and its model.

    Args:
        signs: -1 for samples of class 1, and 1 for samples of class 0.
    """
    least, best = np.inf, low
    for s in range(low, high):
        total = 0.0
        for i in range(n):
            logit = logits[s, i] + bias[s]
            logits[s, i] = logit
            size = np.float64(abs(logit))
            total += 0.5 * (signs[i] * logit + size) + log_of_one_plus(exponential(-size))
        if total < least:  # never true for NaN
            least, best = total, s
    return least, best


@compiled
def logistic_steps(  # type: ignore[no-untyped-def]
    x, y, starts, stops, weight, bias, clusters, fixed, mass,
    has_bias, rate, l2, pull, steps,
    bounds, chunk, last_chunk, weight_sums, bias_sums, own, loss,
):  # fmt: skip
    """Train the clients of some chunks: choose a model by its logistic loss, and take gradient steps from it.

    Args:
        rate: Learning rate.
        l2: Learning rate times the weight of the penalty.
        pull: Learning rate times the weight of the proximal term.
        steps: Number of gradient steps. Further arguments are those of `linear_step`; `y` holds 0 and 1.
    """
    p = weight.shape[1]
    most = longest(starts, stops, bounds[chunk], bounds[last_chunk])
    logits, factors = np.empty((len(weight), most), x.dtype), np.empty(most, x.dtype)
    moved, change, again = np.empty((1, p), x.dtype), np.empty((1, p), x.dtype), np.empty((1, most), x.dtype)
    signs = np.empty(most, x.dtype)
    penalty, pulled = x.dtype.type(l2), x.dtype.type(pull)
    for k in range(chunk, last_chunk):
        for c in range(bounds[k], bounds[k + 1]):
            first, n = starts[c], stops[c] - starts[c]
            for i in range(n):
                signs[i] = 1 - 2 * y[first + i]
            if len(fixed) == 0:
                outputs(x, first, n, weight, logits)
            for r in range(own.shape[1]):
                low, high = candidates(fixed, c, r, clusters)
                if len(fixed) > 0:
                    outputs(x, first, n, weight[low:high], logits[low:high])
                least, s = best_logistic(signs, n, bias, low, high, logits)
                own[c, r], loss[c, r] = s, least / n
                step, weigh = x.dtype.type(rate / n), x.dtype.type(mass[c])
                change[:] = 0
                offset = x.dtype.type(0)
                again[0, :n] = logits[s, :n]
                for t in range(steps):
                    if t > 0:
                        for j in range(p):
                            moved[0, j] = weight[s, j] + change[0, j]
                        outputs(x, first, n, moved, again)
                        for i in range(n):
                            again[0, i] += bias[s] + offset
                    drift = x.dtype.type(0)
                    for i in range(n):
                        against = signs[i] * again[0, i]  # the gradient is the probability of the other class
                        small = exponential(-np.float64(abs(against)))
                        factors[i] = -step * signs[i] * ((small if against < 0 else 1.0) / (1.0 + small))
                        drift += factors[i]
                    for j in range(p):
                        change[0, j] -= penalty * (weight[s, j] + change[0, j]) + pulled * change[0, j]
                    add_samples(x, first, n, factors, change, 0)
                    if has_bias:
                        offset += drift - pulled * offset
                for j in range(p):
                    weight_sums[k * len(weight) + s, j] += weigh * change[0, j]
                bias_sums[k, s] += weigh * offset


@compiled
def exponentials(logits, low, high, n, out, largest, mass):  # type: ignore[no-untyped-def]
    """Set `out`, (C, n), to exp(logits - largest) for the classes in the rows from `low` to `high` of `logits`.

    Also set `largest` to the largest logit of each sample, and `mass` to the sum of its exponentials.
    """
    for i in range(n):
        largest[i] = logits[low, i]
        mass[i] = 0
    for q in range(low, high):
        for i in range(n):
            largest[i] = logits[q, i] if logits[q, i] > largest[i] else largest[i]
    for q in range(low, high):
        for i in range(n):
            power = exponential(np.float64(logits[q, i] - largest[i]))
            out[q - low, i] = power
            mass[i] += power


@compiled
def best_softmax(y, first, n, bias, low, high, logits, powers, largest, mass):  # type: ignore[no-untyped-def]
    """Add the biases to `logits`, (S C, n), and return the least sum of the losses and its model."""
    least, best = np.inf, low
    C = bias.shape[1]
    for s in range(low, high):
        for q in range(C):
            for i in range(n):
                logits[s * C + q, i] += bias[s, q]
        exponentials(logits, s * C, (s + 1) * C, n, powers, largest, mass)
        total = 0.0
        for i in range(n):
            total += np.log(mass[i]) + largest[i] - logits[s * C + y[first + i], i]
        if total < least:  # never true for NaN
            least, best = total, s
    return least, best


@compiled
def softmax_steps(  # type: ignore[no-untyped-def]
    x, y, starts, stops, weight, bias, clusters, fixed, mass,
    has_bias, rate, l2, pull, steps,
    bounds, chunk, last_chunk, weight_sums, bias_sums, own, loss,
):  # fmt: skip
    """Do the same for several classes; weights are (S, C, p), biases (S, C), and `y` holds classes."""
    S, classes, p = weight.shape
    rows = weight.reshape(S * classes, p)
    most = longest(starts, stops, bounds[chunk], bounds[last_chunk])
    logits, factors = np.empty((S * classes, most), x.dtype), np.empty((classes, most), x.dtype)
    moved, change = np.empty((classes, p), x.dtype), np.empty((classes, p), x.dtype)
    again, offset = np.empty((classes, most), x.dtype), np.empty(classes, x.dtype)
    largest, mass_of_all = np.empty(most, x.dtype), np.empty(most, np.float64)
    penalty, pulled = x.dtype.type(l2), x.dtype.type(pull)
    for k in range(chunk, last_chunk):
        for c in range(bounds[k], bounds[k + 1]):
            first, n = starts[c], stops[c] - starts[c]
            if len(fixed) == 0:
                outputs(x, first, n, rows, logits)
            for r in range(own.shape[1]):
                low, high = candidates(fixed, c, r, clusters)
                if len(fixed) > 0:
                    outputs(x, first, n, rows[low * classes : high * classes], logits[low * classes : high * classes])
                least, s = best_softmax(y, first, n, bias, low, high, logits, factors, largest, mass_of_all)
                own[c, r], loss[c, r] = s, least / n
                step, weigh = x.dtype.type(rate / n), x.dtype.type(mass[c])
                change[:] = 0
                offset[:] = 0
                again[:, :n] = logits[s * classes : (s + 1) * classes, :n]
                for t in range(steps):
                    if t > 0:
                        for q in range(classes):
                            for j in range(p):
                                moved[q, j] = weight[s, q, j] + change[q, j]
                        outputs(x, first, n, moved, again)
                        for q in range(classes):
                            for i in range(n):
                                again[q, i] += bias[s, q] + offset[q]
                    exponentials(again, 0, classes, n, factors, largest, mass_of_all)
                    for q in range(classes):
                        for i in range(n):
                            factors[q, i] *= -step / mass_of_all[i]
                    for i in range(n):
                        factors[y[first + i], i] += step
                    for q in range(classes):
                        for j in range(p):
                            change[q, j] -= penalty * (weight[s, q, j] + change[q, j]) + pulled * change[q, j]
                        add_samples(x, first, n, factors[q], change, q)
                        if has_bias:
                            drift = x.dtype.type(0)
                            for i in range(n):
                                drift += factors[q, i]
                            offset[q] += drift - pulled * offset[q]
                for q in range(classes):
                    for j in range(p):
                        weight_sums[(k * S + s) * classes + q, j] += weigh * change[q, j]
                    bias_sums[k, s, q] += weigh * offset[q]
