"""A 3x3 convolution with 2x2 max pooling and ReLU for many clients, and its gradient, compiled by Numba.

The images of a client lie one after the other in each channel, with a row of zeros above each image and a zero to the
left of each of its rows; another row of zeros follows the last image. A position of a 3x3 window then has
the same distance to its centre everywhere, so that a convolution is a sum of nine shifted copies of long rows, without
a copy of the windows. What is computed at the borders is never read.
"""

from __future__ import annotations

import numpy as np

from coterie.core.compiled import compiled

_CHUNK = 4096
"""Number of positions of a channel that are processed at once, so that all rows in use stay in the fastest cache."""
_DEAD = 4
"""Code of a pooled value that ReLU sets to zero; codes 0 to 3 are the place of the largest value in its window."""


@compiled
def _add_shifted(first, second, source, a, b, W):  # type: ignore[no-untyped-def]
    """Add the convolution of a row with the 3x3 windows `a` and `b` to two rows; W is the width with its border."""
    M = source.shape[0] - 2 * W - 2
    a0, a1, a2, a3, a4, a5, a6, a7, a8 = a[0], a[1], a[2], a[3], a[4], a[5], a[6], a[7], a[8]
    b0, b1, b2, b3, b4, b5, b6, b7, b8 = b[0], b[1], b[2], b[3], b[4], b[5], b[6], b[7], b[8]
    # slices instead of sums of indices, which LLVM does not vectorise
    s0, s1, s2 = source[0:M], source[1 : M + 1], source[2 : M + 2]
    s3, s4, s5 = source[W : W + M], source[W + 1 : W + 1 + M], source[W + 2 : W + 2 + M]
    s6, s7, s8 = source[2 * W : 2 * W + M], source[2 * W + 1 : 2 * W + 1 + M], source[2 * W + 2 : 2 * W + 2 + M]
    to_first, to_second = first[W + 1 : W + 1 + M], second[W + 1 : W + 1 + M]
    for q in range(M):
        x0, x1, x2, x3, x4, x5, x6, x7, x8 = s0[q], s1[q], s2[q], s3[q], s4[q], s5[q], s6[q], s7[q], s8[q]
        to_first[q] += a0 * x0 + a1 * x1 + a2 * x2 + a3 * x3 + a4 * x4 + a5 * x5 + a6 * x6 + a7 * x7 + a8 * x8
        to_second[q] += b0 * x0 + b1 * x1 + b2 * x2 + b3 * x3 + b4 * x4 + b5 * x5 + b6 * x6 + b7 * x7 + b8 * x8


@compiled
def _add_products(first, second, source, a, b, W):  # type: ignore[no-untyped-def]
    """Add the inner products of two rows with the nine shifts of a row to `a` and `b`."""
    M = source.shape[0] - 2 * W - 2
    s0, s1, s2 = source[0:M], source[1 : M + 1], source[2 : M + 2]
    s3, s4, s5 = source[W : W + M], source[W + 1 : W + 1 + M], source[W + 2 : W + 2 + M]
    s6, s7, s8 = source[2 * W : 2 * W + M], source[2 * W + 1 : 2 * W + 1 + M], source[2 * W + 2 : 2 * W + 2 + M]
    of_first, of_second = first[W + 1 : W + 1 + M], second[W + 1 : W + 1 + M]
    zero = source.dtype.type(0)
    a0 = a1 = a2 = a3 = a4 = a5 = a6 = a7 = a8 = zero
    b0 = b1 = b2 = b3 = b4 = b5 = b6 = b7 = b8 = zero
    for q in range(M):
        x0, x1, x2, x3, x4, x5, x6, x7, x8 = s0[q], s1[q], s2[q], s3[q], s4[q], s5[q], s6[q], s7[q], s8[q]
        g, h = of_first[q], of_second[q]
        a0 += g * x0
        a1 += g * x1
        a2 += g * x2
        a3 += g * x3
        a4 += g * x4
        a5 += g * x5
        a6 += g * x6
        a7 += g * x7
        a8 += g * x8
        b0 += h * x0
        b1 += h * x1
        b2 += h * x2
        b3 += h * x3
        b4 += h * x4
        b5 += h * x5
        b6 += h * x6
        b7 += h * x7
        b8 += h * x8
    for t, value in enumerate((a0, a1, a2, a3, a4, a5, a6, a7, a8)):
        a[t] += value
    for t, value in enumerate((b0, b1, b2, b3, b4, b5, b6, b7, b8)):
        b[t] += value


@compiled
def _pool(row, area, W, bias, out, code):  # type: ignore[no-untyped-def]
    """Pool the images in a row: out (images, h, w), code (images, h w)."""
    images, h, w = out.shape
    zero = row.dtype.type(0)
    for i in range(images):
        for y in range(h):
            upper = row[i * area + (2 * y + 1) * W + 1 : i * area + (2 * y + 2) * W]
            lower = row[i * area + (2 * y + 2) * W + 1 : i * area + (2 * y + 3) * W]
            for x in range(w):
                best, place = upper[2 * x], 0
                if upper[2 * x + 1] > best or upper[2 * x + 1] != upper[2 * x + 1]:
                    best, place = upper[2 * x + 1], 1
                if lower[2 * x] > best or lower[2 * x] != lower[2 * x]:
                    best, place = lower[2 * x], 2
                if lower[2 * x + 1] > best or lower[2 * x + 1] != lower[2 * x + 1]:
                    best, place = lower[2 * x + 1], 3
                best += bias
                dead = best <= zero
                out[i, y, x] = zero if dead else best
                code[i, y * w + x] = _DEAD if dead else place


