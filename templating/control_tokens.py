"""The strings that a tokenizer encodes as control tokens under a chat template."""

import re
import threading
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from templating.patterns import match_any

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_TURN_TOKEN = re.compile(r"<[|\uff5c].*[|\uff5c]>", re.DOTALL)

Normalize = Callable[[str], str]


class Control(NamedTuple):
    """The strings that are control tokens under one template; `contents` are sorted."""

    contents: tuple[str, ...]
    ids: frozenset[int]
    anywhere: re.Pattern[str]
    in_answers: re.Pattern[str]
    first_characters: frozenset[str]
    longest: int
    normalized: re.Pattern[str]

    def affects(self, text: str, normalize: Normalize | None) -> bool:
        """Return whether a text contains a control token, or ends with the beginning of one."""
        return bool(
            self.anywhere.search(text)
            or self.find_open_end(text) is not None
            or (normalize is not None and self.normalized.search(normalize(text)))
        )

    def find_open_end(self, text: str) -> int | None:
        """Return where an incomplete control token begins at the end of a text, else None.

        Text that follows could complete it. The time is proportional to the length of the longest
        control token and hardly depends on their number.
        """
        text = text.rstrip()
        if self.first_characters.isdisjoint(text[-self.longest :]):
            return None
        for start in range(max(0, len(text) - self.longest), len(text)):
            if text[start] in self.first_characters:
                end = text[start:]
                place = bisect_right(self.contents, end)  # strings that extend `end` sort after it
                if place < len(self.contents) and self.contents[place].startswith(end):
                    return start
        return None


class ControlTokens:
    """Finds the control tokens of one tokenizer; thread-safe.

    Control tokens are the special tokens, tokens of the form `<|…|>`, and other added tokens that
    the template writes.
    """

    def __init__(self, tokenizer: "PreTrainedTokenizerBase") -> None:
        self.added: Mapping[int, Any] = dict(tokenizer.added_tokens_decoder)
        self._tokenizer = tokenizer
        self._controls: dict[str, Control] = {}
        self._patterns: dict[tuple[str, ...], re.Pattern[str]] = {}
        self._compiling = threading.Lock()

    def find(self, template: str) -> Control:
        """Return the control tokens of a template; the result is cached.

        With tens of thousands of control tokens the search takes seconds and 100 MB.
        """
        if template not in self._controls:
            with self._compiling:
                if template not in self._controls:  # another thread may have compiled it meanwhile
                    self._controls[template] = self._compile(template)
        return self._controls[template]

    def find_normalizer(self) -> Normalize | None:
        """Return the normalizer if it can turn other characters into a control token, else None."""
        if not self._tokenizer.is_fast or not any(own.normalized for own in self.added.values()):
            return None
        normalizer = self._tokenizer.backend_tokenizer.normalizer
        return None if normalizer is None else normalizer.normalize_str

    def _compile(self, template: str) -> Control:
        named = set(getattr(self._tokenizer, "chat_control_tokens", None) or ())
        everywhere, written, ids, late = [], [], set(), []
        for token_id, token in self.added.items():
            content = str(token.content)
            if token.special or _TURN_TOKEN.fullmatch(content) or content in named:
                everywhere.append(content)
            elif content.strip() and content in template:  # white space is ordinary text
                written.append(content)
            else:
                continue
            ids.add(token_id)
            if token.normalized:
                late.append(content)
        contents = tuple(sorted({content for content in everywhere + written if content}))
        normalize = self.find_normalizer()
        late = [normalize(content).strip(" \u2581") for content in late] if normalize else []
        return Control(
            contents,
            frozenset(ids),
            self._match_any(contents),
            self._match_any(everywhere),
            frozenset(content[0] for content in contents),
            max(map(len, contents), default=0),
            self._match_any(late),
        )

    def _match_any(self, words: Iterable[str]) -> re.Pattern[str]:
        """Return a pattern for words, cached because a model's templates share many of them."""
        key = tuple(sorted(set(words)))
        if key not in self._patterns:
            self._patterns[key] = match_any(key)
        return self._patterns[key]
