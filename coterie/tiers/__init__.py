"""The four choices that make a clustered method: objective, weights, procedure, distance.

A member's methods start with the side they run on: `client_` beside the data, `server_` without it. `register` makes a
member of one's own known.
"""

from coterie.tiers.members import register

__all__ = ["register"]
