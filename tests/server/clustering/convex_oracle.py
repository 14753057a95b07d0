"""Convex clustering by plain loops, and data without a random generator."""

from __future__ import annotations

import itertools

import numpy as np


def regression_points():
    """Return 48 points in 6 dimensions around four centres; point i belongs to centre i mod 4."""
    i, k = np.arange(48)[:, None], np.arange(6)[None]
    noise = 0.3 * np.sin(2 + 7.77 * (i + 1) + 3.33 * (k + 1) * (i + 2))
    return 3 * np.cos(0.7 + (i % 4) * (k + 1) * 1.1) + noise


def objective(points, u, lam, weights=None) -> float:
    """Return the objective (12), computed pair by pair."""
    total = 0.5 * ((u - points) ** 2).sum()
    for i, j in itertools.combinations(range(len(points)), 2):
        total += lam * (1.0 if weights is None else weights[i, j]) * np.sqrt(((u[i] - u[j]) ** 2).sum())
    return float(total)


def admm(points, lam, weights=None, rounds=4000):
    """Return u (m, d) by ADMM on the differences of all pairs, a slow and independent algorithm."""
    m, d = points.shape
    pairs = list(itertools.combinations(range(m), 2))
    radii = lam * np.array([1.0 if weights is None else weights[i, j] for i, j in pairs])[:, None]
    B = np.zeros((len(pairs), m))
    for e, (i, j) in enumerate(pairs):
        B[e, i], B[e, j] = 1.0, -1.0
    rho = 2.0 / m
    inverse = np.linalg.inv(np.eye(m) + rho * B.T @ B)
    v, y = np.zeros((len(pairs), d)), np.zeros((len(pairs), d))
    for _ in range(rounds):
        u = inverse @ (points + rho * B.T @ (v - y))
        w = B @ u + y
        v = w * np.maximum(0.0, 1.0 - radii / rho / np.maximum(np.linalg.norm(w, axis=1, keepdims=True), 1e-300))
        y = w - v
    return u


def edge_weights(graph):
    """Return the weights of a sparse graph as a matrix, (m, m)."""
    found = np.zeros((graph.K, graph.K))
    for (i, j), weight in zip(graph.ends, graph.weights, strict=True):
        found[i, j] = found[j, i] = weight
    return found
