"""The check of imported models, with models that try to exploit it."""

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from transformers import (
    AutoModelForCausalLM,
    GPT2Config,
    MixtralConfig,
    PreTrainedConfig,
    Qwen2Config,
)

from serving.loading.config_sizes import check_config_sizes
from serving.loading.inspection import inspect_model
from serving.loading.loading import load_model, load_tokenizer
from serving.store.import_process import ImportCheckError, ModelRefusedError, check_import
from serving.store.model_store import ModelStore
from storage.layout import StorageLayout
from tests.file_watch import watch_file
from tests.model_files.hostile import HOSTILE
from tests.peft_adapters import write_adapter

SIZES: dict[str, Any] = {"vocab_size": 384, "num_hidden_layers": 2, "num_attention_heads": 4}
UNLOADABLE = "model 'source' cannot be loaded: the tokenizer"
UNCHECKED = "the check of a model ended with code 0: checking its files"
GATED = {**SIZES, "hidden_size": 32, "intermediate_size": 48, "num_key_value_heads": 2}


def change_config(model: Path, **changes: Any) -> Path:
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps({**config, **changes}))
    return model


@pytest.fixture
def source(tmp_path: Path, tiny_model: Path) -> Path:
    return Path(shutil.copytree(tiny_model, tmp_path / "source"))


@pytest.mark.parametrize(
    "config",
    [
        GPT2Config(vocab_size=384, n_embd=32, n_layer=2, n_head=4, n_positions=128),
        Qwen2Config(**GATED, tie_word_embeddings=True),
        MixtralConfig(**GATED, num_local_experts=4),
    ],
    ids=["gpt2", "qwen2-tied", "mixtral"],
)
def test_inspected_weight_bytes_equal_loaded_model(
    config: PreTrainedConfig, tmp_path: Path, tiny_model: Path
) -> None:
    path = Path(shutil.copytree(tiny_model, tmp_path / "model"))
    (path / "model.safetensors").unlink()
    AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).save_pretrained(path)
    model, _ = load_model(path)
    loaded = sum(tensor.nbytes for tensor in [*model.parameters(), *model.buffers()])
    assert inspect_model(path).weight_bytes == loaded


def test_config_larger_than_weights_is_refused(layout: StorageLayout, source: Path) -> None:
    """Previously, 242 kB of files caused 5.2 GB of random weights in the engine's process."""
    wide = {"hidden_size": 8192, "intermediate_size": 28672, "head_dim": 2048}
    change_config(source, **wide, num_hidden_layers=4)
    started = time.monotonic()
    with pytest.raises(
        ModelRefusedError,
        match="^model '.*' is refused because its weights do not fit its config: missing keys: "
        ".*mismatched keys: ",
    ):
        ModelStore(layout).import_directory(source, "m")
    print(f"refused in {time.monotonic() - started:.1f} s")
    assert ModelStore(layout).find("m") is None


def test_valid_model_is_imported(layout: StorageLayout, source: Path) -> None:
    assert ModelStore(layout).import_directory(source, "m").id == "m"


def test_model_construction_is_limited_in_memory(source: Path) -> None:
    # The class of this configuration builds a list with two entries for each of the 10^10.
    endless = [[["global", "local"], 10**10]]
    change_config(source, model_type="gpt_neo", num_layers=2, attention_types=endless)
    with pytest.raises(ModelRefusedError, match="^checking its model takes more memory than"):
        check_import(source)


@pytest.mark.usefixtures("preloaded_check")
def test_adapter_is_imported_with_or_without_a_tokenizer(
    layout: StorageLayout, tiny_model: Path, tmp_path: Path
) -> None:
    base = ModelStore(layout).add(tiny_model, "base")
    adapter = write_adapter(tiny_model, tmp_path / "adapter")
    bare = check_import(adapter, base=base.path)
    assert (bare.tokenizer_bytes, bare.cache_token_bytes) == (0, 0)
    assert bare.weight_bytes == (adapter / "adapter_model.safetensors").stat().st_size
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copy(tiny_model / name, adapter)
    (adapter / "tokenizer_config.json").write_text('{"trust_remote_code": true, "eos_token": "a"}')
    assert check_import(adapter, base=base.path).tokenizer_bytes > 0
    imported = ModelStore(layout).import_directory(adapter, "a", base_id="base")
    kept = json.loads((imported.path / "tokenizer_config.json").read_text())
    assert (imported.is_adapter, kept) == (True, {"eos_token": "a"})


