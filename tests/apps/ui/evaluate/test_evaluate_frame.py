"""The frame of the page "Evaluate": each field is labelled and has a place for its problem."""

import re

from apps.ui.evaluate.evaluate_frame import EVALUATE_FRAME
from apps.ui.evaluate.start_form import DEFAULT_ROWS, DEFAULT_TOKENS


def test_fields_have_labels_and_places_for_problems() -> None:
    fields = re.findall(r'data-field="(\w+)"', EVALUATE_FRAME)
    assert fields == ["models", "second_model", "rows", "max_rows", "max_tokens"]
    for field in fields:
        assert f'<label for="field-{field}">' in EVALUATE_FRAME
        assert f'id="problem-{field}"' in EVALUATE_FRAME
        assert re.search(rf'aria-describedby="[^"]*problem-{field}"', EVALUATE_FRAME)
    for value in (DEFAULT_ROWS, DEFAULT_TOKENS):
        assert f'value="{value}"' in EVALUATE_FRAME
