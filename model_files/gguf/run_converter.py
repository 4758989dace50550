"""Run llama.cpp's converter; give it the pre-tokenizer of a vocabulary that it does not list.

`python run_converter.py NAME CONVERTER ARGUMENTS...`, in a process of its own; an empty NAME leaves
the converter as it is. The converter finds the name of a byte-level BPE tokenizer's pre-tokenizer
by a hash of the token ids of one text, so that it knows published vocabularies only. This script
answers with NAME where the converter would give up. It imports nothing of the project.
"""

import importlib
import runpy
import sys
from pathlib import Path
from typing import Any


def main() -> None:
    """Run the converter of the command line as if Python had been started with it."""
    name, converter, *arguments = sys.argv[1:]
    folder = Path(converter).parent
    sys.path[0] = str(folder)
    sys.path.insert(1, str(folder / "gguf-py"))  # as the converter does, with its own version
    if name:
        _use_for_unknown(name)
    sys.argv = [converter, *arguments]
    runpy.run_path(converter, run_name="__main__")


def _use_for_unknown(name: str) -> None:
    try:
        model: Any = importlib.import_module("conversion.base").TextModel
        find = model.get_vocab_base_pre
    except (ModuleNotFoundError, AttributeError):  # another release: its own error is reported
        return

    def find_or_use(self: object, tokenizer: object) -> object:
        try:
            return find(self, tokenizer)
        except NotImplementedError:
            return name

    model.get_vocab_base_pre = find_or_use


if __name__ == "__main__":
    main()