@pytest.mark.usefixtures("preloaded_check")
def test_faults_of_an_imported_adapter_are_found_in_the_process(
    tiny_model: Path, tmp_path: Path
) -> None:
    adapter = write_adapter(tiny_model, tmp_path / "adapter")
    (adapter / "tokenizer.json").write_text("{}")
    with pytest.raises(ModelRefusedError, match="^model '.*' cannot be loaded: the tokenizer"):
        check_import(adapter, base=tiny_model)
    shutil.copy(tiny_model / "tokenizer.json", adapter)
    (adapter / "chat_template.jinja").write_text("{% if %}")
    with pytest.raises(ModelRefusedError, match="^the chat template"):
        check_import(adapter, base=tiny_model)
    weights = load_file(adapter / "adapter_model.safetensors")
    broken = {**weights, (name := next(iter(weights))): weights[name] / 0}
    save_file(broken, adapter / "adapter_model.safetensors")
    with pytest.raises(
        ModelRefusedError, match="^tensor 'base_model.* has a value that is not fin"
    ):
        check_import(adapter, base=tiny_model)
    save_file(weights, adapter / "adapter_model.safetensors")
    change = json.loads((adapter / "adapter_config.json").read_text()) | {"bias": "all"}
    (adapter / "adapter_config.json").write_text(json.dumps(change))
    with pytest.raises(ModelRefusedError, match=r"^adapter_config\.json: 'bias' is 'all'"):
        check_import(adapter, base=tiny_model)


def test_import_check_beyond_timeout_is_killed(source: Path) -> None:
    before = {child.pid for child in psutil.Process().children()}
    with pytest.raises(ModelRefusedError, match=r"^checking .* took longer than 0\.01 s; "):
        check_import(source, timeout_s=0.01)
    assert {child.pid for child in psutil.Process().children()} <= before


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"hidden_size": -32}, "hidden_size is -32; expected an integer from 1"),
        ({"num_hidden_layers": 10**9}, "num_hidden_layers is 1000000000; expected"),
        ({"text_config": {"vocab_size": 10**12}}, "text_config.vocab_size is 1000000000000"),
        ({"num_attention_heads": 0}, "num_attention_heads is 0"),
        ({"num_attention_heads": "4"}, "num_attention_heads is 4; expected an integer"),
        ({"head_dim": 8.5}, "head_dim is 8.5"),
        ({"n_layer": True}, "n_layer is True"),
        ({"layer_types": [0] * 100_001}, "layer_types has 100,001 items"),
        ({"a": [{"hidden_size": -1}]}, "a.hidden_size is -1"),
    ],
)
def test_negative_and_excessive_sizes_are_refused(config: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"^config.json: {message}"):
        check_config_sizes(config)


def test_per_layer_and_absent_sizes_are_accepted() -> None:
    check_config_sizes({"head_dim": None, "num_key_value_heads": [2, 4], "num_local_experts": 0})


def _nest(model: Path) -> None:
    (model / "config.json").write_text('{"a":' * 100_000 + "1" + "}" * 100_000)


def _fill(name: str, num_bytes: int) -> Callable[[Path], None]:
    def fill(model: Path) -> None:
        (model / name).write_bytes(b'{"a": "' + b"x" * num_bytes + b'"}')

    return fill


@pytest.mark.usefixtures("preloaded_check")
@pytest.mark.parametrize(
    ("corrupt", "message"),
    [
        (_nest, "config.json is not valid JSON"),
        (_fill("config.json", 17 << 20), r"config\.json has 17,825,8.. bytes; expected at most"),
        (
            _fill("lineage.json", 2 << 20),
            r"lineage\.json is not one of ours: it has more than 1,048,576 bytes",
        ),
    ],
)
def test_large_and_deeply_nested_json_is_refused(
    source: Path, corrupt: Callable[[Path], None], message: str
) -> None:
    corrupt(source)
    with pytest.raises(ModelRefusedError, match=f"^{message}"):
        check_import(source)


def _change_tokenizer(model: Path, /, **changes: Any) -> None:
    tokenizer = json.loads((model / "tokenizer.json").read_text())
    (model / "tokenizer.json").write_text(json.dumps({**tokenizer, **changes}))


