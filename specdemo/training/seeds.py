"""Beginnings of user turns, by category; the target writes the rest of each turn itself.

Magpie (Xu et al. 2024, 2406.08464) lets a chat model invent its user's turn. A small model left quite alone keeps
to a few subjects, so every turn starts from a beginning drawn here: an opening, often with a subject or numbers.
"""

from __future__ import annotations

import random

# Longest user turn in tokens, by category: a text to summarise needs room, a question does not.
CATEGORIES = {"code": 40, "summary": 110, "translation": 36, "question": 30, "maths": 50, "story": 30, "chat": 40}

_OPENINGS = {
    "code": """Write a Python function|Write a Python function that|Write a Python function to {verb}
Write Python code to|Write a function in Python that takes {thing}|Implement a class in Python for
How do I {verb} in Python?|Write a program that|Write a JavaScript function that|Write a SQL query
Write a bash script|Fix the bug in this code:\\n\\ndef|Explain what this code does:|Write a recursive function
Write a Python script that reads|Create a Python class|def|Write a C function|Given a list of|Write a unit test for
Write a Python program to {verb}|Complete the following function:\\n\\ndef|Write a regular expression
Write a generator function|How can I sort|Write a short HTML page|Implement {algorithm} in Python
Write code for {algorithm}|Write a Python function which returns|Write a helper function that checks if
Write a method that converts""",
    "summary": """Summarize the following paragraph:|Summarize the following text:|Summarize this in one sentence:
Summarize this article:\\n\\n|Give a short summary of this passage:\\n\\n|What is the main idea of this text?\\n\\n
TL;DR of the following:\\n\\n|Please summarize:\\n\\n{topic}|Summarize the text below in two sentences.\\n\\nThe
Write a brief summary of this paragraph: {topic}|Shorten this paragraph:
Summarize the key points of the text:\\n\\nIn|Summarize this paragraph about {topic}:\\n\\n
Condense the following passage into one or two sentences.\\n\\n|Extract the main points from this email:\\n\\n
Summarize the report below:\\n\\n|Rewrite this text so that it is shorter:""",
    "translation": """Translate to {language}:|Translate the following sentence to {language}:|How do you say
Translate this into {language}: I|Translate the sentence into {language}: The
Translate from English to {language}: We|What is the {language} translation of|Translate to {language}: Where
Please translate this sentence into {language}:|How would you say "{greeting}" in {language}?
Translate the following text into {language}: My|Translate to {language}: She|Translate into English:
Give the {language} word for|Translate to {language}: {greeting}|Put this into {language}:""",
    "question": """What is|What are|What is {topic}|Why|Why do|Why is|How does|How do|How does {topic} work?|Who
Who was|When did|Where|Explain|Explain how|Explain {topic}|What causes|What is the difference between|Tell me about
Tell me about {topic}|Describe|Can you explain|What happens when|How many|Which|What are the benefits of
What is the capital of|Is it true that|List three|Name five|Define|What does|Give me some facts about {topic}
How can I|What should I|What is the purpose of|Why is {topic} important?|What are the main causes of
In simple terms, what is|Compare|What is the best way to""",
    "maths": """A train|A store sells|If {n} + {n}|What is {n} + {n}?|What is {n} * {n}?|Calculate {n} times
Solve for x: {d}x + {n} =|{name} has {n}|{name} buys {d}|A rectangle has|If a car travels
What is {n} divided by {d}?|Find the area of|How many|What is {d}% of {n}?|A farmer has {n}|Solve the equation
The sum of two numbers is|There are {n} students|Simplify|{name} reads {d} pages|Each box holds {d}
What is the next number in the sequence {d},|Convert {n}|A recipe needs {d}|If {d} workers
What is the average of {n}, {n} and|A bag contains {d}|Compute {n} - {n}|The price of a|Find the value of""",
    "story": """Write a short story about|Write a short story about {character}|Tell me a story about
Tell me a story about {character}|Write a story in which|Write a poem about|Write a bedtime story about {character}
Write the opening of a novel|Once upon a time|Write a dialogue between {character} and|Continue this story:
Write a fairy tale|Write a scene|Write a funny story about|Create a story that begins with|Write a haiku
Write a mystery|Imagine you are {character}|Write a letter from {character}|Write a paragraph describing
Write a fable about|Describe a day in the life of {character}|Invent|Write about a time when""",
    "chat": """I|Hello|Hi, I|Can you help me|Please|Write an email|Give me tips|I need|Rewrite|Write a letter
Create|Suggest|Make a list|You are|Edit the following|My|Write an essay about|Recommend|Plan|Help me
Write a product description|Write a tweet about|Correct the grammar:|Classify|Generate|Give an example of
Write instructions for|What do you think about|Could you""",
}

