"""Plugins: Python files and packages that register user-defined methods, tier members, tasks, callbacks or scenarios."""
