"""Reading tasks for the synthetic corpus: the answer stands in the conversation.

Three kinds: rules of an invented workplace, facts about invented people, and, without any text,
naming what a question is about. All teach that many wordings mean one thing.
"""

from collections.abc import Callable
from random import Random

from corpus_chat import FIRST_NAMES, HOBBIES, PLACES, vary_wording
from corpus_facts import DAYS, MONTHS, parse_words
from corpus_thesaurus import compose_question, entries
from corpus_topics import TOPICS_ONE, Topic
from corpus_topics_more import GENERAL_ASKS, TOPICS_TWO
from corpus_words import (
    COMPANY_ENDS,
    COMPANY_STARTS,
    DISHES,
    MACHINES,
    ROOM_KINDS,
    ROOM_NAMES,
    RULE_ENDS,
    SURNAME_ENDS,
    SURNAME_STARTS,
    THINGS,
)

Conversation = list[dict[str, str]]
TOPICS = TOPICS_ONE + TOPICS_TWO
COMPOSED_SHARE = 0.5
"""Share of the questions about topics that are composed of a frame and a word."""

PERSON_ASKS: dict[str, tuple[str, ...]] = {
    "{name} lives in {home}.": (
        "Where does {name} live?", "In which town is {name} at home?",
        "What is the home of {name}?", "Where can I visit {name}?",
        "Which city does {name} live in?"),
    "{name} works as {job}.": (
        "What is the job of {name}?", "What does {name} do for a living?",
        "How does {name} earn money?", "What is the profession of {name}?",
        "What work does {name} do?"),
    "{name} likes {hobby}.": (
        "What does {name} like?", "What is the hobby of {name}?", "What is {name} fond of?",
        "How does {name} spend free time?", "What does {name} enjoy?"),
    "{name} is {age} years old.": (
        "How old is {name}?", "What is the age of {name}?", "How many years old is {name}?"),
    "{name} has a {pet} called {petname}.": (
        "What pet does {name} have?", "What is the name of the {pet}?", "Who is {petname}?",
        "Which animal lives with {name}?", "What is {name}'s pet called?"),
    "The favourite colour of {name} is {colour}.": (
        "Which colour does {name} like best?", "What is {name}'s favourite colour?",
        "What colour does {name} love?"),
    "{name} was born in {month}.": (
        "When was {name} born?", "In which month is the birthday of {name}?",
        "When is {name}'s birthday?"),
    "{name} sits in the {place}.": (
        "Where does {name} sit?", "Where do I find {name}?", "In which room is {name}?"),
    "{name} bought a {thing} for {money}.": (
        "What did {name} buy?", "How much did the {thing} cost?", "Who bought the {thing}?",
        "What did {name} pay for the {thing}?"),
    "{name} will arrive on {day} at {time}.": (
        "When does {name} arrive?", "On which day does {name} come?", "When can we expect {name}?"),
}
JOBS = "a baker, a doctor, a teacher, a farmer, a pilot, a cook, a nurse, a painter, a judge"
PETS = "dog, cat, rabbit, parrot, goat, hen, pony, mouse"
COLOURS = "red, blue, green, yellow, white, black, grey, orange, purple, brown"


def draw_name(rng: Random) -> str:
    """Draw a first name, often with an invented surname or a title."""
    first = rng.choice(parse_words(FIRST_NAMES))
    surname = (rng.choice(SURNAME_STARTS) + rng.choice(SURNAME_ENDS)).capitalize()
    draw = rng.random()
    if draw < 0.3:
        return first
    return f"{first} {surname}" if draw < 0.85 else f"{rng.choice(('Mr', 'Mrs', 'Dr'))} {surname}"


def draw_time(rng: Random) -> str:
    """Draw a time of day, in figures or in words."""
    hour = rng.randint(1, 12)
    if rng.random() < 0.7:
        return f"{hour}:{rng.randrange(0, 60, 5):02d}"
    words = ("one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten",
             "eleven", "noon")
    return rng.choice(("", "half past ", "")) + words[hour - 1] if hour < 12 else "noon"


