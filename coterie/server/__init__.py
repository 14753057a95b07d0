"""What runs without data: the loop, the start, sampling, aggregation. Nothing here knows the client side."""
