"""Whole questions, put together from lists: what people ask a small chat model, in six categories.

A turn that the target invents (seeds.py) is varied but often odd; these are clear and ordinary, so the target's answers
are what a draft will meet on the page. Tens of thousands of combinations; the prompts that the draft is measured on
(assets/prompts.jsonl) are not among them.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Protocol


def _split(text: str) -> list[str]:
    return [item.strip() for item in text.replace("\n", "|").split("|") if item.strip()]


_TOPICS = _split("""photosynthesis|black holes|the water cycle|inflation|democracy|the French Revolution|volcanoes
earthquakes|DNA|the immune system|solar panels|electric cars|the internet|machine learning|neural networks
blockchain|renewable energy|climate change|the Roman Empire|ancient Egypt|the Great Wall of China|the human heart
the brain|vitamins|protein|sleep|meditation|yoga|exercise|stress|time management|public speaking|saving money
budgeting|compound interest|the stock market|supply and demand|gravity|magnetism|electricity|light|sound|atoms
molecules|the periodic table|chemical reactions|acids and bases|plate tectonics|fossils|dinosaurs|whales|bees
butterflies|penguins|elephants|dolphins|coral reefs|rainforests|deserts|the ocean|the Moon|Mars|Jupiter|the Sun
stars|galaxies|rockets|satellites|airplanes|bicycles|trains|bridges|computers|operating systems|databases
cloud computing|encryption|passwords|open source software|version control|algorithms|recursion|sorting|hash tables
binary search|statistics|probability|fractions|geometry|calculus|Shakespeare|poetry|jazz|classical music|painting
photography|cinema|chess|football|the Olympic Games|cooking|baking bread|coffee|tea|chocolate|gardening|recycling
composting|water conservation|pollution|vaccines|antibiotics|diabetes|allergies|first aid|healthy eating
learning a language|reading books|writing|teamwork|leadership|job interviews|remote work|customer service|marketing
small businesses|taxes|insurance|law|ethics|philosophy|psychology|sociology|history|geography|maps|weather|clouds
snow|hurricanes|tides|rivers|mountains|caves""")
_PLACES = _split("""Paris|Tokyo|Cairo|Brazil|Canada|Norway|Kenya|Italy|India|Mexico|Iceland|Peru|Greece|Vietnam
Chile|Portugal|Australia|New Zealand|South Africa|Morocco|Turkey|Thailand|Poland|Austria|Ireland|Scotland|Japan
Spain""")
_PEOPLE = _split("""Albert Einstein|Isaac Newton|Leonardo da Vinci|Ada Lovelace|Alan Turing|Charles Darwin|Galileo
Nelson Mandela|Mahatma Gandhi|Martin Luther King|Cleopatra|Napoleon|Mozart|Beethoven|Frida Kahlo|Pablo Picasso
Jane Austen|Mark Twain|Florence Nightingale|Amelia Earhart|Neil Armstrong|Nikola Tesla|Thomas Edison|Aristotle|Plato""")
_QUESTIONS = _split("""What is {t}?|Explain {t} in simple terms.|How does {t} work?|Why is {t} important?
What are the main facts about {t}?|Tell me about {t}.|What should a beginner know about {t}?|Describe {t} briefly.
Give me three interesting facts about {t}.|What are common mistakes people make with {t}?|Explain {t} to a child.
What are the advantages and disadvantages of {t}?|How has {t} changed over time?|What is the history of {t}?
Can you explain {t}?|How can I learn more about {t}?|Why do people care about {t}?|What is the capital of {p}?
What is {p} known for?|What is the best time to visit {p}?|What food is {p} famous for?|Who was {w}?
Why is {w} famous?|What did {w} do?|Give me five tips about {t}.|List the benefits of {t}.
What is the difference between {t} and {u}?|How are {t} and {u} related?|Write a short paragraph about {t}.
What are the most important parts of {t}?|How does {t} affect daily life?|What is the future of {t}?""")
_TASKS = _split("""reverses a string|checks if a string is a palindrome|finds the largest number in a list
sorts a list|computes the factorial of a number|prints the Fibonacci sequence|checks if a number is prime
removes duplicates from a list|finds the sum of a list|calculates the average of a list|merges two dictionaries
counts the words in a sentence|finds the second largest number|converts a list to a string|reads a text file
writes a list to a file|checks if two strings are anagrams|finds the intersection of two lists
flattens a nested list|rotates a list|generates a random password|validates an email address|capitalizes every word
finds the longest word in a sentence|computes the greatest common divisor|computes the power of a number
checks if a year is valid|parses a date|counts the frequency of each character|implements binary search
implements bubble sort|implements merge sort|implements quicksort|implements a stack|implements a queue
implements a linked list|traverses a binary tree|finds the shortest path in a graph|calculates the area of a circle
calculates the distance between two points|converts kilometers to miles|converts decimal to binary
converts seconds to hours and minutes|prints a multiplication table|draws a triangle of stars|shuffles a list
splits a list into chunks|zips two lists into a dictionary|filters even numbers|squares every number in a list
finds missing numbers in a sequence|transposes a matrix|multiplies two matrices|downloads a web page
sends an HTTP request|parses JSON|reads a configuration file|connects to a SQLite database|logs messages to a file
measures how long a function takes|caches the results of a function|retries a failing call
sorts a list of tuples by the second item|groups words by their first letter|checks balanced parentheses|rolls a die
simulates a coin toss|computes compound interest|counts down from ten|guesses a number|plays rock, paper, scissors""")
_CODE = _split("""Write a Python function that {a}.|Write a Python program that {a}.
Write a function that {a} in Python.|Give me Python code that {a}.|Show me a Python example that {a}.
Can you write a Python script that {a}?|Write a JavaScript function that {a}.
Write a short Python function that {a} and explain it.|In Python, how do I write code that {a}?
Write a well-documented Python function that {a}.|Create a Python function that {a}, with an example.
I need a function that {a}.|Write a Java method that {a}.|Write a C++ function that {a}.
Implement a function that {a}.""")
_CONCEPTS = _split("""a list comprehension|a decorator|a lambda|a dictionary|a set|a tuple|a class|inheritance
a loop|an exception|a generator|a module|a virtual environment|a unit test|a regular expression|string formatting
slicing|a while loop|enumerate|zip|map|filter|a context manager|type hints|a dataclass|an API|a pointer|an array
SQL joins|Git""")
_CODE_IDEAS = _split("""What is {a} in Python? Give an example.|Explain {a} with a short example.|How do I use {a}?
When should I use {a}?|Show me how {a} works.|What is the purpose of {a}?""")
_LANGUAGES = _split("French|Spanish|German|Italian|Portuguese")
_SUBJECTS = _split(
    "I|We|My brother|My mother|The teacher|The children|Our neighbour|The doctor|My friend|They|She|He|The dog|Anna"
)
_ACTIONS = _split("""would like to buy a ticket|went to the market yesterday|is reading a book about the sea
will arrive tomorrow|wants to learn to cook|cannot find the keys|is waiting at the station|bought a new house
likes to walk in the park|plays the piano every evening|has to work on Saturday|forgot the umbrella at home
is looking for a good restaurant|lives near the river|speaks three languages|is cooking dinner for the family
lost the phone on the bus|wants to visit the museum|is afraid of the dark|drinks coffee every morning
sold the old car|needs a glass of water|will call you in the afternoon|is learning to drive
found a small cat in the garden|sleeps until nine o'clock""")
_PHRASES = _split("""Good morning, how are you?|Thank you very much for your help.|Where is the train station?
I am hungry.|How much does this cost?|Happy birthday!|What time is it?|I do not understand.|See you tomorrow.
Nice to meet you.|Can you help me, please?|My name is David.|I love you.|The weather is nice today.
Where can I buy bread?|Good night.""")
_TRANSLATE = _split("""Translate to {l}: {s}|Translate the following sentence into {l}: {s}
How do you say "{s}" in {l}?|Translate this into {l}: "{s}"|What is "{s}" in {l}?
Please translate the following into {l}: {s}""")
_NAMES = _split("Tom|Sara|John|Maria|Alex|Emma|Ben|Lucy|Omar|Nina|Peter|Julia|Sam|Mia|David|Kate")
_THINGS = _split("apples|books|pencils|cookies|marbles|stickers|oranges|cards|coins|flowers|eggs|toys|candies|shirts")
_MATHS = _split("""{n} has {a} {x} and gives {b} to a friend. How many {x} are left?|What is {a} + {c}?
What is {a} - {b}?|What is {b} times {d}?|What is {e} divided by {d}?|Solve for x: {d}x + {b} = {f}.
Solve the equation {d}x = {e}.|{n} buys {d} boxes of {x} with {b} {x} in each box. How many {x} does {n} have?
What is {g}% of {h}?|Simplify {d}x + {b}x.|A rectangle is {a} cm long and {b} cm wide. What is its area?
What is the perimeter of a square with a side of {b} cm?
A car travels {c} km in {d} hours. What is its average speed?
A shirt costs {h} dollars and has a {g}% discount. What is the final price?
{n} reads {b} pages a day. How many pages does {n} read in {d} weeks?|What is the average of {a}, {b} and {c}?
If {d} {x} cost {e} dollars, how much does one cost?|What is the square root of {q}?|What is {b} squared?
{n} is {b} years old. How old will {n} be in {d} years?|Convert {d} hours to minutes.
What is the next number: {d}, {b}, {a}?|A class has {a} students and {b} of them are girls. How many are boys?
Find the area of a circle with radius {d}.
{n} earns {a} dollars an hour and works {b} hours. How much does {n} earn?|Explain how to multiply {a} by {d}.
What is the sum of the first {b} numbers?|What is 1/{d} + 1/{b}?|How do I calculate {g} percent of a number?""")
_HEROES = _split("""a young girl|an old fisherman|a small robot|a lonely dragon|a brave mouse|a talking cat
a lost puppy|a curious boy|a magic tree|a tired king|a kind witch|a forgetful wizard|a clever fox|a little star
a friendly ghost|a retired detective|a baker|a gardener|an astronaut|a pirate|two sisters|a shy dragon|a musician
a painter|a postman|a blind musician|a stubborn donkey|a wandering knight|a sailor|a librarian|a snail|a crow
a time traveller|a farmer""")
_PLOTS = _split("""finds a hidden door|saves the village|learns to fly|makes an unusual friend
goes on a long journey|discovers a secret|loses something precious|gets lost in the forest|wins a race
learns to be brave|meets a stranger|solves a mystery|returns home after many years|finds a treasure|breaks a promise
builds a boat|helps an enemy|wakes up in another world|hears a strange sound at night|finds an old letter
plants a magic seed|tells the truth""")
_STORY = _split("""Write a short story about {h} who {p}.|Tell me a story about {h} who {p}.
Write a story where {h} {p}.|Write a bedtime story about {h}.
Write the first paragraph of a story about {h} who {p}.|Write a funny story about {h}.|Write a poem about {h}.
Write a fairy tale about {h} who {p}.|Make up a story about {h}.|Write a story about {h} and {i}.
Describe the day when {h} {p}.|Write a short adventure about {h} who {p}.
Once upon a time there was {h}. Continue the story.""")
_SUMMARIES = _split("""Summarize the following paragraph:|Summarize this text in one sentence:
Give a short summary of this:|Please summarize the following text.|Write a brief summary of this passage.
What is the main point of this text?|Summarize the text below in two sentences.|Shorten the following paragraph.
Summarize:|What is this text about?""")


