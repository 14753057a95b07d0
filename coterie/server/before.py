"""What happens before the first round: its number, and what it costs."""

from __future__ import annotations

from dataclasses import dataclass

from coterie.core.federation import Replies
from coterie.core.messages import Reply

BEFORE = -1
"""The round number of everything that happens before the first round."""


@dataclass
class Cost:
    """What the exchanges cost so far."""

    exchanges: int = 0
    bytes_up: int = 0
    bytes_down: int = 0

    def count(self, replies: Replies) -> Reply:
        """Add one exchange and hand on what was said."""
        self.exchanges += 1
        self.bytes_up += replies.bytes_up
        self.bytes_down += replies.bytes_down
        return replies.reply
