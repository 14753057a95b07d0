"""Where clients live. A federation has one verb, `ask`; every engine answers it with the same result."""
