"""The command line, as `python -m mirage`."""

from mirage.cli import main

main()
