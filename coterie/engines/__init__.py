"""Engines: implementations of `Federation.ask` for simulated clients, all with equal results; attacks by clients."""
