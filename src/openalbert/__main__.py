"""`python -m openalbert` is the command `openalbert`."""

from openalbert.cli import main

main()