@compiled
def _unpool(row, area, W, gradient, code):  # type: ignore[no-untyped-def]
    """Write the gradient of a row, given that of its pooled images, (images, h, w); return its sum."""
    images, h, w = gradient.shape
    row[:] = 0
    total = row.dtype.type(0)
    for i in range(images):
        for y in range(h):
            for x in range(w):
                place = code[i, y * w + x]
                if place != _DEAD:
                    value = gradient[i, y, x]
                    total += value
                    row[i * area + (2 * y + 1 + place // 2) * W + 2 * x + 1 + place % 2] = value
    return total


@compiled
def convolve(source, height, width, weight, bias, out, code):  # type: ignore[no-untyped-def]
    """Convolve, pool and apply ReLU.

    Args:
        source: Images with borders, (B, C, values).
        height: Height of an image without its border.
        width: Width of an image without its border.
        weight: Windows of each client, (B, O, C, 9).
        bias: Biases, (B, O).
        out: Pooled images, (B, O, n, h, w), are written here.
        code: Places of the largest values, (B, O, n, h w), are written here.
    """
    (B, C, _), (outputs, n), W = source.shape, code.shape[1:3], width + 1
    area, tail = (height + 1) * W, W + 1
    images = max(1, _CHUNK // area)
    rows = np.empty((2, min(n, images) * area + tail), source.dtype)
    no_window = np.zeros(9, source.dtype)
    for b in range(B):
        for begin in range(0, n, images):
            end = min(n, begin + images)
            length = (end - begin) * area + tail
            for o in range(0, outputs, 2):
                rows[:, :length] = 0
                for c in range(C):
                    second = weight[b, o + 1, c] if o + 1 < outputs else no_window
                    flat = source[b, c, begin * area : end * area + tail]
                    _add_shifted(rows[0, :length], rows[1, :length], flat, weight[b, o, c], second, W)
                for k in range(o, min(outputs, o + 2)):
                    _pool(rows[k - o, :length], area, W, bias[b, k], out[b, k, begin:end], code[b, k, begin:end])


@compiled
def gradients(  # type: ignore[no-untyped-def]
    source, height, width, weight, code, gradient, to_weight, to_bias, to_source
):
    """Compute the gradient of `convolve`.

    Args:
        source: Images with borders, (B, C, values).
        height: Height of an image without its border.
        width: Width of an image without its border.
        weight: Windows of each client, (B, O, C, 9).
        code: Places of the largest values, (B, O, n, h w).
        gradient: Gradient with respect to the pooled images, (B, O, n, h, w).
        to_weight: The gradient with respect to the windows, (B, O, C, 9), is written here.
        to_bias: The gradient with respect to the biases, (B, O), is written here.
        to_source: The gradient with respect to the images, (B, C, values), is written here; (B, 0, values): not needed.
    """
    (B, C, _), (outputs, n), W = source.shape, code.shape[1:3], width + 1
    area, tail = (height + 1) * W, W + 1
    images = max(1, _CHUNK // area)
    rows = np.empty((2, min(n, images) * area + tail), source.dtype)
    nothing, no_window, unused = (
        np.empty(rows.shape[1], source.dtype),
        np.zeros(9, source.dtype),
        np.zeros(9, source.dtype),
    )
    to_weight[:] = 0
    to_bias[:] = 0
    to_source[:] = 0
    for b in range(B):
        turned = np.ascontiguousarray(weight[b, :, :, ::-1])
        for begin in range(0, n, images):
            end = min(n, begin + images)
            length = (end - begin) * area + tail
            for o in range(0, outputs, 2):
                for k in range(o, min(outputs, o + 2)):
                    part = gradient[b, k, begin:end]
                    to_bias[b, k] += _unpool(rows[k - o, :length], area, W, part, code[b, k, begin:end])
                if o + 1 == outputs:
                    rows[1, :length] = 0
                for c in range(C):
                    second = to_weight[b, o + 1, c] if o + 1 < outputs else unused
                    flat = source[b, c, begin * area : end * area + tail]
                    _add_products(rows[0, :length], rows[1, :length], flat, to_weight[b, o, c], second, W)
                for k in range(o, min(outputs, o + 2)):
                    for c in range(0, to_source.shape[1], 2):
                        last = c + 1 == to_source.shape[1]
                        target = to_source[b, c, begin * area : end * area + tail]
                        other = nothing[:length] if last else to_source[b, c + 1, begin * area : end * area + tail]
                        window = no_window if last else turned[k, c + 1]
                        _add_shifted(target, other, rows[k - o, :length], turned[k, c], window, W)
