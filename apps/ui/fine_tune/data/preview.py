"""The preview of data: the first rows as the tokens of the chosen model, or with their labels."""

from collections.abc import Mapping
from html import escape

from apps.client.resources import Preview, Row, Token
from apps.ui import markup

VERDICTS = {None: "", True: ", preferred", False: ", not preferred"}
"""What follows the number of a row: whether it is the better answer of a pair."""
MAX_SHOWN_TOKENS = 160
MAX_SHOWN_KEYS = 20
FORMAT_NAMES = {
    "chat": "Chats",
    "sharegpt": "Conversations (ShareGPT)",
    "prompt_completion": "Questions with answers",
    "alpaca": "Instructions with answers (Alpaca)",
    "text": "Plain texts",
    "preference": "Pairs of answers",
    "openai_preference": "Pairs of answers (OpenAI)",
    "sharegpt_preference": "Conversations with pairs of answers",
    "unpaired": "Answers with verdicts",
}
"""The shapes of rows in words."""


def render_preview(preview: Preview) -> str:
    """Render the counts of a file and its first rows as tokens, with the learned ones marked.

    A large file is counted only when the job is created. Rows for a classifier have labels.
    """
    if any(row.texts for row in preview.rows):
        return _render_labelled(preview)
    figures = [
        ("Format", FORMAT_NAMES.get(preview.format, preview.format)),
        ("Rows", _show_count(preview.num_rows)),
        ("Tokens", _show_count(preview.num_tokens)),
        ("Learned", _show_share(preview.num_learned_tokens, preview.num_tokens)),
        ("Truncated", _show_count(preview.num_truncated_rows)),
        ("Longest allowed", f"{preview.max_length:,}"),
    ]
    rows = "".join(_render_row(row) for row in preview.rows)
    explanation = ""
    if any(row.is_part for row in preview.rows):
        explanation = (
            " The model's chat template rewrites earlier turns, so each answer of a chat is "
            "learned after the prompt that the served model gets for it."
        )
    return (
        f"{markup.render_figures(figures)}{_render_ignored(preview.ignored_keys)}"
        '<p class="ts-legend">The first rows as the model sees them. '
        '<mark class="ts-learned">Marked</mark> tokens are learned; the rest is context.'
        f"{explanation}</p>"
        f'<div class="ts-rows">{rows}</div>'
    )


def name_row(number: int | None, line: int) -> str:
    """Name a row by its number, and by its line where that differs, as in 'Row 1 (line 2)'."""
    if number is None:  # of an API that does not count rows
        return f"Line {line}"
    return f"Row {number:,}" if line in (number, 0) else f"Row {number:,} (line {line:,})"


def _render_labelled(preview: Preview) -> str:
    figures = [("Rows", _show_count(preview.num_rows)), ("Columns", preview.format)]
    if preview.label_counts:
        figures.append(("Labels", f"{len(preview.label_counts):,}"))
    rows = "".join(
        f'<div class="ts-row"><span class="ts-line">{name_row(row.number, row.line)}</span>'
        f'<div class="ts-tokens" translate="no">{escape(" / ".join(row.texts))} '
        f'<mark class="ts-learned">{escape(", ".join(row.labels))}</mark></div></div>'
        for row in preview.rows
    )
    return (
        f"{markup.render_figures(figures, ['Columns'])}{_render_ignored(preview.ignored_keys)}"
        '<p class="ts-legend">The first rows, with their labels '
        '<mark class="ts-learned">marked</mark>.</p>'
        f'<div class="ts-rows">{rows}</div>'
    )


def _render_ignored(counts: Mapping[str, int]) -> str:
    """Render a notice that names the unused keys of rows; empty if there are none."""
    if not counts:
        return ""
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    names = ", ".join(f"{name} ({count:,})" for name, count in ordered[:MAX_SHOWN_KEYS])
    more = len(ordered) - MAX_SHOWN_KEYS
    rest = f" and {more} more" if more > 0 else ""
    return markup.render_notice(
        f"Ignored keys, with the number of rows that have them: {names}{rest}."
    )


def _show_count(count: int | None) -> str:
    return markup.UNKNOWN if count is None else f"{count:,}"


def _show_share(part: int | None, whole: int | None) -> str:
    return markup.UNKNOWN if part is None or whole is None else f"{part / max(1, whole):.0%}"


def _render_row(row: Row) -> str:
    name = f"{name_row(row.number, row.line)}{VERDICTS[row.is_preferred]}"
    tokens = "".join(_render_token(token) for token in row.tokens[:MAX_SHOWN_TOKENS])
    hidden = len(row.tokens) - MAX_SHOWN_TOKENS
    more = f'<span class="ts-muted" translate="yes"> … {hidden:,} more tokens</span>'
    rest = more if hidden > 0 else ""
    return (
        f'<div class="ts-row"><span class="ts-line">{name}</span>'
        f'<div class="ts-tokens" translate="no">{tokens}{rest}</div></div>'
    )


def _render_token(token: Token) -> str:
    """Render one token; a line end is shown as a symbol and kept, to preserve the row's layout."""
    tag, kind = ("mark", "ts-learned") if token.learned else ("span", "ts-context")
    if not token.learned and token.text.startswith("<|"):
        kind += " ts-special"
    text = escape(token.text).replace("\n", "<i>↵</i>\n")
    return f'<{tag} class="ts-token {kind}">{text}</{tag}>'