def _question(rng: random.Random) -> str:
    topic, other = rng.sample(_TOPICS, 2)
    return rng.choice(_QUESTIONS).format(t=topic, u=other, p=rng.choice(_PLACES), w=rng.choice(_PEOPLE))


def _code(rng: random.Random) -> str:
    if rng.random() < 0.15:
        return rng.choice(_CODE_IDEAS).format(a=rng.choice(_CONCEPTS))
    return rng.choice(_CODE).format(a=rng.choice(_TASKS))


def _translation(rng: random.Random) -> str:
    sentence = rng.choice(_PHRASES)
    if rng.random() < 0.8:
        sentence = f"{rng.choice(_SUBJECTS)} {rng.choice(_ACTIONS)}."
    return rng.choice(_TRANSLATE).format(l=rng.choice(_LANGUAGES), s=sentence)


def _maths(rng: random.Random) -> str:
    small, factor, root = rng.randint(2, 15), rng.randint(2, 12), rng.randint(2, 15)
    numbers = {"b": small, "d": factor, "e": factor * rng.randint(2, 30), "q": root * root}
    large = {"a": small + rng.randint(2, 60), "c": rng.randint(20, 300), "f": factor * rng.randint(2, 9) + small}
    money = {"g": rng.choice([5, 10, 20, 25, 30, 50]), "h": 10 * rng.randint(2, 40)}
    return rng.choice(_MATHS).format(n=rng.choice(_NAMES), x=rng.choice(_THINGS), **numbers, **large, **money)


