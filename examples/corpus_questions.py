"""How the simple facts are asked for and answered."""

from corpus_facts import (
    ANIMAL_HOMES,
    BODY,
    CAPITALS,
    CATEGORIES,
    COLOURS,
    CONTINENTS,
    COUNTS,
    DIETS,
    FOODS,
    LANGUAGES,
    LEGS,
    MONTH_DAYS,
    OPPOSITES,
    PAST_TENSES,
    PLURALS,
    PROFESSIONS,
    SEASONS,
    SOUNDS,
    SYNONYMS,
    TOOLS,
    WEATHER,
    YOUNG,
    FactTable,
)


def fact_tables() -> list[FactTable]:
    """Return every kind of simple fact."""
    return _world_tables() + _animal_tables() + _word_tables() + _thing_tables()


def _world_tables() -> list[FactTable]:
    return [
        FactTable("capital", CAPITALS, (
            "What is the capital of {k}?", "What is the capital city of {k}?",
            "Which city is the capital of {k}?", "Tell me the capital of {k}.",
            "Name the capital of {k}.", "Do you know the capital of {k}?",
            "I would like to know the capital of {k}.", "What's the capital of {k}?",
            "Which town is the seat of government of {k}?", "capital of {k}",
            "The capital of {k} is which city?", "Can you name the main city of {k}?",
        ), "The capital of {k} is {v}."),
        FactTable("country", CAPITALS, (
            "Which country has the capital {v}?", "{V} is the capital of which country?",
            "Of which country is {v} the capital?", "What country is {v} the capital of?",
        ), "{V} is the capital of {k}."),
        FactTable("continent", CONTINENTS, (
            "On which continent is {k}?", "Which continent is {k} in?", "Where is {k}?",
            "What continent does {k} belong to?", "In what part of the world is {k}?",
            "Where in the world do I find {k}?",
        ), "{K} is in {v}."),
        FactTable("language", LANGUAGES, (
            "What language do people speak in {k}?", "Which language is spoken in {k}?",
            "What do they speak in {k}?", "Tell me the language of {k}.",
            "In {k}, what language will I hear?",
        ), "People in {k} speak {v}."),
        FactTable("season", SEASONS, (
            "In which season is {k}?", "Which season does {k} belong to?",
            "What time of year is {k}?", "Is {k} in spring, summer, autumn or winter?",
        ), "In Europe {k} is in {v}."),
        FactTable("month_days", MONTH_DAYS, (
            "How many days does {k} have?", "How many days are in {k}?", "How long is {k}?",
            "What is the number of days in {k}?", "Tell me how many days {k} has.",
        ), "{K} has {v} days."),
        FactTable("counts", COUNTS, (
            "How many {k} are there?", "How many {k}?", "What is the number of {k}?",
            "Tell me the number of {k}.", "Do you know how many {k} there are?",
            "Can you count the {k}?",
        ), "The number of {k} is {v}."),
        FactTable("weather", WEATHER, (
            "What should I do when {k}?", "What do I do if {k}?", "What is wise when {k}?",
            "Do you have advice for when {k}?", "If {k}, what is best?",
        ), "When {k}, it is best to {v}."),
    ]


def _animal_tables() -> list[FactTable]:
    return [
        FactTable("young", YOUNG, (
            "What is a young {k} called?", "What do you call a baby {k}?",
            "What is the name for the young of {ak}?", "A baby {k} is called what?",
            "Tell me the word for a young {k}.", "How is a small, young {k} called?",
        ), "A young {k} is called {av}."),
        FactTable("sound", SOUNDS, (
            "What sound does {ak} make?", "What does {ak} say?", "What noise does {ak} make?",
            "Which sound comes from {ak}?", "How does {ak} sound?", "What do I hear from {ak}?",
        ), "{AK} {v}."),
        FactTable("home", ANIMAL_HOMES, (
            "Where does {ak} live?", "What is the home of {ak}?", "In what does {ak} live?",
            "Where would I find {ak} at home?", "What do you call the place where {ak} lives?",
        ), "The home of {ak} is {av}."),
        FactTable("diet", DIETS, (
            "What does {ak} eat?", "What is the food of {ak}?", "What do I feed {ak}?",
            "Tell me what {ak} likes to eat.", "On what does {ak} live?",
        ), "{AK} eats {v}."),
        FactTable("legs", LEGS, (
            "How many legs does {ak} have?", "How many legs has {ak}?",
            "What is the number of legs of {ak}?", "Count the legs of {ak}.",
        ), "{AK} has {v} legs."),
    ]


