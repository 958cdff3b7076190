"""The Space's entry, and the local one: `python app.py`. Options: `python app.py --help`."""

from specdemo.cli import page, start

if __name__ == "__main__":
    start(page, "app.py")
