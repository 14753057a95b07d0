"""Plugins: Python files and packages that register user-defined methods, tasks, callbacks, scenarios and more."""
