import pytest

from apps.hub.hub_files import HubFile, RefusedFilesError, choose_files


def choose(*names: str) -> list[str]:
    return [file.name for file in choose_files("o/n", [HubFile(name, 1) for name in names])]


def test_files_of_a_model_are_chosen() -> None:
    of_model = [
        *("config.json", "generation_config.json", "tokenizer.json", "tokenizer.model"),
        *("merges.txt", "chat_template.jinja", "README.md", "model.safetensors.index.json"),
        *("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"),
        "1_Pooling/config.json",
    ]
    others = [
        *("pytorch_model.bin", "modeling_x.py", "onnx/model.onnx", "original/x.safetensors"),
        *("consolidated.safetensors", ".gitattributes", "model.gguf", "../config.json"),
        *("onnx/config.json", "a b.json", ".hidden.json", "runs/events.json", "image.png"),
    ]
    assert choose(*of_model, *others) == of_model


def test_weights_with_other_names_are_chosen_if_there_are_no_others() -> None:
    assert choose("config.json", "w.safetensors") == ["config.json", "w.safetensors"]
    adapter = ["adapter_config.json", "adapter_model.safetensors"]
    assert choose(*adapter, "optimizer.safetensors") == adapter


def test_pickled_weights_are_refused() -> None:
    expected = (
        "^'o/n' has no weights in safetensors, only pickled ones: 'a.pt', 'pytorch_model.bin'; "
    )
    with pytest.raises(RefusedFilesError, match=expected):
        choose("config.json", "pytorch_model.bin", "a.pt", "notes.txt")


def test_repositories_without_a_model_are_refused() -> None:
    with pytest.raises(RefusedFilesError, match="has no weights in safetensors; expected"):
        choose("config.json")
    with pytest.raises(RefusedFilesError, match=r"it has no config\.json and no adapter_config"):
        choose("model.safetensors", "onnx/config.json")
    with pytest.raises(RefusedFilesError, match="has more than 2,000 files"):
        choose("config.json", "model.safetensors", *(f"{n}.json" for n in range(2000)))
