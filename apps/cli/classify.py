"""`tuneserve classify`: the labels of texts or images."""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

import typer

from apps.cli.connection import DEFAULT_URL, AsJson, Url, run_with_api
from apps.cli.output import Rows, fail, show
from apps.client.connection import Upload
from apps.client.resources import TextLabels, read_resources


def classify(
    model: Annotated[str, typer.Option("--model", "-m", help="Id or alias of a classifier.")],
    texts: Annotated[list[str] | None, typer.Argument(help="Texts to classify.")] = None,
    images: Annotated[
        list[Path] | None,
        typer.Option("--image", help="An image to classify, in place of texts; repeatable."),
    ] = None,
    pair: Annotated[
        bool, typer.Option("--pair", help="Classify each two consecutive texts together.")
    ] = False,
    truncate: Annotated[
        bool, typer.Option("--truncate", help="Cut texts that exceed the model's context.")
    ] = False,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Classify texts or images with a fine-tuned classifier."""
    if bool(texts) == bool(images):
        fail("expected either texts or --image")
    if images:
        if pair or truncate:
            fail("--pair and --truncate are for texts, not for images")
        answer = _classify_images(url, model, images)
        show(answer, as_json, lambda: _render([str(path) for path in images], answer, "image"))
        return
    inputs = _list_inputs(texts or [], is_paired=pair)
    answer = run_with_api(url, lambda api: api.text.classify(model, inputs, truncate=truncate))
    shown = [" / ".join(one) if isinstance(one, list) else one for one in inputs]
    show(answer, as_json, lambda: _render(shown, answer, "text"))


def _list_inputs(texts: list[str], *, is_paired: bool) -> list[str] | list[list[str]]:
    if not is_paired:
        return texts
    if len(texts) % 2:
        fail(f"--pair needs an even number of texts, got {len(texts)}")
    return [texts[place : place + 2] for place in range(0, len(texts), 2)]


def _classify_images(url: str, model: str, images: Sequence[Path]) -> Mapping[str, object]:
    with ExitStack() as opened:
        uploads: list[Upload] = []
        for path in images:
            try:
                uploads.append(Upload(path.name, opened.enter_context(path.open("rb"))))
            except OSError as exc:
                fail(exc)
        return run_with_api(url, lambda api: api.text.classify_images(model, uploads))


def _render(shown: list[str], answer: Mapping[str, object], name: str) -> Rows:
    found = read_resources(TextLabels, _list_entries(answer))
    cells = [(_summarise(result), text) for text, result in zip(shown, found, strict=False)]
    return Rows(cells, ("labels", name))


def _list_entries(answer: Mapping[str, object]) -> list[Mapping[str, object]]:
    data = answer.get("data")
    return [one for one in data if isinstance(one, Mapping)] if isinstance(data, list) else []


def _summarise(result: TextLabels) -> str:
    if result.value is not None:
        return f"{result.value:.4f}"
    return ", ".join(f"{one.label} {one.score:.3f}" for one in result.labels)
