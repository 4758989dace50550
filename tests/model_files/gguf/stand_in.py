"""A folder like llama.cpp's, with a converter that copies a Llama's tensors without change."""

from pathlib import Path

_BASE = """
class TextModel:
    def get_vocab_base_pre(self, tokenizer):
        raise NotImplementedError("BPE pre-tokenizer was not recognized")
"""

_CONVERTER = """
import sys
from pathlib import Path

from conversion.base import TextModel

if "--print-supported-models" in sys.argv:
    print("TEXT models:\\n  - LlamaForCausalLM\\n  - Qwen2ForCausalLM", file=sys.stderr)
    sys.exit(0)
import gguf
from safetensors.numpy import load_file

directory, target = Path(sys.argv[1]), sys.argv[sys.argv.index("--outfile") + 1]
assert not list(directory.glob("*.py"))
names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, 2)
tensors = {
    names.get_name(name, (".weight", ".bias")): tensor
    for path in directory.glob("*.safetensors")
    for name, tensor in load_file(path).items()
}
EDIT
writer = gguf.GGUFWriter(target, "llama")
writer.add_block_count(2)
writer.add_string("tokenizer.ggml.pre", TextModel().get_vocab_base_pre(None))
writer.add_string("test.outtype", sys.argv[sys.argv.index("--outtype") + 1])
for name, tensor in tensors.items():
    writer.add_tensor(name, tensor)
writer.write_header_to_file()
writer.write_kv_data_to_file()
writer.write_tensors_to_file()
writer.close()
"""


def build_stand_in(folder: Path, edit: str = "", *, with_quantiser: bool = True) -> Path:
    """Write converter and quantiser; `edit` is code that changes `tensors`; return `folder`."""
    (folder / "conversion").mkdir(parents=True)
    (folder / "conversion" / "base.py").write_text(_BASE)
    (folder / "convert_hf_to_gguf.py").write_text(_CONVERTER.replace("EDIT", edit))
    if with_quantiser:
        quantiser = folder / "build" / "bin" / "llama-quantize"
        quantiser.parent.mkdir(parents=True)
        quantiser.write_text('#!/bin/sh\ncp "$1" "$2"\necho "$3" > "$2.type"\n')
        quantiser.chmod(0o755)
    return folder


def install_sentencepiece(folder: Path) -> str:
    """Write an empty package, which real converters import and this one does not."""
    folder.mkdir()
    (folder / "sentencepiece.py").touch()
    return str(folder)
