"""Files bundled with the product, so that it works out of the box."""

from pathlib import Path

import yaml

DEMONSTRATION_MODEL = "tuneserve-demo"
HANDBOOK_FILE_ID = "file-handbook"


def find_bundled(name: str) -> Path:
    """Return the path of a bundled file or folder, in an installed wheel or in a checkout.

    Raises `FileNotFoundError` if the installation lacks it.
    """
    here = Path(__file__).parent
    places = (here / "embedded" / name, here.parent / "examples" / name, here.parent / name)
    for place in places:
        if place.exists():
            return place
    raise FileNotFoundError(f"the installation lacks {name!r}; install it again")


def find_demonstration_model() -> Path:
    """Return the folder of the small base model."""
    return find_bundled(DEMONSTRATION_MODEL)


def find_handbook() -> Path:
    """Return the path of the training rows, the handbook of a fictional company."""
    return find_bundled("handbook") / "train.jsonl"


def read_demonstration_settings(task: str) -> dict[str, object]:
    """Return settings of a task that suit the demonstration model: those of its example."""
    return _read_settings("preference.yaml" if task == "preference" else "handbook.yaml")


def read_adapter_settings() -> dict[str, object]:
    """Return training settings of an adapter of the demonstration model, as in `adapter.yaml`."""
    return _read_settings("adapter.yaml")


def _read_settings(name: str) -> dict[str, object]:
    settings = dict(yaml.safe_load(find_bundled(name).read_text()))
    own = ("base_model", "train_file", "validation_file", "task", "task_settings")
    return {key: value for key, value in settings.items() if key not in own}
