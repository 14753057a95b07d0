"""Run folders: config, versions, records, checkpoints, final models, and how to resume a run from them."""
