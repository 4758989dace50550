from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from training.data.ray_data import check, spans


@pytest.fixture
def without_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the tasks of the check in this process, over many small parts of files."""

    def run_over(items: list[dict[str, int]], work: Any) -> Iterator[Any]:
        for item in items:
            for result in work({name: np.array([value]) for name, value in item.items()}):
                if isinstance(result, dict):
                    yield {name: array[0] for name, array in result.items()}
                else:
                    yield from result.to_pylist()

    monkeypatch.setattr(check, "run_over", run_over)
    monkeypatch.setattr(spans, "SPAN_BYTES", 700)
