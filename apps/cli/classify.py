"""`tuneserve classify`: the labels of texts."""

from collections.abc import Mapping
from typing import Annotated

import typer

from apps.cli.connection import DEFAULT_URL, AsJson, Url, run_with_api
from apps.cli.output import Rows, fail, show
from apps.client.resources import TextLabels, read_resources


def classify(
    texts: Annotated[list[str], typer.Argument(help="Texts to classify.")],
    model: Annotated[str, typer.Option("--model", "-m", help="Id or alias of a classifier.")],
    pair: Annotated[
        bool, typer.Option("--pair", help="Classify each two consecutive texts together.")
    ] = False,
    truncate: Annotated[
        bool, typer.Option("--truncate", help="Cut texts that exceed the model's context.")
    ] = False,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Classify texts with a fine-tuned classifier."""
    inputs: list[str] | list[list[str]] = texts
    if pair:
        if len(texts) % 2:
            fail(f"--pair needs an even number of texts, got {len(texts)}")
        inputs = [texts[place : place + 2] for place in range(0, len(texts), 2)]
    answer = run_with_api(url, lambda api: api.text.classify(model, inputs, truncate=truncate))
    shown = [" / ".join(one) if isinstance(one, list) else one for one in inputs]
    show(answer, as_json, lambda: _render(shown, answer))


def _render(shown: list[str], answer: Mapping[str, object]) -> Rows:
    found = read_resources(TextLabels, _list_entries(answer))
    cells = [(_summarise(result), text) for text, result in zip(shown, found, strict=False)]
    return Rows(cells, ("labels", "text"))


def _list_entries(answer: Mapping[str, object]) -> list[Mapping[str, object]]:
    data = answer.get("data")
    return [one for one in data if isinstance(one, Mapping)] if isinstance(data, list) else []


def _summarise(result: TextLabels) -> str:
    if result.value is not None:
        return f"{result.value:.4f}"
    return ", ".join(f"{one.label} {one.score:.3f}" for one in result.labels)
