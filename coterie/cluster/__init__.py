"""Work on the processes of a Dask cluster: shards of a simulation, and runs of experiments (extra `cluster`)."""
