"""Rendering of rows to texts with the model's chat template, with the parts that are learned.

Templates are rendered in a separate process (`templating.renderer`).
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from transformers import PreTrainedTokenizerBase

from templating.errors import RenderProcessError, TemplateLimitError, TemplateRefusedError
from templating.literal_text import LiteralText
from templating.reasoning import arrange_reasoning, read_reasoning, remove_reasoning
from templating.renderer import BatchRenderer, ChatTemplates, Rendering, RenderJob, RenderLimits
from templating.text_pieces import restore_literals
from training.data.chat.call_ids import add_call_ids
from training.data.chat.end_tokens import EndTokens
from training.data.chat.learned_spans import LearnedTurns, Sample, SampleBuilder
from training.data.chat.reasoning import ReasoningUse
from training.data.faults import RowFault
from training.data.row_limits import MAX_PROTECTED_BYTES, MAX_TEXT_BYTES, check_size
from training.data.text.formats import Row

_GENERATION_MARKER = re.compile(r"\{%-?\s*generation\s*-?%\}")
# The tokenizer takes about 400 bytes of memory per byte of text while it runs.
_GROUP_BYTES = 1 << 18
_MAX_NAME_CHARACTERS = 80


class TemplateStoppedError(Exception):
    """The chat template exceeded its limits at the row of `line`; no row can be encoded."""

    def __init__(self, message: str, line: int) -> None:
        super().__init__(message)
        self.line = line


@dataclass(frozen=True)
class ChatSettings:
    """The parts of chats that are learned; `end_ids` are serving's stop tokens, best first."""

    learned_turns: LearnedTurns = "all"
    reasoning: ReasoningUse = "learn"
    end_ids: tuple[int, ...] = ()


@dataclass(frozen=True)
class PlannedRow:
    """A row and its render job; `reasonings` has the reasoning of each message to learn."""

    row: Row
    template: str
    job: RenderJob
    literals: Mapping[str, str]
    reasonings: Mapping[int, str | None]


@dataclass(frozen=True)
class RenderedSample:
    """A chat, or its beginning, as text; `literals` maps its placeholders to the original texts.

    `is_part` is true if the row has other samples.
    """

    row: Row
    template: str
    sample: Sample
    size_bytes: int
    literals: Mapping[str, str]
    is_part: bool


@dataclass(frozen=True)
class FaultyRow:
    """A row that cannot be used, and its fault."""

    row: Row
    fault: RowFault


Group = list[RenderedSample | FaultyRow]