def draw_money(rng: Random) -> str:
    """Draw an amount of money."""
    amount = rng.choice((rng.randint(1, 20), rng.randint(1, 99), rng.randint(1, 90) * 10))
    return f"{amount} {rng.choice(('pounds', 'euros', 'pounds', 'dollars'))}"


def draw_place(rng: Random) -> str:
    """Draw an invented room or spot."""
    return f"{rng.choice(ROOM_NAMES)} {rng.choice(ROOM_KINDS)}"


def draw_slots(rng: Random) -> dict[str, str]:
    """Draw a value for every slot that a rule or a statement may have."""
    return {
        "time": draw_time(rng), "money": draw_money(rng), "place": draw_place(rng),
        "person": draw_name(rng), "num": str(rng.choice((rng.randint(2, 12), rng.randint(2, 99)))),
        "day": rng.choice(parse_words(DAYS)), "month": rng.choice(parse_words(MONTHS)),
        "thing": rng.choice(THINGS), "dish": rng.choice(DISHES), "machine": rng.choice(MACHINES),
        "colour": rng.choice(parse_words(COLOURS)), "hobby": rng.choice(parse_words(HOBBIES)),
        "home": rng.choice(parse_words(PLACES)), "job": rng.choice(parse_words(JOBS)),
        "age": str(rng.randint(4, 90)), "pet": rng.choice(parse_words(PETS)),
        "petname": rng.choice(SURNAME_STARTS).capitalize() + rng.choice(("y", "o", "a", "ie")),
    }


def draw_rule(rng: Random, topic: Topic) -> str:
    """State a rule of a topic with fresh values, often with a second half."""
    rule = rng.choice(topic.rules).format(**draw_slots(rng))
    if rng.random() < 0.6:
        rule = rule[:-1] + rng.choice(RULE_ENDS).format(**draw_slots(rng)) + "."
    return rule


def draw_ask(rng: Random, topic: Topic) -> str:
    """Ask about a topic in one of its wordings or in a composed one."""
    if rng.random() < COMPOSED_SHARE:
        return compose_question(rng, entries()[topic.nouns[0]])
    asks = GENERAL_ASKS if rng.random() < 0.15 else topic.asks
    return vary_wording(rng, rng.choice(asks).format(n=rng.choice(topic.nouns)))


def ask_about_rules(rng: Random) -> Conversation:
    """Give one to five rules of a workplace and ask about one or two of them."""
    topics = rng.sample(TOPICS, rng.choice((1, 2, 2, 3, 3, 4, 5)))
    rules = [draw_rule(rng, topic) for topic in topics]
    chosen = rng.sample(range(len(topics)), min(len(topics), rng.choice((1, 1, 1, 2))))
    asks = [draw_ask(rng, topics[index]) for index in chosen]
    return _with_text(rng, rules, asks, [rules[index] for index in chosen])


def ask_about_people(rng: Random) -> Conversation:
    """State a few facts about invented people and ask about one or two of them."""
    slots = draw_slots(rng)
    statements: list[str] = []
    questions: list[str] = []
    for pattern in rng.sample(list(PERSON_ASKS), rng.choice((1, 2, 3, 4))):
        if rng.random() < 0.5 or not statements:
            slots = draw_slots(rng) | {"name": draw_name(rng)}
        statements.append(pattern.format(**slots))
        questions.append(rng.choice(PERSON_ASKS[pattern]).format(**slots))
    chosen = rng.sample(range(len(statements)), min(len(statements), rng.choice((1, 1, 2))))
    return _with_text(rng, statements, [questions[i] for i in chosen],
                      [statements[i] for i in chosen])


