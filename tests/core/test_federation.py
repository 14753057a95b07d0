"""Positions of clients in a federation."""

from __future__ import annotations

from types import SimpleNamespace

from coterie.core.federation import positions_of

FOUR = SimpleNamespace(clients=("a", "b", "c", "d"))


def test_positions_of_all_clients_are_in_order():
    assert positions_of(FOUR, ("a", "b", "c", "d")).tolist() == [0, 1, 2, 3]


def test_positions_of_some_clients_are_in_the_order_of_the_ids():
    assert positions_of(FOUR, ("d", "b")).tolist() == [3, 1]
    assert positions_of(FOUR, ("b", "a", "d", "c")).tolist() == [1, 0, 3, 2]


def test_no_clients_have_no_positions():
    assert positions_of(FOUR, ()).tolist() == []
