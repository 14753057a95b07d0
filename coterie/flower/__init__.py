"""Federations of remote clients over Flower: the server side (`make_server_app`) and the node side (`make_client_app`).

This module imports nothing: Flower starts a new process at the node for every message, which needs the node side only.
"""