def _break_tokenizer(model: Path) -> None:
    (model / "tokenizer.json").write_text('{"version": "1.0", "model": {"type": "none"}}')


def _multiply_letters(model: Path) -> None:
    """Make the tokenizer expand one letter to 10^12 letters."""
    replace = {"type": "Replace", "pattern": {"String": "l"}, "content": "l" * 1000}
    _change_tokenizer(model, normalizer={"type": "Sequence", "normalizers": [replace] * 4})


def _hang(model: Path) -> None:
    """Make the tokenizer's time double with each `a` of a message."""
    pattern = {"type": "Replace", "pattern": {"Regex": "(a|a)*bb"}, "content": ""}
    _change_tokenizer(model, normalizer=pattern)


def _add_long_token(model: Path) -> None:
    """Add a token that previously took 765 MB, because all its prefixes were kept."""
    tokenizer = json.loads((model / "tokenizer.json").read_text())
    first = tokenizer["added_tokens"][0]
    last = {**first, "id": 384, "content": "x" * 40_000}
    _change_tokenizer(model, added_tokens=[*tokenizer["added_tokens"], last])


def _fill_vocabulary(model: Path) -> None:
    """Add 18 MB of entries, which took 378 MB and blocked all other models for three seconds."""
    vocab = {f"word-{number}": number for number in range(400_000)}
    _change_tokenizer(model, model={"type": "WordLevel", "vocab": vocab, "unk_token": "word-0"})


@pytest.mark.usefixtures("preloaded_check")
@pytest.mark.parametrize(
    ("corrupt", "message"),
    [
        (_break_tokenizer, f"{UNLOADABLE} failed: "),
        (
            _multiply_letters,
            f"{UNLOADABLE}'s normalizer's content has 1,000 characters; expected at most 16",
        ),
        (_hang, rf"{UNLOADABLE} has the regular expression '\(a\|a\)\*bb'"),
        (
            _add_long_token,
            f"{UNLOADABLE} has an added token of 40,000 characters; expected at most 256",
        ),
        (
            _fill_vocabulary,
            "the tokenizer has 400,004 entries, and config.json a vocab_size of 384; expected",
        ),
    ],
)
def test_harmful_tokenizer_is_refused(
    source: Path, corrupt: Callable[[Path], None], message: str
) -> None:
    corrupt(source)
    with pytest.raises(ModelRefusedError, match=f"^{message}"):
        check_import(source)


def test_model_whose_tokenizer_settings_name_server_file_is_refused(
    layout: StorageLayout, source: Path, tmp_path: Path
) -> None:
    """transformers opens the `vocab` of some classes as a file; `decode` returned its lines."""
    secret = tmp_path / "secret"
    secret.write_text("the token of Ray")
    HOSTILE["vocab-BertTokenizer"](source, secret)
    with watch_file(secret) as watch:
        with pytest.raises(
            ModelRefusedError, match=r"^'.*' has no tokenizer: expected tokenizer\.json"
        ):
            ModelStore(layout).import_directory(source, "m")
        with pytest.raises(
            ModelRefusedError,
            match="^tokenizer_config.json: 'vocab' is .*, which transformers may open",
        ):
            ModelStore(layout).install(source, "m")
        assert not watch.was_opened()


@pytest.mark.usefixtures("preloaded_check")
def test_imported_model_keeps_only_known_settings(layout: StorageLayout, source: Path) -> None:
    settings = json.loads((source / "tokenizer_config.json").read_text())
    strange = {"tokenizer_class": "AutoModel", "sp_model_kwargs": {"model": "/etc/passwd"}}
    (source / "tokenizer_config.json").write_text(json.dumps({**settings, **strange}))
    change_config(source, _name_or_path="/etc/passwd", attn_implementation="a/kernel")
    model = ModelStore(layout).import_directory(source, "m")
    model.verify()
    del settings["tokenizer_class"]
    assert json.loads((model.path / "tokenizer_config.json").read_text()) == settings
    config = json.loads((model.path / "config.json").read_text())
    assert not {"_name_or_path", "attn_implementation"} & config.keys()
    tokenizer = load_tokenizer(model.path)
    assert tokenizer.eos_token == "<|im_end|>"