class RowRenderer:
    """Renders the rows of one source. Must be closed."""

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        literal_text: LiteralText,
        settings: ChatSettings,
        limits: RenderLimits,
    ) -> None:
        self._tokenizer = tokenizer
        self._literal_text = literal_text
        self._settings = settings
        self._templates = ChatTemplates.of(tokenizer)
        self._limits = limits
        end_tokens = EndTokens(tokenizer, settings.end_ids)
        self._builders = [
            SampleBuilder(text, number, end_tokens, settings.reasoning, limits)
            for number, text in enumerate(self._templates.texts)
        ]
        self._renderer: BatchRenderer | None = None

    @property
    def has_template(self) -> bool:
        """Whether the model has a chat template."""
        return bool(self._templates.texts)

    def close(self) -> None:
        """Stop the render process."""
        if self._renderer is not None:
            self._renderer.close()
            self._renderer = None

    def plan(self, row: Row) -> PlannedRow | FaultyRow:
        """Plan the rendering of a row, or return why it cannot be rendered."""
        try:
            return self._plan_rendering(row)
        except RowFault as fault:
            return FaultyRow(row, fault)

    def _plan_rendering(self, row: Row) -> PlannedRow:
        tools = list(row.tools) or None
        template = str(self._tokenizer.get_chat_template(tools=tools))
        _check_tools_known(row, template)
        use = self._settings.reasoning
        arranged = [
            remove_reasoning(message) if use == "drop" else arrange_reasoning(message, template)
            for message in row.messages
        ]
        messages = add_call_ids(arranged, template)
        try:
            chat = self._literal_text.protect_chat(messages, tools, template)
        except TemplateRefusedError as exc:
            raise RowFault("its messages cannot be encoded as text: {}", exc) from exc
        places = self._choose_turns(row)
        job = RenderJob(
            messages=chat.messages,
            tools=chat.tools,
            template=self._templates.texts.index(template),
            add_generation_prompt=False,
            with_blocks=_GENERATION_MARKER.search(template) is not None,
            turns=places,
        )
        reasonings = {
            place: None if use == "drop" else read_reasoning(chat.messages[place])
            for place in places
        }
        return PlannedRow(row, template, job, chat.literals, reasonings)

    def _choose_turns(self, row: Row) -> list[int]:
        places = [place for place, is_learned in enumerate(row.learned) if is_learned]
        return places[-1:] if self._settings.learned_turns == "last" else places

    def send(self, planned: Sequence[PlannedRow | FaultyRow]) -> None:
        """Send rows to the render process; raises `OSError` if that fails."""
        jobs = [one.job for one in planned if isinstance(one, PlannedRow)]
        with _expect_process():
            if self._renderer is None:
                self._renderer = BatchRenderer(self._templates, self._limits)
            self._renderer.send(jobs)

    def receive(self, planned: Sequence[PlannedRow | FaultyRow]) -> Iterator[Group]:
        """Yield the sent rows as their texts arrive, in groups of bounded memory.

        Raises `TemplateStoppedError`, or `OSError` if the process ended for another reason.
        """
        group: Group = []
        num_bytes = 0
        for one in planned:
            for rendered in [one] if isinstance(one, FaultyRow) else self._receive_row(one):
                size_bytes = 0 if isinstance(rendered, FaultyRow) else rendered.size_bytes
                if group and num_bytes + size_bytes > _GROUP_BYTES:
                    yield group
                    group, num_bytes = [], 0
                group.append(rendered)
                num_bytes += size_bytes
        if group:
            yield group

    def _receive_row(self, planned: PlannedRow) -> Sequence[RenderedSample | FaultyRow]:
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
            return self._read_row(planned, found)
        except RowFault as fault:
            return [FaultyRow(planned.row, fault)]

    def _read_row(
        self, planned: PlannedRow, found: Rendering | TemplateRefusedError
    ) -> list[RenderedSample]:
        """Build the samples of a rendered row; raises `RowFault`."""
        if isinstance(found, TemplateRefusedError):
            raise RowFault("the model's chat template refuses it: {}", found)
        row, literals = planned.row, planned.literals
        whole = restore_literals(found.text, literals)
        whole_bytes = _measure_text(whole, is_protected=bool(literals))
        _check_tools_shown(row, whole)
        builder = self._builders[planned.job["template"]]
        samples = builder.build(planned.job["messages"], planned.reasonings, found)
        rendered = []
        for sample in samples:
            size_bytes = whole_bytes
            if sample.text is not found.text:
                text = restore_literals(sample.text, literals)
                size_bytes = _measure_text(text, is_protected=bool(literals))
            rendered.append(
                RenderedSample(
                    row, planned.template, sample, size_bytes, literals, len(samples) > 1
                )
            )
        return rendered


@contextmanager
def _expect_process() -> Iterator[None]:
    """Raise `OSError` if the render process fails, because that is not a fault of the rows."""
    try:
        yield
    except RenderProcessError as exc:
        raise OSError(f"rows were not rendered: {exc}") from exc


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
    """Raise `RowFault` unless the text has the name of every tool and call, once for each use."""
    for name, num_uses in row.tool_names.items():
        if text.count(name) < num_uses:
            raise RowFault(
                "the tool {!r} or a call of it is missing from what the model's chat template "
                "renders; use a model whose template shows tools, or leave such rows out",
                name[:_MAX_NAME_CHARACTERS],
            )
