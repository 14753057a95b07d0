"""The run folder: config, versions, records, checkpoints, final models; and how to go on from it."""
