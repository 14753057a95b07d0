"""Code that runs next to the data of clients; it does not import code of the server."""
