"""Arithmetic, counting, comparing and sorting for the synthetic corpus."""

from collections.abc import Callable
from random import Random

from corpus_facts import DAYS, MONTHS, SIZE_LINES, SPELLING, parse_words

Exchange = tuple[str, str]
"""A question and its answer."""

SUM_WORDINGS = (
    "What is {a} plus {b}?", "How much is {a} plus {b}?", "Add {a} and {b}.", "{a} + {b} = ?",
    "What is {a} + {b}?", "What is the sum of {a} and {b}?", "{a} and {b} make how many?",
    "I have {a} apples and get {b} more. How many do I have?", "{a}+{b}", "{a} + {b}",
    "Please add {a} to {b}.", "There are {a} cats and {b} dogs. How many animals are there?",
    "What do I get when I add {a} and {b}?", "Calculate {a} plus {b}.", "Can you add {a} and {b}?",
)
MINUS_WORDINGS = (
    "What is {a} minus {b}?", "How much is {a} minus {b}?", "{a} - {b} = ?", "What is {a} - {b}?",
    "Take {b} away from {a}.", "Subtract {b} from {a}.", "{a}-{b}", "{a} - {b}",
    "I have {a} apples and eat {b}. How many are left?", "Calculate {a} minus {b}.",
    "There were {a} birds and {b} flew away. How many are left?",
    "What is the difference between {a} and {b}?",
)
TIMES_WORDINGS = (
    "What is {a} times {b}?", "How much is {a} times {b}?", "{a} * {b} = ?", "{a} x {b}",
    "Multiply {a} by {b}.", "What is the product of {a} and {b}?", "Calculate {a} times {b}.",
    "There are {a} bags with {b} apples each. How many apples are there?", "What is {a} * {b}?",
)
GREATER_WORDINGS = (
    "Which number is greater, {a} or {b}?", "Which is bigger, {a} or {b}?",
    "What is the larger number, {a} or {b}?", "Is {a} or {b} the greater number?",
    "Which of {a} and {b} is more?", "Compare {a} and {b}.",
)
SMALLER_WORDINGS = (
    "Which number is smaller, {a} or {b}?", "Which is less, {a} or {b}?",
    "What is the lower number, {a} or {b}?", "Is {a} or {b} the smaller number?",
)


def add_numbers(rng: Random) -> Exchange:
    """Ask for a sum, mostly of small numbers."""
    top = rng.choice((10, 10, 20, 50, 100))
    a, b = rng.randint(0, top), rng.randint(0, top)
    return rng.choice(SUM_WORDINGS).format(a=a, b=b), f"{a} plus {b} is {a + b}."


def subtract_numbers(rng: Random) -> Exchange:
    """Ask for a difference that is not negative."""
    top = rng.choice((10, 20, 20, 50))
    a = rng.randint(0, top)
    b = rng.randint(0, a)
    return rng.choice(MINUS_WORDINGS).format(a=a, b=b), f"{a} minus {b} is {a - b}."


def multiply_numbers(rng: Random) -> Exchange:
    """Ask for a product out of the tables up to ten."""
    a, b = rng.randint(0, 10), rng.randint(0, 10)
    return rng.choice(TIMES_WORDINGS).format(a=a, b=b), f"{a} times {b} is {a * b}."


def compare_numbers(rng: Random) -> Exchange:
    """Ask which of two numbers is greater or smaller."""
    a, b = rng.sample(range(rng.choice((10, 100))), 2)
    if rng.random() < 0.6:
        answer = f"{max(a, b)} is greater than {min(a, b)}."
        return rng.choice(GREATER_WORDINGS).format(a=a, b=b), answer
    answer = f"{min(a, b)} is smaller than {max(a, b)}."
    return rng.choice(SMALLER_WORDINGS).format(a=a, b=b), answer


def compare_sizes(rng: Random) -> Exchange:
    """Ask which of two things is bigger or smaller."""
    line = parse_words(rng.choice(SIZE_LINES))
    low, high = sorted(rng.sample(range(len(line)), 2))
    small, big = line[low], line[high]
    first, second = rng.sample((small, big), 2)
    if rng.random() < 0.6:
        ask = rng.choice(("Which is bigger, a {} or a {}?", "What is larger, a {} or a {}?",
                          "Is a {} or a {} bigger?", "Which has the greater size, a {} or a {}?"))
        return fix_article(ask.format(first, second)), fix_article(
            f"A {big} is bigger than a {small}.")
    ask = rng.choice(("Which is smaller, a {} or a {}?", "Is a {} or a {} smaller?"))
    return fix_article(ask.format(first, second)), fix_article(
        f"A {small} is smaller than a {big}.")


