"""The tokens at which a model stops to generate, and which of them ends an answer."""

import re
from collections.abc import Sequence
from typing import NamedTuple

from transformers import PreTrainedTokenizerBase

from templating.errors import RenderProcessError, TemplateLimitError
from templating.renderer import BatchRenderer, ChatTemplates, Rendering, RenderJob, RenderLimits


class EndToken(NamedTuple):
    """An end token in a text: its characters from and to, and its id."""

    start: int
    end: int
    token_id: int


class EndTokens:
    """The end tokens of one model, as serving stops at them.

    `ids` are those of its generation settings and of its tokenizer; the first is what ends a text.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, ids: Sequence[int]) -> None:
        self.ids = tuple(ids)
        self._templates = ChatTemplates.of(tokenizer)
        added = tokenizer.added_tokens_decoder
        self._by_content = {
            str(added[token_id].content): token_id
            for token_id in self.ids
            if token_id in added and str(added[token_id].content)
        }
        contents = sorted(self._by_content, key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, contents))) if contents else None
        self._continuations: dict[tuple[int, bool], int | None] = {}

    def find(self, text: str) -> EndToken | None:
        """Find the first end token in a text."""
        return self._read(self._pattern.search(text)) if self._pattern else None

    def match(self, text: str, place: int) -> EndToken | None:
        """Return the end token that begins at `place` of a text, if any."""
        return self._read(self._pattern.match(text, place)) if self._pattern else None

    def choose(self, template: int, limits: RenderLimits, *, has_calls: bool) -> int | None:
        """Choose what ends an answer for which a template writes no end token; None without any.

        That is the end token with which the template continues a chat after such an answer, as
        GLM-4.5 does with the next role; else the one that ends a text. `template` counts the
        model's templates from 0.
        """
        key = template, has_calls
        if key not in self._continuations:
            self._continuations[key] = self._find_continuation(template, limits, has_calls)
        found = self._continuations[key]
        return found if found is not None else next(iter(self.ids), None)

    def _read(self, found: "re.Match[str] | None") -> EndToken | None:
        return found and EndToken(*found.span(), self._by_content[found.group()])

    def _find_continuation(
        self, template: int, limits: RenderLimits, has_calls: bool
    ) -> int | None:
        """Render a short chat that continues after an answer, and read what follows the answer."""
        function = {"name": "count", "arguments": {}}
        call = {"id": "call00001", "type": "function", "function": function}
        answer: dict[str, object] = {"role": "assistant", "content": "Answer."}
        after: dict[str, object] = {"role": "user", "content": "Continue."}
        if has_calls:
            answer["tool_calls"] = [call]
            after = {"role": "tool", "content": "1", "name": "count", "tool_call_id": "call00001"}
        job = RenderJob(
            messages=[{"role": "user", "content": "Begin."}, answer, after],
            tools=None,
            template=template,
            add_generation_prompt=False,
            with_blocks=False,
            turns=[1],
        )
        renderer = BatchRenderer(self._templates, limits)
        try:
            renderer.send([job])
            (found,) = renderer.receive(1)
        except (RenderProcessError, TemplateLimitError):
            return None  # the rows themselves will show it
        finally:
            renderer.close()
        if not isinstance(found, Rendering) or found.turns[0].whole.rest:
            return None
        end = self.match(found.text, found.turns[0].whole.num_shared)
        return end.token_id if end else None
