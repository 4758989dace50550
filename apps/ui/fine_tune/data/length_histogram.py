"""How long the rows are in tokens, as bars with the limit marked."""

from html import escape

from apps.client.row_resources import TokenLengths

HEIGHT = 120
_BAR, _GAP = 10, 2


def render_histogram(lengths: TokenLengths, max_length: int) -> str:
    """Render the numbers of samples by their length; each bar has its figures as its title."""
    counts = [*lengths.counts, *([lengths.num_longer] if lengths.num_longer else [])]
    if not counts:
        return ""
    top, width = max(counts), lengths.bin_width
    bars = "".join(
        _render_bar(place, count, top, _name_bin(place, lengths))
        for place, count in enumerate(counts)
    )
    span = len(counts) * _BAR
    end = len(lengths.counts) * width
    limit = ""
    if max_length < end:
        x = span * max_length / (width * len(counts))
        limit = f'<line class="ts-limit" x1="{x:.2f}" x2="{x:.2f}" y1="0" y2="{HEIGHT}"/>'
    label = describe_lengths(lengths, max_length)
    ticks = "".join(f"<span>{tick:,}</span>" for tick in _choose_ticks(end))
    # The marks are below the bars that they belong to: the last bar is of all longer rows.
    marks = f'<div class="ts-ticks" style="flex-grow: {len(lengths.counts)}">{ticks}</div>'
    longer = '<span class="ts-longer">longer</span>' if lengths.num_longer else ""
    return (
        f'<figure class="ts-histogram"><figcaption>{escape(label)}</figcaption>'
        f'<svg viewBox="0 0 {span} {HEIGHT}" preserveAspectRatio="none" role="img" '
        f'aria-label="{escape(label)}">{bars}{limit}</svg>'
        f'<div class="ts-steps" aria-hidden="true">{marks}{longer}</div></figure>'
    )


def describe_lengths(lengths: TokenLengths, max_length: int) -> str:
    """Describe the lengths in a sentence, with the limit."""
    over = lengths.num_over_limit
    kept = f"all are within the limit of {max_length:,}"
    if over:
        verb = "is" if over == 1 else "are"
        kept = f"{over:,} {verb} longer than the limit of {max_length:,} (the red line)"
        if lengths.max > max_length >= len(lengths.counts) * lengths.bin_width:
            kept = f"{over:,} {verb} longer than the limit of {max_length:,}"
    return (
        f"Tokens of each row: {lengths.min:,} to {lengths.max:,}, half of the rows have at most "
        f"{lengths.median:,}; {kept}."
    )


def _render_bar(place: int, count: int, top: int, name: str) -> str:
    height = max(1.0, HEIGHT * count / top) if count else 0.0
    x = place * _BAR + _GAP / 2
    return (
        f'<rect x="{x:g}" y="{HEIGHT - height:.1f}" width="{_BAR - _GAP}" height="{height:.1f}">'
        f"<title>{escape(f'{name}: {count:,}')}</title></rect>"
    )


def _name_bin(place: int, lengths: TokenLengths) -> str:
    first = place * lengths.bin_width
    if place == len(lengths.counts):
        return f"{first:,} tokens or more"
    last = first + lengths.bin_width - 1
    return f"{first:,} to {last:,} tokens" if last > first else f"{first:,} tokens"


def _choose_ticks(end: int) -> list[int]:
    """Return the marks of the axis: its ends and its middle."""
    return [0, end // 2, end] if end > 1 else [0, end]
