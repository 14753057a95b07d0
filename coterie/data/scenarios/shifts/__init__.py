"""What can differ between clients: how images look, which labels they hold, what labels mean, which ones are wrong."""
