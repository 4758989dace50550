"""Rows to texts by the model's chat template, and the parts of these texts that are learned.

Templates are rendered in a process of their own (`templating.renderer`).
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from transformers import PreTrainedTokenizerBase

from templating.errors import RenderProcessError, TemplateLimitError, TemplateRefusedError
from templating.literal_text import LiteralText
from templating.renderer import (
    BatchRenderer,
    ChatTemplates,
    Rendering,
    RenderJob,
    RenderLimits,
    Span,
)
from templating.text_pieces import PLACEHOLDER
from training.data.faults import RowFault
from training.data.formats import Row
from training.data.row_limits import MAX_PROTECTED_BYTES, MAX_TEXT_BYTES, check_size

_GENERATION_MARKER = re.compile(r"\{%-?\s*generation\s*-?%\}")
# The tokenizer takes some 400 bytes for each byte of text while it works.
_GROUP_BYTES = 1 << 18
_MAX_NAME_CHARACTERS = 80


class TemplateStoppedError(Exception):
    """The chat template exceeded its limits at the row of `line`; no row can be encoded."""

    def __init__(self, message: str, line: int) -> None:
        super().__init__(message)
        self.line = line


@dataclass(frozen=True)
class PlannedRow:
    """A row, and what is rendered of it."""

    row: Row
    template: str
    job: RenderJob
    literals: Mapping[str, str]


@dataclass(frozen=True)
class RenderedRow:
    """A chat as text, the spans of it that are learned, and what its placeholders stand for."""

    row: Row
    template: str
    text: str
    size_bytes: int
    spans: list[Span]
    literals: Mapping[str, str]


@dataclass(frozen=True)
class FaultyRow:
    """A row that cannot be used, and why."""

    row: Row
    fault: RowFault


Group = list[RenderedRow | FaultyRow]


class RowRenderer:
    """Renders the rows of one source. Must be closed."""

    def __init__(
        self, tokenizer: PreTrainedTokenizerBase, literal_text: LiteralText, limits: RenderLimits
    ) -> None:
        self._tokenizer = tokenizer
        self._literal_text = literal_text
        self._templates = ChatTemplates.of(tokenizer)
        self._limits = limits
        self._renderer: BatchRenderer | None = None

    @property
    def has_template(self) -> bool:
        """Whether the model has a chat template at all."""
        return bool(self._templates.texts)

    def close(self) -> None:
        """End the process that renders."""
        if self._renderer is not None:
            self._renderer.close()
            self._renderer = None

    def plan(self, row: Row) -> PlannedRow | FaultyRow:
        """Say what to render of a row, or why it cannot be rendered."""
        try:
            return self._plan_rendering(row)
        except RowFault as fault:
            return FaultyRow(row, fault)

    def _plan_rendering(self, row: Row) -> PlannedRow:
        tools = list(row.tools) or None
        template = str(self._tokenizer.get_chat_template(tools=tools))
        _check_tools_known(row, template)
        try:
            chat = self._literal_text.protect_chat(row.messages, tools, template)
        except TemplateRefusedError as exc:
            raise RowFault("its messages cannot be encoded as text: {}", exc) from exc
        has_markers = _GENERATION_MARKER.search(template) is not None
        is_all_learned = has_markers and all(row.learned[place] for place in _find_answers(row))
        job = RenderJob(
            messages=chat.messages,
            tools=chat.tools,
            template=self._templates.texts.index(template),
            add_generation_prompt=False,
            with_blocks=has_markers,
            answers=() if is_all_learned else _find_answers(row),
        )
        return PlannedRow(row, template, job, chat.literals)

    def send(self, planned: Sequence[PlannedRow | FaultyRow]) -> None:
        """Have rows rendered; raises `OSError` if they cannot be."""
        jobs = [one.job for one in planned if isinstance(one, PlannedRow)]
        with _expect_process():
            if self._renderer is None:
                self._renderer = BatchRenderer(self._templates, self._limits)
            self._renderer.send(jobs)

    def receive(self, planned: Sequence[PlannedRow | FaultyRow]) -> Iterator[Group]:
        """Yield rows that were sent as their texts arrive, in groups that take bounded memory.

        Raises `TemplateStoppedError`, or `OSError` if the process ended for another cause.
        """
        group: Group = []
        num_bytes = 0
        for one in planned:
            rendered = one if isinstance(one, FaultyRow) else self._receive_row(one)
            size_bytes = 0 if isinstance(rendered, FaultyRow) else rendered.size_bytes
            if group and num_bytes + size_bytes > _GROUP_BYTES:
                yield group
                group, num_bytes = [], 0
            group.append(rendered)
            num_bytes += size_bytes
        if group:
            yield group

    def _receive_row(self, planned: PlannedRow) -> RenderedRow | FaultyRow:
        assert self._renderer is not None
        try:
            with _expect_process():
                (found,) = self._renderer.receive(1)
        except TemplateLimitError as exc:
            raise TemplateStoppedError(
                f"the model's chat template was stopped: it {exc}; shorten the row, or use a "
                "model with another template",
                planned.row.line,
            ) from exc
        try:
            return _read_row(planned, found)
        except RowFault as fault:
            return FaultyRow(planned.row, fault)


@contextmanager
def _expect_process() -> Iterator[None]:
    """Raise `OSError` if the process that renders is not there: it is no fault of the rows."""
    try:
        yield
    except RenderProcessError as exc:
        raise OSError(f"rows were not rendered: {exc}") from exc


def _read_row(planned: PlannedRow, found: Rendering | TemplateRefusedError) -> RenderedRow:
    """Find what is learned in a row that was rendered; raises `RowFault`."""
    if isinstance(found, TemplateRefusedError):
        raise RowFault("the model's chat template refuses it: {}", found)
    row, literals = planned.row, planned.literals
    text = _restore(found.text, literals)
    size_bytes = _measure_text(text, is_protected=bool(literals))
    _check_tools_shown(row, text)
    spans = _choose_spans(row, found, has_markers=planned.job["with_blocks"])
    return RenderedRow(row, planned.template, found.text, size_bytes, spans, literals)


def _measure_text(text: str, *, is_protected: bool) -> int:
    """Count the bytes of a rendered text in UTF-8; raises `RowFault` if they are too many."""
    try:
        size_bytes = len(text.encode())
    except UnicodeEncodeError as exc:
        raise RowFault(
            "the model's chat template writes half a character (a lone surrogate); use a model "
            "with another template"
        ) from exc
    if is_protected:
        check_size("with control tokens as text it has", size_bytes, MAX_PROTECTED_BYTES)
    check_size("rendered it has", size_bytes, MAX_TEXT_BYTES)
    return size_bytes


def _restore(text: str, literals: Mapping[str, str]) -> str:
    if not literals:
        return text
    return PLACEHOLDER.sub(lambda match: literals.get(match.group(), match.group()), text)


def _choose_spans(row: Row, found: Rendering, *, has_markers: bool) -> list[Span]:
    """Choose the spans that are learned: all marked blocks, unless a message has weight 0.

    Raises `RowFault` if the messages cannot be found in the text.
    """
    places = _find_answers(row)
    if has_markers and all(row.learned[place] for place in places):
        return found.blocks
    if found.answers is None:  # each message is a block
        owners = list(zip(places, found.blocks, strict=True))
    else:
        if len(found.answers) < len(places):
            raise RowFault(
                "the model's chat template rewrites earlier turns, so message {} cannot be found "
                "again in the whole; add {{% generation %}} markers to the template",
                places[len(found.answers)] + 1,
            )
        owners = list(zip(places, found.answers, strict=True))
        if has_markers:
            owners = _assign_blocks(owners, found.blocks)
    return [span for place, span in owners if row.learned[place]]


def _assign_blocks(
    answers: Sequence[tuple[int, Span]], blocks: Sequence[Span]
) -> list[tuple[int, Span]]:
    """Tell by what each message adds to the text which message a block is part of."""
    owners = [
        (place, block)
        for place, (start, end) in answers
        for block in blocks
        if start <= block[0] and block[1] <= end
    ]
    if len(owners) != len(blocks):
        raise RowFault(
            "the parts that the model's chat template marks as generated cannot be matched to "
            "messages, so weight 0 cannot be honoured; leave such messages out"
        )
    return owners


def _find_answers(row: Row) -> list[int]:
    return [place for place, message in enumerate(row.messages) if message["role"] == "assistant"]


def _check_tools_known(row: Row, template: str) -> None:
    needs = {
        "tools": bool(row.tools),
        "tool_calls": any(message.get("tool_calls") for message in row.messages),
    }
    for word, is_needed in needs.items():
        if is_needed and not re.search(rf"\b{word}\b", template):
            raise RowFault(
                f"it has {word!r}, which the model's chat template does not render; use a model "
                "whose template does, or leave such rows out"
            )


def _check_tools_shown(row: Row, text: str) -> None:
    """Every tool and every call must be in the text by its name, once for each."""
    for name, num_uses in row.tool_names.items():
        if text.count(name) < num_uses:
            raise RowFault(
                "the tool {!r} or a call of it is missing from what the model's chat template "
                "renders; use a model whose template shows tools, or leave such rows out",
                name[:_MAX_NAME_CHARACTERS],
            )
