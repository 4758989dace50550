"""The languages of the page: each has all texts, and all texts of the sources are among them."""

import json
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from apps.fine_tuning.default_settings import PRESET_DESCRIPTIONS
from apps.middleware.cached_files import FOREVER
from apps.ui import markup
from apps.ui.chat.sampling_settings import FIELDS
from apps.ui.fine_tune.data.column_mapping import PARTS
from apps.ui.fine_tune.data.preview import FORMAT_NAMES
from apps.ui.fine_tune.fine_tune_frame import DEMONSTRATION_NOTE, INTRODUCTION
from apps.ui.fine_tune.job_choice import TASK_NAMES
from apps.ui.fine_tune.setting_fields import flatten_schemas, label_setting
from apps.ui.fine_tune.setting_form import GROUP_NAMES, PRESET_NAMES
from apps.ui.frame.assets import LANGUAGES, send_asset
from apps.ui.frame.languages import ENGLISH, NAME_KEY, list_languages
from apps.ui.models.model_detail import METRIC_NAMES
from apps.ui.models.model_list import COLUMNS, OUTCOMES, TASKS
from apps.ui.runs.evaluation import NAMES
from apps.ui.runs.run_settings import GROUPS, REST
from tests.apps.ui.page_texts import UI, is_known, list_sources, read_texts
from training.spec import TrainingSpec
from training.task import find_task, list_tasks

PATHS = sorted(LANGUAGES.glob("*.json"))
PLACEHOLDER = re.compile(r"\{\w*\}")


def read_catalogue(path: Path) -> dict[str, str]:
    """Read a file of texts; fails for a text that it has twice."""
    pairs = json.loads(path.read_text("utf-8"), object_pairs_hook=list)
    twice = [text for text, count in Counter(text for text, _ in pairs).items() if count > 1]
    assert not twice
    return dict(pairs)


ENGLISH_TEXTS = read_catalogue(LANGUAGES / f"{ENGLISH}.json")
OTHERS = [path for path in PATHS if path.stem != ENGLISH]


@pytest.mark.parametrize("path", OTHERS, ids=lambda path: path.stem)
def test_language_has_all_texts_in_the_same_order(path: Path) -> None:
    translated = read_catalogue(path)
    assert sorted(translated.keys() ^ ENGLISH_TEXTS.keys()) == []
    assert list(translated) == list(ENGLISH_TEXTS)
    empty = [text for text, translation in translated.items() if not translation.strip()]
    assert empty == []


def name_placeholders(text: str, *, are_numbered: bool = False) -> list[str]:
    """Return the placeholders of a text; numbers are counted in their order."""
    count = 0
    found = []
    for name in PLACEHOLDER.findall(text):
        if name == "{}" and not are_numbered:
            count += 1
            name = f"{{{count}}}"
        found.append(name)
    return sorted(found)


@pytest.mark.parametrize("path", OTHERS, ids=lambda path: path.stem)
def test_translations_have_the_placeholders_of_their_texts(path: Path) -> None:
    wrong = {
        text: translation
        for text, translation in read_catalogue(path).items()
        if name_placeholders(text) != name_placeholders(translation)
    }
    assert wrong == {}


@pytest.mark.parametrize("source", list_sources(), ids=lambda path: str(path.relative_to(UI)))
def test_texts_of_source_are_in_catalogue(source: Path) -> None:
    unknown = [text for text in sorted(read_texts(source)) if not is_known(text, ENGLISH_TEXTS)]
    assert unknown == [], "add them to apps/ui/assets/languages, as docs/translations.md describes"


def test_reading_of_sources_finds_each_kind_of_text() -> None:
    found = set().union(*map(read_texts, list_sources()))
    for text in (
        *("Base model", "letters, digits, - and _", "Checking the settings…", "Equal rows"),
        *("Skip to the content", "Search runs by name, model or data", "Choose a model first."),
        "Two to four; each has its own conversation.",
    ):
        assert text in found
    assert not is_known("A text that nobody has translated", ENGLISH_TEXTS)
    assert not is_known("The model \0 is unknown, and nobody has translated this.", ENGLISH_TEXTS)


def list_setting_texts() -> Iterator[str]:
    """Yield the labels and descriptions of all settings, of each task."""
    common = TrainingSpec.model_json_schema()["properties"]
    for task in list_tasks():
        own = find_task(task).settings.model_json_schema()
        schemas = flatten_schemas({**common, "task_settings": own})
        for key, schema in schemas.items():
            yield label_setting(key)
            yield str(schema.get("description", ""))


def test_settings_are_in_catalogue() -> None:
    texts = {*list_setting_texts(), *PRESET_DESCRIPTIONS.values()}
    assert "Learning rate" in texts
    assert "Passes over the rows." in texts
    assert [text for text in sorted(texts) if not is_known(text, ENGLISH_TEXTS)] == []


def test_tables_of_texts_are_in_catalogue() -> None:
    tables = (
        *(markup.STATUS_WORDS, markup.TITLES, TASK_NAMES, PRESET_NAMES, FORMAT_NAMES, NAMES),
        *(TASKS, OUTCOMES, METRIC_NAMES),
    )
    texts = {text for table in tables for text in table.values()}
    texts |= {text for pair in GROUP_NAMES.values() for text in pair}
    texts |= {text for parts in PARTS.values() for text in parts.values()}
    texts |= {text for field in FIELDS.values() for text in (field.label, field.info)}
    texts |= {INTRODUCTION, DEMONSTRATION_NOTE, REST, *GROUPS, *COLUMNS}
    assert [text for text in sorted(texts) if not is_known(text, ENGLISH_TEXTS)] == []


def test_languages_are_named_in_themselves_with_the_address_of_their_texts() -> None:
    first, *others = list_languages()
    assert first == (ENGLISH, "English", "")
    assert [(one.tag, one.name) for one in others] == [("de", "Deutsch"), ("zh", "中文")]
    for tag, name, address in others:
        path, _, query = address.partition("?")
        assert path == f"page-assets/{tag}.json"
        answer = send_asset(f"{tag}.json", query)
        assert answer.headers["cache-control"] == FOREVER
        assert send_asset(f"{tag}.json", "v=other").headers["cache-control"] == "no-cache"
        assert read_catalogue(LANGUAGES / f"{tag}.json")[NAME_KEY] == name


def test_folder_and_unknown_file_are_not_sent() -> None:
    for name in ("languages", "xx.json", ".."):
        assert send_asset(name).status_code == 404
