"""An extension of Griffe: sections called `Example:` are examples, whose code is set as code."""

import re
from typing import Any

import griffe


class Examples(griffe.Extension):
    """Let the parser of docstrings know the singular."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Rename the section in the docstring of one object."""
        if obj.docstring is not None:
            obj.docstring.value = re.sub(r"^Example:$", "Examples:", obj.docstring.value, flags=re.MULTILINE)
