"""Clients elsewhere, reached through Flower: the server's half (`FlowerFederation`) and the node's (`make_client_app`).

Nothing is imported here: a node's process begins anew for every message and needs only its own half.
"""