def _word_tables() -> list[FactTable]:
    return [
        FactTable("opposite", OPPOSITES, (
            "What is the opposite of {k}?", "What is the opposite of the word {k}?",
            "Which word means the opposite of {k}?", "Give me the opposite of {k}.",
            "Tell me the reverse of {k}.", "opposite of {k}", "If it is not {k}, it is what?",
            "Can you name the contrary of {k}?",
        ), "The opposite of {k} is {v}."),
        FactTable("synonym", SYNONYMS, (
            "What is another word for {k}?", "Which word means the same as {k}?",
            "Give me a word that means {k}.", "What else can I say for {k}?",
            "How can I say {k} in another way?", "Tell me a word like {k}.",
        ), "Another word for {k} is {v}."),
        FactTable("synonym_back", SYNONYMS, (
            "What is another word for {v}?", "Which word means the same as {v}?",
            "What else can I say for {v}?", "What does {v} mean?",
        ), "Another word for {v} is {k}."),
        FactTable("plural", PLURALS, (
            "What is the plural of {k}?", "What is the plural form of {k}?",
            "One {k}, two what?", "How do I write more than one {k}?",
            "What do you call several of {ak}?", "Give me the plural of {k}.",
        ), "The plural of {k} is {v}."),
        FactTable("past", PAST_TENSES, (
            "What is the past tense of {k}?", "What is the past of {k}?",
            "Today I {k}, yesterday I what?", "How do I say {k} in the past?",
            "Give me the past tense of the verb {k}.",
        ), "The past tense of {k} is {v}."),
        FactTable("category", CATEGORIES, (
            "What is {ak}?", "What kind of thing is {ak}?", "To which group does {ak} belong?",
            "What sort of thing is {ak}?", "How would you classify {ak}?",
            "Which category fits {ak}?",
        ), "{K} is {av}."),
    ]


def _thing_tables() -> list[FactTable]:
    return [
        FactTable("colour", COLOURS, (
            "What colour is the {k}?", "What is the colour of the {k}?",
            "Which colour does the {k} have?", "Tell me the colour of the {k}.",
            "If I paint the {k}, which colour do I need?", "The {k} has which colour?",
        ), "The usual colour of the {k} is {v}."),
        FactTable("profession", PROFESSIONS, (
            "What does {ak} do?", "What is the job of {ak}?", "Tell me what {ak} does.",
            "What is the work of {ak}?", "How does {ak} earn money?", "What is {ak} there for?",
        ), "{AK} {v}."),
        FactTable("profession_back", PROFESSIONS, (
            "Who {v}?", "What do you call a person who {v}?", "Which profession {v}?",
            "What is the name of someone who {v}?",
        ), "{AK} {v}."),
        FactTable("tool", TOOLS, (
            "What is {ak} used for?", "What do I use {ak} for?", "What can I do with {ak}?",
            "Why would I need {ak}?", "What is the purpose of {ak}?", "What is {ak} good for?",
        ), "You use {ak} to {v}."),
        FactTable("tool_back", TOOLS, (
            "What do I need to {v}?", "Which tool helps to {v}?", "I want to {v}. What do I use?",
            "With what can I {v}?",
        ), "You use {ak} to {v}."),
        FactTable("body", BODY, (
            "What do we use our {k} for?", "What can we do with our {k}?",
            "What do people use their {k} for?", "What is the use of our {k}?",
            "For what do we need our {k}?",
        ), "We use our {k} to {v}."),
        FactTable("made_of", FOODS, (
            "What is {k} made of?", "What is {k} made from?", "What do I need to make {k}?",
            "From what do people make {k}?", "What goes into {k}?",
        ), "{K} comes from {v}."),
    ]
