"""The reasoning before an answer: learned, masked or dropped, and inserted where it is missing."""

import re
from typing import Literal, NamedTuple

from training.data.faults import RowFault

ReasoningUse = Literal["learn", "mask", "drop"]


class _Tags(NamedTuple):
    """The tags that a model writes around its reasoning."""

    begin: str
    end: str


# Qwen, DeepSeek and most others; Seed; Mistral; Gemma 4; Command A.
_TAGS = (
    _Tags("<think>", "</think>"),
    _Tags("<seed:think>", "</seed:think>"),
    _Tags("[THINK]", "[/THINK]"),
    _Tags("<|channel>thought\n", "<channel|>"),
    _Tags("<|START_THINKING|>", "<|END_THINKING|>"),
)


class AnswerWithReasoning(NamedTuple):
    """An answer with its reasoning and the reasoning's span; `is_changed` if text was inserted."""

    text: str
    span: tuple[int, int] | None
    is_changed: bool


def insert_reasoning(
    prompt_end: str, answer: str, reasoning: str | None, content: str, template: str, place: int
) -> AnswerWithReasoning:
    """Insert reasoning that the template omits into an answer; end reasoning begun by the prompt.

    `prompt_end` is the end of the prompt, `content` the content of the answer after its reasoning,
    and `place` the number of the message, from 0. Raises `RowFault` if the reasoning cannot be
    inserted.
    """
    if reasoning is not None:
        _check_open(prompt_end, place)
    begun = next((tags for tags in _TAGS if prompt_end.rstrip().endswith(tags.begin.strip())), None)
    if reasoning is not None and (start := _find_reasoning(answer, reasoning, content)) is not None:
        return AnswerWithReasoning(answer, (start, start + len(reasoning)), is_changed=False)
    if begun is not None:
        return _end_begun(prompt_end, answer, reasoning, begun)
    if reasoning is None:
        return AnswerWithReasoning(answer, None, is_changed=False)
    for tags in _TAGS:
        empty = re.match(rf"\s*{re.escape(tags.begin)}(\s*){re.escape(tags.end)}", answer)
        if empty:
            line = "\n" if "\n" in empty.group(1) else ""
            return _splice(answer, empty.start(1), empty.end(1), line, reasoning, line)
    for tags in _TAGS:
        if tags.begin.strip() in template or tags.end.strip() in template:
            begin = tags.begin.rstrip("\n")
            return _splice(answer, 0, 0, f"{begin}\n", reasoning, f"\n{tags.end}\n\n")
    raise RowFault(
        "message {} has reasoning, which the model's chat template does not write; set reasoning "
        "to 'drop', or use a model that reasons",
        place + 1,
    )


def _find_reasoning(answer: str, reasoning: str, content: str) -> int | None:
    """Find the reasoning before the content of an answer, which may contain the same words."""
    content = content.strip()
    end = answer.rfind(content) if content else len(answer)
    start = answer.find(reasoning, 0, max(end, 0))
    return None if start < 0 else start


def _check_open(prompt_end: str, place: int) -> None:
    """Raise `RowFault` for a prompt that instructs the model not to reason."""
    for tags in _TAGS:
        if prompt_end.rstrip().endswith(tags.end):
            raise RowFault(
                "message {} has reasoning, but the prompt before it ends with {!r}, which "
                "instructs the model not to reason; set template_arguments, or set reasoning to "
                "'drop'",
                place + 1,
                tags.end,
            )


def _end_begun(
    prompt_end: str, answer: str, reasoning: str | None, tags: _Tags
) -> AnswerWithReasoning:
    """Complete an answer whose prompt ends within the reasoning."""
    if reasoning is None and tags.end in answer:
        return AnswerWithReasoning(answer, None, is_changed=False)
    is_lined = prompt_end.endswith("\n")
    if tags.end in answer and (at := answer.index(tags.end)) == len(answer) - len(answer.lstrip()):
        end = "\n" if is_lined else ""  # the template ends it immediately
        return _splice(answer, 0, at, "", reasoning or "", end)
    end = f"\n{tags.end}\n\n" if is_lined else tags.end
    return _splice(answer.lstrip(), 0, 0, "", reasoning or "", end)


def _splice(
    answer: str, start: int, end: int, before: str, reasoning: str, after: str
) -> AnswerWithReasoning:
    """Replace characters of an answer by reasoning and the text around it."""
    text = f"{answer[:start]}{before}{reasoning}{after}{answer[end:]}"
    first = start + len(before)
    span = (first, first + len(reasoning)) if reasoning else None
    return AnswerWithReasoning(text, span, is_changed=True)
