"""The names of an adapter's tensors: in a model in training, and in PEFT's files."""

ADAPTER_NAME = "default"
"""What PEFT calls the only adapter of a model."""

_PREFIX = "base_model.model."
_VECTOR = "lora_magnitude_vector"


def name_in_file(name: str) -> str:
    """Return the name in a file of PEFT of a parameter of a model with an adapter."""
    name = name.replace(f".modules_to_save.{ADAPTER_NAME}.", ".")
    name = name.replace(f".{_VECTOR}.{ADAPTER_NAME}.weight", f".{_VECTOR}")
    return _PREFIX + name.replace(f".{ADAPTER_NAME}.", ".")
