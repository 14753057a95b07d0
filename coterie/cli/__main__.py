"""The command line as `python -m coterie.cli`."""

from coterie.cli.main import main

if __name__ == "__main__":
    main()
