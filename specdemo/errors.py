"""Errors that a user can mend."""


class UserError(Exception):
    """A mistake or a shortage the user can do something about.

    The message is shown as it stands, on the page and in the terminal: a sentence that says what was wrong and what
    to do. Anything else that is raised is a bug and keeps its traceback.
    """
