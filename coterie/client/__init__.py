"""What runs beside the data. Nothing here knows the server."""
