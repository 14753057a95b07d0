"""Pages and tables. Reads records and results only."""
