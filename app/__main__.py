"""`python -m app` is `tricklecast`."""

from app.cli import main

main()
