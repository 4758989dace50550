"""Conversion of a rendered chat to training samples: texts, and the parts of them to learn.

Serving prompts a model with the chat before each answer. A sample teaches an answer after exactly
that prompt. With most templates, the prompt of every answer is a prefix of the whole rendered chat;
then one sample teaches all answers. If a template rewrites earlier turns, for example removes their
reasoning, an answer whose prompt is not a prefix of the whole chat becomes a separate sample.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from templating.reasoning import remove_reasoning
from templating.renderer import RenderedTurn, Rendering, RenderLimits, Span
from training.data.chat.end_tokens import EndTokens
from training.data.chat.reasoning import ReasoningUse, insert_reasoning
from training.data.faults import RowFault

LearnedTurns = Literal["all", "last"]
_PROMPT_END_CHARACTERS = 200


class LearnedTurn(NamedTuple):
    """An answer in the text of a sample: its prompt ends at `start`, the answer at `end`.

    `spans` are the characters of the answer that are learned. `end_id` is an end token learned
    after the answer if the template writes none; only the last turn of a text has one.
    """

    start: int
    end: int
    spans: list[Span]
    end_id: int | None = None


class Sample(NamedTuple):
    """A text to tokenise, and the answers in it that are learned, in order."""

    text: str
    turns: list[LearnedTurn]


@dataclass(frozen=True)
class _Answer:
    """An answer as the model should write it, including its end token if it has one.

    `spans` are the characters that are learned. `is_rendered` is true if the answer is unchanged in
    the rendered conversation, directly after the prompt.
    """

    text: str
    spans: list[Span]
    has_end: bool
    is_rendered: bool


class SampleBuilder:
    """Builds samples from chats that were rendered with one template."""

    def __init__(
        self,
        template: str,
        number: int,
        end_tokens: EndTokens,
        reasoning: ReasoningUse,
        limits: RenderLimits,
    ) -> None:
        self._template = template
        self._number = number
        self._end_tokens = end_tokens
        self._reasoning: ReasoningUse = reasoning
        self._limits = limits

    def build(
        self,
        messages: Sequence[Mapping[str, Any]],
        reasonings: Mapping[int, str | None],
        found: Rendering,
    ) -> list[Sample]:
        """Build the samples of a chat; the keys of `reasonings` are the messages to learn.

        `messages` are the rendered messages. Raises `RowFault` for an answer that is missing from
        the template's output.
        """
        shared: list[LearnedTurn] = []
        samples: list[Sample] = []
        for (place, reasoning), turn in zip(reasonings.items(), found.turns, strict=True):
            content = str(remove_reasoning(messages[place]).get("content") or "")
            answer = self._find_answer(found.text, turn, place, reasoning, content)
            _check_content(content, answer.text, place)
            has_calls = bool(messages[place].get("tool_calls"))
            if (learned := self._place(answer, turn, found.text, has_calls)) is not None:
                shared.append(learned)
                continue
            prompt = found.text[: turn.prompt.num_shared] + turn.prompt.rest
            end_id = None if answer.has_end else self._choose_end(has_calls)
            start, end = len(prompt), len(prompt) + len(answer.text)
            own = LearnedTurn(start, end, _shift(answer.spans, start), end_id)
            samples.append(Sample(prompt + answer.text, [own]))
        if shared:
            samples.append(Sample(found.text, shared))
        return samples

    def _find_answer(
        self, text: str, turn: RenderedTurn, place: int, reasoning: str | None, content: str
    ) -> _Answer:
        """Extract an answer from the rendered text, and complete its reasoning."""
        if turn.start is None:
            raise RowFault(
                "message {} cannot be found in what the model's chat template renders; use a model "
                "with another template",
                place + 1,
            )
        rendered = _slice(text, turn, turn.start)
        marked = _clip(_shift(turn.blocks, -turn.start), len(rendered))
        if (found := self._end_tokens.find(rendered)) is not None:
            rendered = rendered[: found.end]
            marked = _clip(marked, found.end)
        elif marked:
            rendered = rendered[: marked[-1][1]]
        prompt_end = _read_prompt_end(text, turn)
        shown = insert_reasoning(prompt_end, rendered, reasoning, content, self._template, place)
        spans = [(0, len(shown.text))]
        if marked and not shown.is_changed:
            spans = marked
            if found is not None and marked[-1][1] < found.end:  # it is outside the markers
                spans = [*marked, (found.start, found.end)]
        if self._reasoning == "mask" and shown.span is not None:
            spans = [part for span in spans for part in _subtract(span, shown.span)]
        is_rendered = (
            not shown.is_changed
            and not turn.prompt.rest
            and turn.start == turn.prompt.num_shared <= turn.whole.num_shared
        )
        return _Answer(shown.text, spans, found is not None, is_rendered)

    def _place(
        self, answer: _Answer, turn: RenderedTurn, text: str, has_calls: bool
    ) -> LearnedTurn | None:
        """Find an answer in the text of the whole chat; None if it differs there from serving."""
        start = turn.prompt.num_shared
        end = start + len(answer.text)
        if not answer.is_rendered or end > turn.whole.num_shared:
            return None
        spans = _shift(answer.spans, start)
        if answer.has_end:
            return LearnedTurn(start, end, spans)
        if (follows := self._end_tokens.match(text, end)) is not None:
            return LearnedTurn(start, follows.end, [*spans, (end, follows.end)])
        if end == len(text):
            return LearnedTurn(start, end, spans, self._choose_end(has_calls))
        return None

    def _choose_end(self, has_calls: bool) -> int | None:
        return self._end_tokens.choose(self._number, self._limits, has_calls=has_calls)


def _check_content(content: str, answer: str, place: int) -> None:
    """Raise `RowFault` for an answer whose content the template leaves out or changes."""
    if content.strip() not in answer:
        raise RowFault(
            "the content of message {} is missing from what the model's chat template renders, or "
            "is changed by it; change the message, or use a model with another template",
            place + 1,
        )


def _slice(text: str, turn: RenderedTurn, start: int) -> str:
    """Return the conversation up to the end of a turn, from `start`."""
    num_shared, rest = turn.whole
    return text[start:num_shared] + rest[max(0, start - num_shared) :]


def _read_prompt_end(text: str, turn: RenderedTurn) -> str:
    num_shared, rest = turn.prompt
    shared = text[max(0, num_shared - _PROMPT_END_CHARACTERS) : num_shared]
    return (shared + rest)[-_PROMPT_END_CHARACTERS:]


def _shift(spans: Sequence[Span], offset: int) -> list[Span]:
    return [(start + offset, end + offset) for start, end in spans]


def _clip(spans: Sequence[Span], length: int) -> list[Span]:
    clipped = [(max(0, start), min(end, length)) for start, end in spans]
    return [(start, end) for start, end in clipped if start < end]


def _subtract(span: Span, hole: Span) -> list[Span]:
    parts = [(span[0], min(span[1], hole[0])), (max(span[0], hole[1]), span[1])]
    return [(start, end) for start, end in parts if start < end]