_WORDS = {
    "topic": """photosynthesis|the moon|volcanoes|coffee|the Roman Empire|honey bees|inflation|jazz|vaccines
glaciers|democracy|the human heart|solar power|chess|the internet|gravity|whales|tea|memory|bread|earthquakes|rice
electric cars|libraries|sleep|the printing press|coral reefs|black holes|recycling|wolves|antibiotics|the Silk Road
bicycles|rain|dreams|cheese|maps|the stock market|trees|robots|languages|mountains|deserts|football|public transport
microscopes|Mars|soil|rivers|clocks|music|a local school|a new bridge|the city council|a small company
the old harbour|remote work|the museum|climate change|a football club""",
    "verb": """reverse a string|sort a list|count words|find the maximum|remove duplicates|read a file
merge two dictionaries|parse a date|check a password|flatten a list|compute a factorial|find prime numbers
rotate an array|convert units|filter a list|download a file|validate an email|find common elements|split a string
add two matrices|draw a chart|search a tree|format text""",
    "thing": """a list|a string|two integers|a dictionary|a file name|a number n|two lists|a sentence|a matrix
a tuple|a date|a tree""",
    "algorithm": """binary search|quicksort|bubble sort|a linked list|a stack|a queue|breadth-first search
a hash table|merge sort""",
    "language": """French|French|Spanish|Spanish|German|German|Italian|Portuguese|Dutch|Latin|Japanese|Chinese
Swedish|Polish""",
    "greeting": """Good morning|Thank you|How are you?|See you tomorrow|I am hungry|The weather is nice
Happy birthday|Excuse me""",
    "name": """Tom|Sarah|Maria|John|Emma|Alex|Lily|David|Anna|Ben|Mia|Sam|Julia|Peter|Nina|Omar|Lena|Ravi""",
    "character": """a fox|a young girl|a lonely robot|an old sailor|a dragon|two brothers|a lost dog|a painter
a baker|a ghost|a king|a teacher|a little boat|a witch|a detective|a snowman|a gardener|a cat|an astronaut
a musician|a mouse|a giant|a thief|a doctor""",
}


def _split(text: str) -> list[str]:
    return [piece.replace("\\n", "\n") for line in text.split("\n") for piece in line.split("|")]


OPENINGS = {category: _split(text) for category, text in _OPENINGS.items()}
WORDS = {slot: _split(text) for slot, text in _WORDS.items()}


def draw_category(rng: random.Random) -> str:
    """One of CATEGORIES, all equally likely."""
    return rng.choice(list(CATEGORIES))


def draw_opening(category: str, rng: random.Random) -> str:
    """The beginning of a user turn, its slots filled."""
    text = rng.choice(OPENINGS[category])
    for slot, words in WORDS.items():
        while f"{{{slot}}}" in text:
            text = text.replace(f"{{{slot}}}", rng.choice(words), 1)
    for slot, high in (("{n}", 200), ("{d}", 12)):
        while slot in text:
            text = text.replace(slot, str(rng.randint(2, high)), 1)
    return text
