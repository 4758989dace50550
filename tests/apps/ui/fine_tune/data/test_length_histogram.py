"""The histogram of lengths: one bar for each bin, and the limit where it is."""

import re

from apps.client.row_resources import TokenLengths
from apps.ui.fine_tune.data.length_histogram import HEIGHT, describe_lengths, render_histogram

LENGTHS = TokenLengths(
    num_samples=110,
    min=3,
    median=12,
    mean=14.0,
    percentile_95=31,
    max=99,
    num_over_limit=7,
    bin_width=10,
    counts=(25, 50, 0, 25),
    num_longer=10,
)


def find_heights(html: str) -> list[float]:
    return [float(height) for height in re.findall(r'<rect [^>]*height="([\d.]+)"', html)]


def test_bars_are_as_high_as_their_counts() -> None:
    html = render_histogram(LENGTHS, 25)
    assert find_heights(html) == [HEIGHT / 2, HEIGHT, 0, HEIGHT / 2, HEIGHT / 5]
    assert "<title>10 to 19 tokens: 50</title>" in html
    assert "<title>40 tokens or more: 10</title>" in html


def test_marks_of_the_axis_span_the_bars_that_they_belong_to() -> None:
    html = render_histogram(LENGTHS, 25)
    marks = '<div class="ts-ticks" style="flex-grow: 4">'
    assert f"{marks}<span>0</span><span>20</span><span>40</span></div>" in html
    assert '</div><span class="ts-longer">longer</span></div>' in html


def test_limit_is_marked_at_its_length() -> None:
    html = render_histogram(LENGTHS, 25)
    assert 'class="ts-limit" x1="25.00"' in html  # five bars of 10 units, each 10 tokens
    assert "7 are longer than the limit of 25 (the red line)" in html


def test_limit_beyond_the_bars_is_only_named() -> None:
    html = render_histogram(LENGTHS.model_copy(update={"num_over_limit": 0}), 512)
    assert "ts-limit" not in html
    assert "all are within the limit of 512" in html
    far = describe_lengths(LENGTHS.model_copy(update={"num_over_limit": 1}), 60)
    assert "1 is longer than the limit of 60." in far


def test_few_rows_are_still_visible() -> None:
    html = render_histogram(TokenLengths(counts=(100_000, 1), num_samples=100_001, max=1), 5)
    assert find_heights(html) == [HEIGHT, 1]
    assert render_histogram(TokenLengths(), 5) == ""
