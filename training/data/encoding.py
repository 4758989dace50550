"""Rows to tokens, with the part that is learned marked.

The model's own chat template renders a row here and a chat at serving time, so that both agree to
the token. Rows are tokenised many at once; each gets exactly the tokens that it gets alone.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from transformers import PreTrainedTokenizerBase

from model_files.tokenizer_faults import translate_faults
from templating.errors import RenderProcessError, TemplateLimitError, TemplateRefusedError
from templating.literal_text import LiteralText
from templating.renderer import BatchRenderer, ChatTemplates, Rendering, RenderJob, RenderLimits
from templating.text_pieces import EncodedText
from training.data.faults import RowFault
from training.data.formats import Row
from training.data.messages import name_tool

_GENERATION_MARKER = re.compile(r"\{%-?\s*generation\s*-?%\}")

TokenIds = npt.NDArray[np.int32]
Mask = npt.NDArray[np.bool_]
_Span = tuple[int, int]  # characters from and to, of a rendered text


@dataclass(frozen=True)
class EncodedRow:
    """One row as tokens; `learned[i]` says whether the loss counts the prediction of token `i`.

    Both arrays have the shape `[length]`.
    """

    line: int
    input_ids: TokenIds
    learned: Mask
    truncated_tokens: int = 0

    @property
    def num_learned(self) -> int:
        """Tokens that the loss counts; the first token of a row is never predicted."""
        return int(self.learned[1:].sum())

    def truncate(self, max_length: int) -> "EncodedRow":
        """Cut to the first `max_length` tokens and count those that are lost."""
        num_cut = max(0, len(self.input_ids) - max_length)
        ids, learned = self.input_ids[:max_length], self.learned[:max_length]
        return EncodedRow(self.line, ids, learned, num_cut)


class TemplateStoppedError(Exception):
    """The chat template exceeded its limits at the row of `line`; no row can be encoded."""

    def __init__(self, message: str, line: int) -> None:
        super().__init__(message)
        self.line = line


@dataclass(frozen=True)
class _PlannedRow:
    """A row, and the renderings that it takes: the whole, then two for each answer in it."""

    row: Row
    template: str
    jobs: tuple[RenderJob, ...]
    literals: Mapping[str, str]
    has_markers: bool


@dataclass(frozen=True)
class _RenderedRow:
    """A chat as text, the spans of it that are learned, and what its placeholders stand for."""

    row: Row
    template: str
    text: str
    spans: list[_Span]
    literals: Mapping[str, str]


class RowEncoder:
    """Tokenises the rows of one source; templates are rendered in a process of its own.

    While a batch is tokenised here, the next one is rendered there. Must be closed.
    """

    def __init__(
        self, tokenizer: PreTrainedTokenizerBase, limits: RenderLimits | None = None
    ) -> None:
        self._tokenizer = tokenizer
        self._literal_text = LiteralText(tokenizer)
        self._templates = ChatTemplates.of(tokenizer)
        self._limits = limits or RenderLimits()
        self._renderer: BatchRenderer | None = None

    def __enter__(self) -> "RowEncoder":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the process that renders."""
        if self._renderer is not None:
            self._renderer.close()
            self._renderer = None

    def encode(
        self, batches: Iterable[Sequence[Row]]
    ) -> Iterator[tuple[Row, EncodedRow | RowFault]]:
        """Tokenise rows, uncut; the assistant's tokens are learned, or all of a text.

        The rows of a batch have one format. Yields each with the `RowFault` in its place if the
        template refuses or does not show it. Raises `TemplateStoppedError` for a template that
        exceeds its limits, and `OSError` if its process ended for another cause.
        """
        ahead: tuple[Sequence[Row], list[_PlannedRow | RowFault]] | None = None
        for rows in batches:
            if rows and (rows[0].text is not None or not self._templates.texts):
                yield from zip(rows, self._encode_plain(rows), strict=True)
                continue
            planned = [_catch_fault(self._plan, row) for row in rows]
            rendered = None if ahead is None else self._receive(ahead[1])
            self._send(planned)
            if ahead is not None and rendered is not None:
                yield from zip(ahead[0], self._finish(rendered), strict=True)
            ahead = (rows, planned)
        if ahead is not None:
            yield from zip(ahead[0], self._finish(self._receive(ahead[1])), strict=True)

    def _plan(self, row: Row) -> _PlannedRow:
        tools = list(row.tools) or None
        template = str(self._tokenizer.get_chat_template(tools=tools))
        _check_tools_known(row, template)
        try:
            chat = self._literal_text.protect_chat(row.messages, tools, template)
        except TemplateRefusedError as exc:
            raise RowFault("its messages cannot be encoded as text: {}", exc) from exc
        has_markers = _GENERATION_MARKER.search(template) is not None

        def plan(num_messages: int, *, prompt: bool = False, blocks: bool = False) -> RenderJob:
            return RenderJob(
                messages=chat.messages[:num_messages],
                tools=chat.tools,
                template=self._templates.texts.index(template),
                add_generation_prompt=prompt,
                with_blocks=blocks,
            )

        jobs = [plan(len(row.messages), blocks=has_markers)]
        places = _find_assistant(row)
        if not has_markers or not all(row.learned[place] for place in places):
            for place in places:
                jobs += [plan(place, prompt=True), plan(place + 1)]
        return _PlannedRow(row, template, tuple(jobs), chat.literals, has_markers)

    def _send(self, planned: Sequence[_PlannedRow | RowFault]) -> None:
        jobs = [job for one in planned if isinstance(one, _PlannedRow) for job in one.jobs]
        if self._renderer is None:
            self._renderer = BatchRenderer(self._templates, self._limits)
        self._renderer.send(jobs)

    def _receive(self, planned: Sequence[_PlannedRow | RowFault]) -> list[_RenderedRow | RowFault]:
        assert self._renderer is not None
        rendered: list[_RenderedRow | RowFault] = []
        for one in planned:
            if isinstance(one, RowFault):
                rendered.append(one)
                continue
            try:
                found = list(self._renderer.receive(len(one.jobs)))
            except TemplateLimitError as exc:
                raise TemplateStoppedError(
                    f"the model's chat template was stopped: it {exc}; shorten the row, or use a "
                    "model with another template",
                    one.row.line,
                ) from exc
            except RenderProcessError as exc:
                raise OSError(f"rows were not rendered: {exc}") from exc
            rendered.append(_catch_fault(_read_row, one, found))
        return rendered

    def _finish(self, rendered: Sequence[_RenderedRow | RowFault]) -> list[EncodedRow | RowFault]:
        good = [one for one in rendered if isinstance(one, _RenderedRow)]
        encoded = iter(self._tokenize(good))
        return [next(encoded) if isinstance(one, _RenderedRow) else one for one in rendered]

    def _tokenize(self, rows: Sequence[_RenderedRow]) -> list[EncodedRow | RowFault]:
        texts = self._encode_texts(
            [row.text for row in rows],
            [row.literals for row in rows],
            [row.template for row in rows],
        )
        return [
            text
            if isinstance(text, RowFault)
            else EncodedRow(
                row.row.line, np.array(text.ids, np.int32), _mark(row.spans, text.offsets)
            )
            for row, text in zip(rows, texts, strict=True)
        ]

    def _encode_texts(
        self,
        texts: Sequence[str],
        literals: Sequence[Mapping[str, str]],
        templates: Sequence[str],
        *,
        add_special_tokens: bool = False,
    ) -> list[EncodedText | RowFault]:
        """Tokenise texts, those with literals one by one, so that one refused spoils no other."""
        plain = [index for index, found in enumerate(literals) if not found]
        encoded: dict[int, EncodedText | RowFault] = {}
        if plain:
            found = self._literal_text.encode(
                [texts[index] for index in plain],
                [{} for _ in plain],
                add_special_tokens=add_special_tokens,
            )
            encoded.update(zip(plain, found, strict=True))
        for index in set(range(len(texts))).difference(plain):
            try:
                (encoded[index],) = self._literal_text.encode(
                    [texts[index]],
                    [literals[index]],
                    templates[index],
                    add_special_tokens=add_special_tokens,
                )
            except TemplateRefusedError as exc:
                encoded[index] = RowFault("its messages cannot be encoded as text: {}", exc)
        return [encoded[index] for index in range(len(texts))]

    def _encode_plain(self, rows: Sequence[Row]) -> list[EncodedRow | RowFault]:
        if rows[0].text is not None:
            return _encode_raw_texts(rows, self._tokenizer)
        return self._encode_without_template(rows)

    def _encode_without_template(self, rows: Sequence[Row]) -> list[EncodedRow | RowFault]:
        """Join prompt and completion as they are: a base model without a chat template."""
        prompts = self._encode_contents(rows, 0)
        answers = self._encode_contents(rows, 1)
        eos = self._tokenizer.eos_token_id
        ends = [] if eos is None else [eos]
        encoded: list[EncodedRow | RowFault] = []
        for row, prompt, answer in zip(rows, prompts, answers, strict=True):
            if isinstance(prompt, RowFault):
                encoded.append(prompt)
            elif isinstance(answer, RowFault):
                encoded.append(answer)
            else:
                ids = np.array([*prompt.ids, *answer.ids, *ends], dtype=np.int32)
                encoded.append(EncodedRow(row.line, ids, np.arange(len(ids)) >= len(prompt.ids)))
        return encoded

    def _encode_contents(self, rows: Sequence[Row], side: int) -> list[EncodedText | RowFault]:
        """Tokenise the questions (0) or the answers (1) of rows without a template, as text."""
        fault = RowFault(
            "the base model has no chat template, so only rows of one prompt and one answer can be "
            "learned; use a chat model or 'prompt'/'completion' rows"
        )
        good = [row for row in rows if _is_question(row)]
        texts = [self._literal_text.protect_text(row.messages[side]["content"]) for row in good]
        encoded = iter(
            self._encode_texts(
                [text for text, _ in texts],
                [literals for _, literals in texts],
                [""] * len(texts),
                add_special_tokens=side == 0,
            )
        )
        return [next(encoded) if _is_question(row) else fault for row in rows]


