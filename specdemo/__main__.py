"""`python -m specdemo ...`"""

from specdemo.cli import app, start

if __name__ == "__main__":
    start(app, "python -m specdemo")
