import gzip
import json
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

ROOT = Path(__file__).parents[3]

MEASURE = """
import re, sys
from pathlib import Path
from training.data.prepare import prepare_data
from training.spec import TrainingSpec

def read_anonymous_kib():
    return int(re.search(r"RssAnon:\\s+(\\d+)", Path("/proc/self/status").read_text()).group(1))

model, cache, *files = sys.argv[1:]
for file in files:
    peaks = []
    watch = lambda done, total: peaks.append(read_anonymous_kib())
    prepare_data(TrainingSpec(base_model=model, train_file=file), Path(cache), watch)
    print(max(peaks))
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs /proc of Linux")
def test_memory_does_not_grow_with_file_size(tiny_model: Path, tmp_path: Path) -> None:
    """60 MB in any format need at most 16 MiB more anonymous memory than 15 MB, for buffers."""
    record = {
        "prompt": "How many loaves?",
        "completion": "Twelve.",
        "notes": "not for the model " * 1_680,
    }
    rows = [json.dumps(record)] * 2_000
    texts = {
        "small": "\n".join(rows[:512]),
        "lines": "\n".join(rows),
        "array": "[" + ",\n".join(rows) + "]",
    }
    files = [tmp_path / name for name in texts]
    for file, text in zip(files, texts.values(), strict=True):
        file.write_text(text)
    assert files[1].stat().st_size > 60_000_000
    packed, columns = tmp_path / "packed", tmp_path / "columns"
    packed.write_bytes(gzip.compress(texts["lines"].encode(), 1))
    pq.write_table(pa.Table.from_pylist([record] * 2_000), columns, use_dictionary=False)
    files += [packed, columns]
    command = [sys.executable, "-c", MEASURE, *map(str, [tiny_model, tmp_path / "cache", *files])]
    output = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    small_kib, *larger_kib = map(int, output.split())
    assert len(larger_kib) == 4
    for kib in larger_kib:
        assert kib - small_kib < 16 * 1024
