import asyncio
import json
from collections.abc import AsyncIterator

import pytest
from rich.console import Console

from apps.cli import output
from apps.cli.output import Rows, decode, escape_controls, print_json, print_message, show
from apps.cli.watch import draw_curve
from apps.client.resources import Metrics
from apps.http_api.dependencies import Services
from tests.apps.cli.conftest import Call

HOSTILE = "a\x1b[2Jb\x9b31mc\x07\u202edcba\ud800"
HARMLESS = "a\\u001b[2Jb\\u009b31mc\\u0007\\u202edcba\\ud800"


def test_terminal_control_characters_are_escaped(capsys: pytest.CaptureFixture[str]) -> None:
    assert escape_controls(HOSTILE) == HARMLESS
    assert escape_controls("two lines\n\tof Brötchen 🥨") == "two lines\n\tof Brötchen 🥨"
    print_message(HOSTILE)
    show(None, False, lambda: Rows([(HOSTILE, "[/b]")]))
    assert capsys.readouterr().out == f"{HARMLESS}\n{HARMLESS}\t[/b]\n"
    print_json({"text": HOSTILE})
    printed = capsys.readouterr().out
    assert HARMLESS in printed
    assert json.loads(printed) == {"text": HOSTILE}


def test_file_names_are_printed_without_markup_or_emoji(
    call: Call, services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "rows[/b][link=http://x]y[/link]:100:\x1b[2J.jsonl"
    services.files.add("file-odd", b"{}\n", name)
    for terminal in (False, True):
        monkeypatch.setattr(
            output, "console", Console(markup=False, emoji=False, force_terminal=terminal)
        )
        status, shown = call("files", "list")
        assert status == 0
        assert "rows[/b][link=http://x]y[/link]:100:\\u001b[2J.jsonl" in shown


def test_output_without_terminal_is_not_truncated(
    call: Call, services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "20")
    services.files.add("file-0123456789abcdef01234567", b"{}\n", "a name with\ttabs.jsonl")
    listed = call("files", "list")[1]
    assert listed.startswith("file-0123456789abcdef01234567 a name with tabs.jsonl")
    status, printed_error = call("files", "show", "file-" + "none" * 20)
    assert (status, printed_error) == (1, f"error: there is no file 'file-{'none' * 20}'")


def test_text_split_within_characters_is_decoded() -> None:
    async def cut() -> AsyncIterator[bytes]:
        for byte in "Brötchen 🥨".encode():
            yield bytes([byte])

    async def join() -> str:
        return "".join([text async for text in decode(cut())])

    assert asyncio.run(join()) == "Brötchen 🥨"


@pytest.mark.parametrize(("loss", "width"), [(float("nan"), 90), (None, 90), (1.0, 16), (1.0, 0)])
def test_curve_is_empty_without_finite_loss_or_enough_width(loss: float | None, width: int) -> None:
    assert draw_curve([Metrics(step=1, num_steps=1, loss=loss)], width) == ""
