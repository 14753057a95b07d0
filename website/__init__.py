"""What `make docs` needs beside the pages: see mkdocs.yml."""
