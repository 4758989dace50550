"""The menu of files of rows: choose, upload and delete one.

Files that cannot be used are listed only on request. The chosen file is remembered in the browser.
"""

import logging
import time
from collections import Counter
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

import gradio as gr

from apps.client.client import ApiClient
from apps.client.errors import ApiClientError
from apps.client.resources import File
from apps.ui import markup
from apps.ui.error_messages import describe_error
from apps.ui.events import LATEST, QUIET
from apps.ui.figures import format_bytes
from apps.ui.protection.uploads import UPLOAD_LIFETIME_S, ForeignFileError, UploadFolder

_logger = logging.getLogger(__name__)

HANDBOOK_FILE_ID = "file-handbook"
HANDBOOK_NAME = "The bundled handbook"
_UNKNOWN_COLUMNS = "unknown_columns"
_PURPOSE = "fine-tune"
_STORAGE_KEY = "tuneserve-data"
RECALL_FILE_JS = f"""(() => {{
  const asked = new URLSearchParams(window.location.search).get("data");
  try {{ return asked || window.localStorage.getItem("{_STORAGE_KEY}") || ""; }}
  catch {{ return asked || ""; }}
}})()"""
"""The id of the file in the page's address, or of the one that was chosen last."""
REMEMBER_JS = f"""(id) => {{
  try {{ if (id) window.localStorage.setItem("{_STORAGE_KEY}", id); }} catch {{}}
}}"""


def is_usable(file: File) -> bool:
    """Return whether a job can learn from a file, perhaps once its columns are chosen."""
    return file.status != "error" or has_unknown_columns(file)


def has_unknown_columns(file: File) -> bool:
    """Return whether no format knows the columns of a file, so that they must be chosen."""
    return file.error_code == _UNKNOWN_COLUMNS


def list_file_choices(
    files: Sequence[File], now: float, kept: str | None = None, *, shows_all: bool = False
) -> list[tuple[str, str]]:
    """List the entries of the menu: the bundled handbook first, then the newest.

    Files that cannot be used are left out unless `shows_all`, except for `kept`. Equal entries get
    a part of their ids.
    """
    offered = [file for file in files if shows_all or is_usable(file) or file.id == kept]
    ordered = sorted(offered, key=lambda file: file.id != HANDBOOK_FILE_ID)
    labels = [(_label_file(file, now), file.id) for file in ordered]
    counts = Counter(label for label, _ in labels)
    return [
        (f"{label} · {file_id[-6:]}" if counts[label] > 1 else label, file_id)
        for label, file_id in labels
    ]


def _label_file(file: File, now: float) -> str:
    parts = [HANDBOOK_NAME if file.id == HANDBOOK_FILE_ID else file.filename]
    parts += [format_bytes(file.bytes), *_count_rows(file)]
    if file.id != HANDBOOK_FILE_ID:
        parts.append(markup.format_age(now - file.created_at))
    return " · ".join(parts)


def _count_rows(file: File) -> list[str]:
    if file.status == "uploaded":
        return ["being checked"]
    if file.status == "error":
        return ["choose its columns" if is_usable(file) else "cannot be used"]
    if file.check is None or file.check.num_rows is None:
        return []
    return [f"{file.check.num_rows:,} {'row' if file.check.num_rows == 1 else 'rows'}"]


def choose_file(files: Sequence[File], wanted: str | None) -> str | None:
    """Return the id of the wanted file, or of the first one that is offered."""
    if wanted and any(file.id == wanted for file in files):
        return wanted
    choices = list_file_choices(files, 0)
    return choices[0][1] if choices else None


