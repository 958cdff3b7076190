"""The prompts that the page offers; what they are called stands with the labels."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Example:
    """A prompt; `chat` False continues the text as it stands."""

    prompt: str
    chat: bool = True


EXAMPLES = {
    "question": Example("Why is the sky blue? Explain it to a curious ten-year-old."),
    "code": Example(
        'def is_palindrome(text):\n    """Return True if text reads the same backwards."""\n',
        chat=False,
    ),
    "summary": Example(
        "Summarise in two sentences:\n\nThe Antikythera mechanism is an ancient Greek hand-powered model of the solar "
        "system. It was used to predict astronomical positions and eclipses decades in advance. It was found in 1901 "
        "among wreckage off the coast of the island of Antikythera, and its fragments show more than thirty bronze "
        "gears. Nothing as complex is known from the next thousand years.",
    ),
    "translate": Example("Translate into French: Good morning, where can I find a train to the coast?"),
    "maths": Example(
        "Solve the equation 4x + 6 = 30 and check the answer.",
    ),
    "story": Example("Tell a short story about a lighthouse keeper who finds a message in a bottle."),
}
DEFAULT_EXAMPLE = "maths"