def _story(rng: random.Random) -> str:
    hero, friend = rng.sample(_HEROES, 2)
    return rng.choice(_STORY).format(h=hero, i=friend, p=rng.choice(_PLOTS))


_MAKERS: dict[str, Callable[[random.Random], str]] = {
    "code": _code,
    "translation": _translation,
    "question": _question,
    "maths": _maths,
    "story": _story,
}


class Asks(Protocol):
    """Where whole user turns come from."""

    categories: Sequence[str]

    def draw(self, category: str, rng: random.Random) -> str:
        """A whole user turn of one of the categories."""
        ...


class Composed:
    """Questions put together from the lists above; `texts` are paragraphs to be summarised."""

    categories = (*_MAKERS, "summary")

    def __init__(self, texts: list[str]) -> None:
        self.texts = texts

    def draw(self, category: str, rng: random.Random) -> str:
        """See `Asks`. Where there is no text to summarise yet, a question takes its place."""
        if category == "summary" and self.texts:
            return f"{rng.choice(_SUMMARIES)}\n\n{rng.choice(self.texts)}"
        return _MAKERS.get(category, _question)(rng)


class Listed:
    """Questions somebody else has written: (category, prompt) pairs."""

    def __init__(self, prompts: list[tuple[str, str]]) -> None:
        self._by_category: dict[str, list[str]] = {}
        for category, prompt in prompts:
            self._by_category.setdefault(category, []).append(prompt)
        self.categories = tuple(self._by_category)

    def draw(self, category: str, rng: random.Random) -> str:
        return rng.choice(self._by_category[category])
