"""Rows to tokens, with the part that is learned marked.

The model's own chat template renders a row here and a chat at serving time, so that both agree to
the token. Rows are tokenised many at once; each gets exactly the tokens that it gets alone.
"""

import re
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jinja2
import numpy as np
import numpy.typing as npt
from transformers import PreTrainedTokenizerBase
from transformers.utils.chat_template_utils import render_jinja_template

from training.data.faults import RowFault
from training.data.formats import Row
from training.data.messages import Message, name_tool

_GENERATION_MARKER = re.compile(r"\{%-?\s*generation\s*-?%\}")
# What a template's own expressions may raise.
_TEMPLATE_ERRORS = (jinja2.TemplateError, TypeError, ValueError, LookupError, ArithmeticError)
# The library notes the marked blocks in the compiled template, which all threads share.
_rendering = threading.Lock()

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


@dataclass(frozen=True)
class _Rendering:
    """A chat as text, and the spans of it that are learned."""

    row: Row
    text: str
    spans: list[_Span]


def encode_rows(
    rows: Sequence[Row], tokenizer: PreTrainedTokenizerBase
) -> list[EncodedRow | RowFault]:
    """Tokenise rows of one format, uncut; the assistant's tokens are learned, or all of a text.

    Returns the `RowFault` of a row in its place if the template refuses or does not show it.
    """
    if not rows:
        return []
    if rows[0].text is not None:
        return _encode_texts(rows, tokenizer)
    if tokenizer.chat_template is None:
        return _encode_without_template(rows, tokenizer)
    renderings = [_catch_fault(_render_row, row, tokenizer) for row in rows]
    encoded = iter(_encode_renderings([r for r in renderings if _is_good(r)], tokenizer))
    return [next(encoded) if _is_good(rendering) else rendering for rendering in renderings]


def _is_good(value: object) -> bool:
    return not isinstance(value, RowFault)


def _catch_fault(function: Callable[..., Any], *arguments: Any) -> Any:
    try:
        return function(*arguments)
    except RowFault as fault:
        return fault


def _encode_renderings(
    renderings: list[_Rendering], tokenizer: PreTrainedTokenizerBase
) -> list[EncodedRow]:
    if not renderings:
        return []
    tokens = tokenizer(
        [rendering.text for rendering in renderings],
        add_special_tokens=False,
        return_attention_mask=False,
        return_offsets_mapping=True,
    )
    columns = zip(renderings, tokens["input_ids"], tokens["offset_mapping"], strict=True)
    return [
        EncodedRow(rendering.row.line, np.array(ids, np.int32), _mark(rendering.spans, offsets))
        for rendering, ids, offsets in columns
    ]


def _mark(spans: list[_Span], offsets: list[_Span]) -> Mask:
    """Mark the tokens of which any character lies in a span."""
    starts, ends = np.array(offsets, dtype=np.int64).reshape(-1, 2).T
    learned = np.zeros(len(offsets), dtype=np.bool_)
    for span_start, span_end in spans:
        learned |= (starts < span_end) & (ends > span_start)
    return learned


def _render_row(row: Row, tokenizer: PreTrainedTokenizerBase) -> _Rendering:
    template = str(tokenizer.get_chat_template(tools=list(row.tools) or None))
    _check_tools_known(row, template)
    has_markers = _GENERATION_MARKER.search(template) is not None
    text, blocks = _render(row, len(row.messages), tokenizer, with_blocks=has_markers)
    _check_tools_shown(row, text)
    if not has_markers:
        spans = _find_message_spans(row, text, tokenizer)
        return _Rendering(row, text, [span for place, span in spans if row.learned[place]])
    return _Rendering(row, text, _choose_blocks(row, text, blocks, tokenizer))