def _catch_fault(function: Callable[..., Any], *arguments: Any) -> Any:
    try:
        return function(*arguments)
    except RowFault as fault:
        return fault


def _mark(spans: list[_Span], offsets: list[_Span]) -> Mask:
    """Mark the tokens of which any character lies in a span."""
    starts, ends = np.array(offsets, dtype=np.int64).reshape(-1, 2).T
    learned = np.zeros(len(offsets), dtype=np.bool_)
    for span_start, span_end in spans:
        learned |= (starts < span_end) & (ends > span_start)
    return learned


def _read_row(planned: _PlannedRow, found: Sequence[Rendering | TemplateRefusedError]) -> Any:
    """Find what is learned in a row that was rendered; raises `RowFault`."""
    row, (whole, *parts) = planned.row, found
    if isinstance(whole, TemplateRefusedError):
        raise _describe_refusal(whole)
    text, literals = whole.text, planned.literals
    _check_tools_shown(row, _restore(text, literals))
    if planned.has_markers:
        spans = _choose_blocks(row, text, whole.blocks, parts, literals)
    else:
        found_spans = _find_message_spans(row, text, parts)
        spans = [span for place, span in found_spans if row.learned[place]]
    return _RenderedRow(row, planned.template, text, spans, literals)


def _describe_refusal(refusal: TemplateRefusedError) -> RowFault:
    return RowFault("the model's chat template refuses it: {}", refusal)


