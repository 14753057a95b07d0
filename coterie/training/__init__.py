"""From a plan to a result: initialisation, the loop, callbacks, run folders."""
