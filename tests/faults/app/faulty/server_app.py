"""The server as everybody would write it."""

from coterie.flower.server import make_server_app

app = make_server_app()
