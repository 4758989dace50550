"""The tokens at which a model stops generating, and the choice of the one that ends an answer."""

import re
from collections.abc import Sequence
from typing import NamedTuple

from transformers import PreTrainedTokenizerBase

from templating.errors import RenderProcessError, TemplateLimitError
from templating.renderer import BatchRenderer, ChatTemplates, Rendering, RenderJob, RenderLimits


class EndToken(NamedTuple):
    """An end token in a text: its first and end character, and its id."""

    start: int
    end: int
    token_id: int


class EndTokens:
    """The end tokens of one model, at which serving stops.

    `ids` come from its generation settings and its tokenizer; the first id ends a text.
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
        """Choose the token that ends an answer if the template writes none; None without any.

        The template may continue a chat after such an answer with an end token, as GLM-4.5 does
        with the next role; otherwise the token that ends a text is chosen. `template` is the number
        of the template among the model's templates, from 0.
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
        """Render a short chat that continues after an answer, and find the end token after it."""
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
            return None  # rendering the rows will report it
        finally:
            renderer.close()
        if not isinstance(found, Rendering) or found.turns[0].whole.rest:
            return None
        end = self.match(found.text, found.turns[0].whole.num_shared)
        return end.token_id if end else None
