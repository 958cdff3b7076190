"""The Space's entry, and the local one: `python app.py`. Options: `python app.py --help`."""

import typer

from specdemo.cli import serve

if __name__ == "__main__":
    typer.run(serve)
