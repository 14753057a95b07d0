"""An ordinary server app."""

from coterie.flower.server import make_server_app

app = make_server_app()
