"""Plugins: files and packages of users that register methods, tier members, tasks, callbacks or scenarios."""
