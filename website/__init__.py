"""Parts of `make docs` other than the pages: see mkdocs.yml."""