def test_older_tokenizer_format_is_converted_on_install(
    layout: StorageLayout, source: Path
) -> None:
    """OPT, for example, has only vocab.json and merges.txt."""
    made = json.loads((source / "tokenizer.json").read_text())
    (source / "tokenizer.json").unlink()
    (source / "vocab.json").write_text(json.dumps(made["model"]["vocab"]))
    merges = "\n".join(" ".join(merge) for merge in made["model"]["merges"])
    (source / "merges.txt").write_text(f"#version: 0.2\n{merges}\n")
    change_config(source, tokenizer_class="GPT2Tokenizer")
    settings = {"tokenizer_class": "GPT2Tokenizer", "eos_token": "<|im_end|>", "unknown": 1}
    (source / "tokenizer_config.json").write_text(json.dumps(settings))
    before = sorted(path.name for path in source.iterdir())
    model = ModelStore(layout).install(source, "m")
    ids = load_tokenizer(model.path)("The quick brown fox")["input_ids"]
    made_ids = Tokenizer.from_str(json.dumps(made)).encode("The quick brown fox").ids
    assert ids == made_ids
    assert sorted(path.name for path in source.iterdir()) == before, "the source folder was changed"
    with pytest.raises(
        ModelRefusedError, match=r"^'.*' has no tokenizer: expected tokenizer\.json"
    ):
        ModelStore(layout).import_directory(source, "n")


def test_tokenizer_memory_is_counted(source: Path) -> None:
    small = check_import(source).tokenizer_bytes
    tokenizer = json.loads((source / "tokenizer.json").read_text())
    vocab = tokenizer["model"]["vocab"]
    extra = {f"word-{number}": len(vocab) + number for number in range(100_000)}
    _change_tokenizer(source, model={**tokenizer["model"], "vocab": {**vocab, **extra}})
    change_config(source, vocab_size=len(vocab) + len(extra))
    # In a separate process, as in a check, because this process may reuse freed memory.
    program = (
        "import sys; from pathlib import Path; from serving.loading.inspection import try_tokenizer"
    )
    program += "; print(try_tokenizer(Path(sys.argv[1])))"
    measured = subprocess.run(
        [sys.executable, "-c", program, source], capture_output=True, text=True, check=True
    )
    assert int(measured.stdout.split()[-1]) > small + 5_000_000


def test_chat_template_is_rendered_in_check_process(
    source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server's own process must not parse tokenizer_config.json, which may be large."""
    monkeypatch.setattr("templating.trial.read_tokenizer_settings", None)
    (source / "chat_template.jinja").write_text("{% if %}")
    with pytest.raises(ModelRefusedError, match="^the chat template cannot be used"):
        check_import(source)


def test_template_that_could_not_be_rendered_does_not_refuse_model(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The check's process imports a `sitecustomize` that replaces the fork server's `fork`."""
    package = tmp_path / "first" / "sitecustomize.py"
    package.parent.mkdir()
    package.write_text(
        "from system.fork_server import ForkError, ForkServer\n"
        "def fork(self, connection): raise ForkError('no process')\n"
        "ForkServer.fork = fork\n"
    )
    (source / "chat_template.jinja").write_text("{{ messages[0].content }}")
    monkeypatch.syspath_prepend(package.parent)
    with pytest.raises(
        ImportCheckError,
        match="^the check of a model ended with code 0: the chat template was not tried: "
        "no process could be started to render chat templates; the log has the cause$",
    ):
        check_import(source)


@pytest.mark.parametrize(
    ("number", "expected", "message"),
    [
        ("EIO", ImportCheckError, f"{UNCHECKED} failed: Input/output error$"),
        ("EMFILE", ImportCheckError, f"{UNCHECKED} failed: Too many open files$"),
        ("ENOMEM", ModelRefusedError, "checking its files takes more memory than is allowed$"),
    ],
)
def test_operating_system_error_does_not_refuse_model(
    source: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    number: str,
    expected: type[Exception],
    message: str,
) -> None:
    """The check's process imports a `sitecustomize` that replaces the reading of weights."""
    package = tmp_path / "first" / "sitecustomize.py"
    package.parent.mkdir()
    package.write_text(
        "import errno, os\n"
        "import serving.store.validation as module\n"
        f"def fail(*_, **__): raise OSError(errno.{number}, os.strerror(errno.{number}))\n"
        "module.safe_open = fail\n"
    )
    monkeypatch.syspath_prepend(package.parent)
    with pytest.raises(expected, match=f"^{message}"):
        check_import(source)