def fix_article(text: str) -> str:
    """Write "an" for "a" in front of a vowel."""
    words = text.split(" ")
    for index, word in enumerate(words[:-1]):
        if word in ("a", "A") and words[index + 1][0] in "aeiou":
            words[index] = word + "n"
    return " ".join(words)


def order_of_names(rng: Random) -> Exchange:
    """Ask for the day or month before or after one."""
    kind, names = rng.choice((("day", parse_words(DAYS)), ("month", parse_words(MONTHS))))
    index = rng.randrange(len(names))
    name, after, before = names[index], names[(index + 1) % len(names)], names[index - 1]
    if rng.random() < 0.6:
        ask = rng.choice((f"Which {kind} comes after {name}?", f"What {kind} follows {name}?",
                          f"What is the {kind} after {name}?", f"What is the next {kind} after"
                          f" {name}?", f"If it is {name} now, which {kind} is next?"))
        return ask, f"After {name} comes {after}."
    ask = rng.choice((f"Which {kind} comes before {name}?", f"What is the {kind} before {name}?",
                      f"What {kind} is just before {name}?"))
    return ask, f"Before {name} comes {before}."


def list_names(rng: Random) -> Exchange:
    """Ask for all days or all months."""
    kind, text = rng.choice((("days of the week", DAYS), ("months of the year", MONTHS)))
    names = parse_words(text)
    ask = rng.choice(("Name the {}.", "List the {}.", "What are the {}?", "Tell me all {}."))
    return ask.format(kind), f"The {kind} are {', '.join(names[:-1])} and {names[-1]}."


def count_numbers(rng: Random) -> Exchange:
    """Ask to count from one number to another."""
    start = rng.randint(0, 12)
    stop = start + rng.randint(2, 9)
    ask = rng.choice(("Count from {a} to {b}.", "Please count from {a} to {b}.",
                      "Can you count from {a} to {b}?", "Name the numbers from {a} to {b}."))
    return ask.format(a=start, b=stop), ", ".join(map(str, range(start, stop + 1))) + "."


def sort_numbers(rng: Random) -> Exchange:
    """Ask to sort a few numbers."""
    numbers = rng.sample(range(rng.choice((10, 30, 100))), rng.randint(3, 5))
    shown = ", ".join(map(str, numbers))
    ask = rng.choice(("Sort these numbers: {}.", "Put these numbers in order: {}.", "Sort {}.",
                      "Arrange from small to large: {}.", "Order the numbers {}."))
    return ask.format(shown), f"In order: {', '.join(map(str, sorted(numbers)))}."


def extreme_number(rng: Random) -> Exchange:
    """Ask for the largest or smallest of a few numbers."""
    numbers = rng.sample(range(rng.choice((10, 100))), rng.randint(3, 5))
    shown = ", ".join(map(str, numbers))
    if rng.random() < 0.5:
        ask = rng.choice(("What is the largest of {}?", "Which is the biggest number: {}?"))
        return ask.format(shown), f"The largest number is {max(numbers)}."
    ask = rng.choice(("What is the smallest of {}?", "Which is the lowest number: {}?"))
    return ask.format(shown), f"The smallest number is {min(numbers)}."


def spell_word(rng: Random) -> Exchange:
    """Ask for the spelling, the first or the last letter of a word."""
    word = rng.choice(parse_words(SPELLING))
    kind = rng.randrange(3)
    if kind == 0:
        ask = rng.choice(("Spell the word {}.", "How do you spell {}?", "How is {} written?"))
        return ask.format(word), f"{word.capitalize()} is spelt {'-'.join(word.upper())}."
    place, letter = ("first", word[0]) if kind == 1 else ("last", word[-1])
    ask = rng.choice((f"What is the {place} letter of {word}?",
                      f"Which letter comes {place} in {word}?"))
    return ask, f"The {place} letter of {word} is {letter.upper()}."


SUMS: tuple[tuple[Callable[[Random], Exchange], int], ...] = (
    (add_numbers, 10), (subtract_numbers, 6), (multiply_numbers, 5), (compare_numbers, 3),
    (compare_sizes, 2), (order_of_names, 3), (list_names, 1), (count_numbers, 1),
    (sort_numbers, 1), (extreme_number, 1), (spell_word, 1),
)
"""Every task with its share."""


def make_sum(rng: Random) -> Exchange:
    """Draw one exchange of this module."""
    tasks = [task for task, _ in SUMS]
    shares = [share for _, share in SUMS]
    return rng.choices(tasks, shares)[0](rng)