def _choose_blocks(
    row: Row, text: str, blocks: list[_Span], tokenizer: PreTrainedTokenizerBase
) -> list[_Span]:
    """Choose the marked blocks that are learned: all, unless a message has weight 0."""
    places = _find_assistant(row)
    if all(row.learned[place] for place in places):
        return blocks
    if len(blocks) == len(places) and all(
        (row.messages[place].get("content") or "").strip() in text[start:end]
        for place, (start, end) in zip(places, blocks, strict=True)
    ):
        owners = list(zip(places, blocks, strict=True))
    else:  # several blocks a message, or none: tell by what each message adds to the text
        owners = [
            (place, block)
            for place, (start, end) in _find_message_spans(row, text, tokenizer)
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
    row: Row, text: str, tokenizer: PreTrainedTokenizerBase
) -> list[tuple[int, _Span]]:
    """Find what each of the assistant's messages adds to the text after the generation prompt."""
    spans = []
    for place in _find_assistant(row):
        before, _ = _render(row, place, tokenizer, add_generation_prompt=True)
        after, _ = _render(row, place + 1, tokenizer)
        if not (after.startswith(before) and text.startswith(after)):
            raise RowFault(
                "the model's chat template rewrites earlier turns, so message {} cannot be found "
                "again in the whole; add {{% generation %}} markers to the template",
                place + 1,
            )
        spans.append((place, (len(before), len(after))))
    return spans


def _find_assistant(row: Row) -> list[int]:
    return [place for place, message in enumerate(row.messages) if message["role"] == "assistant"]


def _render(
    row: Row,
    num_messages: int,
    tokenizer: PreTrainedTokenizerBase,
    *,
    add_generation_prompt: bool = False,
    with_blocks: bool = False,
) -> tuple[str, list[_Span]]:
    """Render the first messages exactly as `apply_chat_template` does, with marked blocks."""
    tools = list(row.tools) or None
    try:
        with _rendering:
            texts, blocks = render_jinja_template(
                [[_drop_nulls(message) for message in row.messages[:num_messages]]],
                tools=tools,
                chat_template=tokenizer.get_chat_template(tools=tools),
                return_assistant_tokens_mask=with_blocks,
                add_generation_prompt=add_generation_prompt,
                **tokenizer.special_tokens_map,
            )
    except _TEMPLATE_ERRORS as exc:
        raise RowFault("the model's chat template refuses it: {}", str(exc)[:300]) from exc
    return str(texts[0]), list(blocks[0]) if blocks else []


def _drop_nulls(message: Message) -> dict[str, Any]:
    return {key: value for key, value in message.items() if value is not None}


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


def _encode_texts(
    rows: Sequence[Row], tokenizer: PreTrainedTokenizerBase
) -> list[EncodedRow | RowFault]:
    """Tokenise plain texts, each ended by the end-of-text token; all of it is learned."""
    ids = tokenizer([row.text for row in rows], return_attention_mask=False)["input_ids"]
    eos = tokenizer.eos_token_id
    encoded: list[EncodedRow | RowFault] = []
    for row, row_ids in zip(rows, ids, strict=True):
        is_ended = eos is None or row_ids[-1:] == [eos]
        whole = np.array(row_ids if is_ended else [*row_ids, eos], dtype=np.int32)
        encoded.append(EncodedRow(row.line, whole, np.ones(len(whole), dtype=np.bool_)))
    return encoded


def _encode_without_template(
    rows: Sequence[Row], tokenizer: PreTrainedTokenizerBase
) -> list[EncodedRow | RowFault]:
    """Join prompt and completion as they are: a base model without a chat template."""
    good = [row for row in rows if _is_question(row)]
    encoded: dict[int, EncodedRow] = {}
    if good:
        questions, answers = ([row.messages[side]["content"] for row in good] for side in (0, 1))
        prompts = tokenizer(questions)["input_ids"]
        completions = tokenizer(answers, add_special_tokens=False)["input_ids"]
        ends = [] if tokenizer.eos_token_id is None else [tokenizer.eos_token_id]
        for row, prompt, answer in zip(good, prompts, completions, strict=True):
            ids = np.array([*prompt, *answer, *ends], dtype=np.int32)
            encoded[id(row)] = EncodedRow(row.line, ids, np.arange(len(ids)) >= len(prompt))
    fault = RowFault(
        "the base model has no chat template, so only rows of one prompt and one answer can be "
        "learned; use a chat model or 'prompt'/'completion' rows"
    )
    return [encoded.get(id(row), fault) for row in rows]


def _is_question(row: Row) -> bool:
    roles = [message["role"] for message in row.messages]
    return roles == ["user", "assistant"] and not row.tools and bool(row.messages[1]["content"])
