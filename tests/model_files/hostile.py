"""Models whose files refer to other files, and a program that loads them and reports opened files.

`python -m tests.model_files.hostile DIRECTORY...` prints one JSON object per model: its name, the
result of each step, and the files that were opened outside the directory.
"""

import json
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

WORD_PIECE_CLASSES = (
    *("BertTokenizer", "DistilBertTokenizer", "MPNetTokenizer", "FunnelTokenizer"),
    *("SplinterTokenizer", "LayoutLMv2Tokenizer", "ElectraTokenizer"),
)
Change = Callable[[Path, Path], None]
_OWN_PATHS = (
    *("/proc/", "/sys/", "/dev/", sys.prefix, sys.base_prefix),
    Path(__file__).parents[2],
    Path(tempfile.gettempdir()) / "tuneserve-config-",
)


def change_object(path: Path, **changes: Any) -> None:
    """Change keys of a JSON file; create the file if it does not exist."""
    content = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps({**content, **changes}))


def _name_vocabulary(tokenizer_class: str) -> Change:
    """Make a class of transformers read the secret as its vocabulary, one word per line."""

    def change(model: Path, secret: Path) -> None:
        (model / "tokenizer.json").unlink()
        (model / "vocab.txt").write_text("[UNK]\n")
        (model / "tokenizer_config.json").write_text(
            json.dumps(
                {
                    "tokenizer_class": tokenizer_class,
                    "vocab": str(secret),
                    "extra_special_tokens": ["[UNK]", "[CLS]", "[SEP]", "[PAD]", "[MASK]"],
                }
            )
        )

    return change


def _set_tokenizer(**changes: Any) -> Change:
    """Set keys of the tokenizer's settings; `SECRET` in a value becomes the path of the secret."""
    return _set("tokenizer_config.json", **changes)


def _set(name: str, **changes: Any) -> Change:
    def change(model: Path, secret: Path) -> None:
        text = json.dumps(changes).replace("SECRET", str(secret))
        relative = f"../{secret.name}"
        change_object(model / name, **json.loads(text.replace("RELATIVE", relative)))

    return change


def _link_distributed(model: Path, secret: Path) -> None:
    (model / "shard-00001-model-00001-of-00001.safetensors").symlink_to(f"../{secret.name}")


HOSTILE: dict[str, Change] = {
    **{f"vocab-{name}": _name_vocabulary(name) for name in WORD_PIECE_CLASSES},
    **{
        f"with-json-{name}": _set_tokenizer(tokenizer_class=name, vocab="SECRET", merges="SECRET")
        for name in (
            "BertTokenizer",
            "GPT2Tokenizer",
            "LlamaTokenizer",
            "AutoTokenizer",
            "AutoModel",
        )
    },
    "vocab_file": _set_tokenizer(vocab_file="SECRET", merges_file="SECRET"),
    "tokenizer_file": _set_tokenizer(tokenizer_file="SECRET", tokenizer_object="SECRET"),
    "other_files": _set_tokenizer(
        spm_file="SECRET", entity_vocab_file="SECRET", bpe_codes="SECRET", gguf_file="SECRET"
    ),
    "init_inputs": _set_tokenizer(tokenizer_class="BertTokenizer", init_inputs=["SECRET"]),
    "fast_files": _set_tokenizer(fast_tokenizer_files=["tokenizer.0.0.1.json/../RELATIVE"]),
    "sentencepiece": _set_tokenizer(
        tokenizer_class="T5Tokenizer", sp_model_kwargs={"model_file": "SECRET"}
    ),
    "places": _set_tokenizer(name_or_path="SECRET", chat_template_file="SECRET"),
    "special_tokens": _set("special_tokens_map.json", vocab_file="SECRET", vocab="SECRET"),
    "added_tokens": _set("added_tokens.json", SECRET=0),
    "config_places": _set("config.json", _name_or_path="SECRET", name_or_path="SECRET"),
    "config_files": _set("config.json", configuration_files=["config.4.0.0.json/../RELATIVE"]),
    "weights": _set("config.json", transformers_weights="RELATIVE"),
    "kernel": _set("config.json", attn_implementation="someone/kernel", _attn_implementation="a/b"),
    "attributes": _set(
        "config.json", attribute_map={"_attn_implementation_internal": "x"}, x="a/b"
    ),
    "quantization": _set(
        "config.json",
        quantization_config={"quant_method": "gptq", "bits": 4, "tokenizer": "SECRET"},
    ),
    "nested": _set("config.json", vision_config={"model_type": "llama", "vocab_file": "SECRET"}),
    "generation": _set(
        "generation_config.json", custom_generate="SECRET", assistant_model="SECRET", vocab="SECRET"
    ),
    "adapter": _set(
        "adapter_config.json",
        base_model_name_or_path="SECRET",
        peft_type="LORA",
        auto_map={"a": "b"},
    ),
    "processor": _set("processor_config.json", audio_tokenizer={"name_or_path": "SECRET"}),
    "preprocessor": _set("preprocessor_config.json", image_processor_type="SECRET"),
    "distributed": _link_distributed,
}
"""Changes to a model that try to make its loader open a secret file, by name."""


def main() -> None:
    """Check and load the models on the command line, as imports and generators do."""
    from serving.loading.inspection import inspect_model
    from serving.loading.loading import load_model, load_tokenizer
    from serving.store.validation import check_model_directory

    opened: list[str] = []
    is_watching = False

    def record_open(event: str, arguments: tuple[Any, ...]) -> None:
        if is_watching and event == "open" and isinstance(arguments[0], str | bytes | Path):
            opened.append(str(arguments[0]))

    sys.addaudithook(record_open)
    for name in sys.argv[1:]:
        opened.clear()
        model = Path(name)
        found: dict[str, Any] = {"name": model.name}
        steps: dict[str, Callable[[Path], Any]] = {
            "checked": check_model_directory,
            "inspected": inspect_model,
            "decoded": lambda model: _decode(load_tokenizer(model)),
            "loaded": load_model,
        }
        is_watching = True
        for step, run in steps.items():
            try:
                found[step] = str(run(model))
            except Exception as exc:  # noqa: BLE001 - failures are part of the report
                found[step] = f"refused: {type(exc).__name__}: {exc}"
        is_watching = False
        own = (str(model), *(str(own_path) for own_path in _OWN_PATHS))
        found["outside"] = [path for path in opened if not path.startswith(own)]
        print(json.dumps(found))


def _decode(tokenizer: Any) -> list[str]:
    return [str(tokenizer.decode([number])) for number in range(10)]


if __name__ == "__main__":
    main()