class FileMenu:
    """The menu, its buttons, and their event handlers."""

    def __init__(self, client: ApiClient, uploads: UploadFolder) -> None:
        self._client = client
        self._uploads = uploads
        self.remembered = gr.Textbox(visible="hidden", elem_id="remembered-file", show_label=False)
        self.changed: gr.State = gr.State("")  # another text when another file is chosen here
        self.menu = gr.Dropdown(
            label="Data", elem_id="data-file", elem_classes=markup.NAMES, filterable=False
        )
        self.shows_all = gr.Checkbox(
            label="Also list files that cannot be used", elem_id="show-all-files", visible=False
        )
        with gr.Row(elem_id="data-buttons"):
            self.upload = gr.UploadButton(
                "Upload a file of rows", elem_id="upload-button", size="sm"
            )
            self.delete = gr.Button("Delete this file", elem_id="delete-file", size="sm")
        with gr.Column(visible=False, elem_id="delete-question") as self.question:
            self.question_text = gr.HTML()
            with gr.Row():
                self.confirm = gr.Button(
                    "Delete", variant="stop", elem_id="confirm-delete", size="sm"
                )
                self.keep = gr.Button("Keep", elem_id="keep-file", size="sm")

    @property
    def outputs(self) -> list[Any]:
        """What `show` updates."""
        return [self.menu, self.shows_all]

    def listen(self) -> list[Any]:
        """Handle the events of the menu; return the events of another choice of data."""
        listed = [self.menu, self.shows_all]
        self.upload.upload(
            self.add_file,
            self.upload,
            [*self.outputs, self.changed],
            show_progress="minimal",
            api_visibility="private",
        )
        self.delete.click(
            self.ask_to_delete, self.menu, [self.question, self.question_text], **QUIET
        )
        self.keep.click(self.keep_file, None, self.question, **QUIET)
        self.confirm.click(
            self.delete_file, listed, [self.question, *self.outputs, self.changed], **QUIET
        )
        self.shows_all.input(self.list_all_files, listed, self.outputs, **LATEST)
        chosen = [self.menu.input, self.changed.change]
        gr.on(chosen, None, self.menu, None, js=REMEMBER_JS, api_visibility="private")
        self.menu.input(self.keep_file, None, self.question, **QUIET)
        return chosen

    async def list_files(self) -> list[File]:
        """List the files of rows; those that jobs wrote are not among them."""
        return await self._client.files.list_all(_PURPOSE)

    def show(
        self, files: Sequence[File], chosen: str | None, *, shows_all: bool = False
    ) -> tuple[Any, ...]:
        """Show the files in the menu, with one of them chosen."""
        choices = list_file_choices(files, time.time(), chosen, shows_all=shows_all)
        return gr.Dropdown(choices=choices, value=chosen), _offer_unusable(files)

    async def list_all_files(self, chosen: str | None, shows_all: bool) -> tuple[Any, ...]:
        """Show the files that cannot be used too, or hide them.

        The choice stays as it is in the browser, where another file may be chosen by then.
        """
        try:
            files = await self.list_files()
        except ApiClientError as exc:
            gr.Warning(escape(describe_error(exc)))
            return gr.skip(), gr.skip()
        choices = list_file_choices(files, time.time(), chosen, shows_all=shows_all)
        return gr.Dropdown(choices=choices), _offer_unusable(files)

    async def add_file(self, path: str) -> tuple[Any, ...]:
        """Forward an upload to the API, then select the new file in the menu."""
        try:
            with self._uploads.open(path) as content:
                file = await self._client.files.upload(Path(path).name, content)
            files = await self.list_files()
        except ForeignFileError as exc:
            _logger.warning("An upload was refused: %s", exc)
            raise gr.Error(
                "This file was not uploaded to this page.", print_exception=False
            ) from exc
        except ApiClientError as exc:
            gr.Warning(escape(describe_error(exc)))
            return (gr.skip(),) * 3
        finally:
            self._uploads.delete(path)
            self._uploads.delete_older_than(UPLOAD_LIFETIME_S)
        return *self.show(files, file.id), file.id

    async def ask_to_delete(self, chosen: str | None) -> tuple[Any, ...]:
        """Ask for confirmation before the chosen file is deleted."""
        if not chosen:
            return gr.skip(), gr.skip()
        try:
            file = await self._client.files.get(chosen)
        except ApiClientError as exc:
            gr.Warning(escape(describe_error(exc)))
            return gr.skip(), gr.skip()
        text = (
            f"Delete {file.filename} ({format_bytes(file.bytes)})? This cannot be undone. Models "
            "and runs that learned from it stay."
        )
        return gr.Column(visible=True), markup.render_notice(text)

    async def delete_file(self, chosen: str | None, shows_all: bool) -> tuple[Any, ...]:
        """Delete the chosen file, and choose another one."""
        hidden = gr.Column(visible=False)
        try:
            if chosen:
                await self._client.files.delete(chosen)
            files = await self.list_files()
        except ApiClientError as exc:
            gr.Warning(escape(describe_error(exc)))
            return hidden, *(gr.skip(),) * 3
        new = choose_file(files, None)
        return hidden, *self.show(files, new, shows_all=shows_all), f"after {chosen}"

    def keep_file(self) -> Any:
        """Hide the question."""
        return gr.Column(visible=False)


def _offer_unusable(files: Sequence[File]) -> Any:
    """Show the box that lists the files that cannot be used, if there are any."""
    num_hidden = sum(not is_usable(file) for file in files)
    return gr.Checkbox(
        label=f"Also list files that cannot be used ({num_hidden})", visible=num_hidden > 0
    )
