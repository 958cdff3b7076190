"""`python -m specdemo ...`"""

from specdemo.cli import app

if __name__ == "__main__":
    app(prog_name="python -m specdemo")
