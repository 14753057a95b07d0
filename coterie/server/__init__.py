"""Code that runs on the server without data; it does not import code of the clients."""
