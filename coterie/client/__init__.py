"""Code that runs next to the data. It does not know the server."""
