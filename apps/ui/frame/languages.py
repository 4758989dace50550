"""The languages of the page: one file each in `assets/languages`, named by the language's tag."""

import json
from functools import cache
from typing import NamedTuple

from apps.ui.frame.assets import LANGUAGES, link_asset

ENGLISH = "en"
NAME_KEY = "English"
"""The text whose translation is the name of a language in the language itself."""


class Language(NamedTuple):
    """A language: its tag, its own name, and the address of its texts, empty for English."""

    tag: str
    name: str
    address: str


@cache
def list_languages() -> tuple[Language, ...]:
    """List the languages that a visitor can choose, English first."""
    others = [
        Language(path.stem, json.loads(path.read_text("utf-8"))[NAME_KEY], link_asset(path.name))
        for path in sorted(LANGUAGES.glob("*.json"))
        if path.stem != ENGLISH
    ]
    return (Language(ENGLISH, NAME_KEY, ""), *others)
