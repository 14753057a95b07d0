"""The server as everybody would write it."""

from coterie.federation.flower.server import make_server_app

app = make_server_app()
