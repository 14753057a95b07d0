"""One self-contained HTML page about a run or a comparison. Reads records and results only."""