def _restore(text: str, literals: Mapping[str, str]) -> str:
    for placeholder, literal in literals.items():
        text = text.replace(placeholder, literal)
    return text


def _choose_blocks(
    row: Row,
    text: str,
    blocks: list[_Span],
    parts: Sequence[Rendering | TemplateRefusedError],
    literals: Mapping[str, str],
) -> list[_Span]:
    """Choose the marked blocks that are learned: all, unless a message has weight 0."""
    places = _find_assistant(row)
    if all(row.learned[place] for place in places):
        return blocks
    if len(blocks) == len(places) and all(
        (row.messages[place].get("content") or "").strip() in _restore(text[start:end], literals)
        for place, (start, end) in zip(places, blocks, strict=True)
    ):
        owners = list(zip(places, blocks, strict=True))
    else:  # several blocks a message, or none: tell by what each message adds to the text
        owners = [
            (place, block)
            for place, (start, end) in _find_message_spans(row, text, parts)
            for block in blocks
            if start <= block[0] and block[1] <= end
        ]
        if len(owners) != len(blocks):
            raise RowFault(
                "the parts that the model's chat template marks as generated cannot be matched to "
                "messages, so weight 0 cannot be honoured; leave such messages out"
            )
    return [block for place, block in owners if row.learned[place]]


def _find_message_spans(
    row: Row, text: str, parts: Sequence[Rendering | TemplateRefusedError]
) -> list[tuple[int, _Span]]:
    """Find what each of the assistant's messages adds to the text after the generation prompt.

    `parts` are the renderings up to before and up to after each of them.
    """
    spans = []
    pairs = zip(parts[::2], parts[1::2], strict=True)
    for place, (before, after) in zip(_find_assistant(row), pairs, strict=True):
        for part in (before, after):
            if isinstance(part, TemplateRefusedError):
                raise _describe_refusal(part)
        assert isinstance(before, Rendering)
        assert isinstance(after, Rendering)
        if not (after.text.startswith(before.text) and text.startswith(after.text)):
            raise RowFault(
                "the model's chat template rewrites earlier turns, so message {} cannot be found "
                "again in the whole; add {{% generation %}} markers to the template",
                place + 1,
            )
        spans.append((place, (len(before.text), len(after.text))))
    return spans


def _find_assistant(row: Row) -> list[int]:
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
    names = [name_tool(tool) for tool in row.tools]
    names += [name_tool(call) for m in row.messages for call in m.get("tool_calls") or ()]
    for name in names:
        if text.count(name) < names.count(name):
            raise RowFault(
                "the tool {!r} or a call of it is missing from what the model's chat template "
                "renders; use a model whose template shows tools, or leave such rows out",
                name,
            )


def _encode_raw_texts(
    rows: Sequence[Row], tokenizer: PreTrainedTokenizerBase
) -> list[EncodedRow | RowFault]:
    """Tokenise plain texts, each ended by the end-of-text token; all of it is learned."""
    with translate_faults():
        ids = tokenizer([row.text for row in rows], return_attention_mask=False)["input_ids"]
    eos = tokenizer.eos_token_id
    encoded: list[EncodedRow | RowFault] = []
    for row, row_ids in zip(rows, ids, strict=True):
        is_ended = eos is None or row_ids[-1:] == [eos]
        whole = np.array(row_ids if is_ended else [*row_ids, eos], dtype=np.int32)
        encoded.append(EncodedRow(row.line, whole, np.ones(len(whole), dtype=np.bool_)))
    return encoded


def _is_question(row: Row) -> bool:
    roles = [message["role"] for message in row.messages]
    return roles == ["user", "assistant"] and not row.tools and bool(row.messages[1]["content"])