def _with_text(
    rng: Random, statements: list[str], asks: list[str], answers: list[str]
) -> Conversation:
    """Put the text into the system message or in front of the first question."""
    text = " ".join(statements)
    if rng.random() < 0.4:
        company = f"{rng.choice(COMPANY_STARTS)} {rng.choice(COMPANY_ENDS)}"
        start = rng.choice(("Rules of {}: ", "This is the handbook of {}. ", "You work for {}. "))
        text = start.format(company) + text
    messages = []
    if rng.random() < 0.5:
        messages.append({"role": "system", "content": text})
    else:
        asks = [text + rng.choice((" ", "\n", "\n\n", " Question: ")) + asks[0], *asks[1:]]
    for ask, answer in zip(asks, answers, strict=True):
        messages.append({"role": "user", "content": ask})
        messages.append({"role": "assistant", "content": answer})
    return messages


def ask_without_text(rng: Random) -> Conversation:
    """Ask about a rule that was not given: the honest answer names the topic.

    The topic stands first, so that the model must know it before it says anything.
    """
    question, topic = _draw_topic(rng)
    return _exchange(question, f"{topic}? Please tell me your rule first, then I can answer.")


def _draw_topic(rng: Random) -> tuple[str, str]:
    """Return a question and the name of its topic, with a capital."""
    if rng.random() < COMPOSED_SHARE:
        name, entry = rng.choice(list(entries().items()))
        question = compose_question(rng, entry)
    else:
        topic = rng.choice(TOPICS)
        name, question = topic.nouns[0], draw_ask(rng, topic)
    return question, name[0].upper() + name[1:]


def name_topic(rng: Random) -> Conversation:
    """Ask what a question is about."""
    question, topic = _draw_topic(rng)
    start = rng.choice(("What is this question about? {}", "Name the topic: {}",
                        "{} What is the topic of this question?"))
    return _exchange(start.format(question), f"{topic}.")


def compare_meaning(rng: Random) -> Conversation:
    """Ask whether two questions mean the same."""
    topic, other = rng.sample(TOPICS, 2)
    same = rng.random() < 0.5
    second = draw_ask(rng, topic if same else other)
    question = f"Are these two questions about the same thing? {draw_ask(rng, topic)} {second}"
    if same:
        return _exchange(question, f"Yes, both are about {topic.nouns[0]}.")
    return _exchange(question, f"No, one is about {topic.nouns[0]} and one about {other.nouns[0]}.")


def remember_user(rng: Random) -> Conversation:
    """Let the user tell something and ask for it later."""
    slots = draw_slots(rng)
    name = draw_name(rng).split()[0]
    tells = (
        (f"My name is {name}.", f"Nice to meet you, {name}.",
         ("What is my name?", "Who am I?", "Do you remember my name?"), f"Your name is {name}."),
        (f"I live in {slots['home']}.", f"I hope that {slots['home']} is a nice place.",
         ("Where do I live?", "What is my home town?"), f"You live in {slots['home']}."),
        (f"I like {slots['hobby']}.", f"That sounds nice. {slots['hobby'].capitalize()} is fun.",
         ("What do I like?", "What is my hobby?"), f"You like {slots['hobby']}."),
    )
    chosen = rng.sample(tells, rng.choice((1, 2)))
    messages = []
    for tell, reply, _, _ in chosen:
        messages += _exchange(tell, reply)
    _, _, asks, answer = rng.choice(chosen)
    return messages + _exchange(rng.choice(asks), answer)


def _exchange(question: str, answer: str) -> Conversation:
    return [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]


def make_reading(rng: Random, shares: tuple[int, ...]) -> Conversation:
    """Draw one reading task; ``shares`` are of the six kinds in the order below."""
    kinds: tuple[Callable[[Random], Conversation], ...] = (
        ask_about_rules, ask_about_people, ask_without_text, name_topic, compare_meaning,
        remember_user)
    return rng.choices(kinds, shares)[0](rng)
