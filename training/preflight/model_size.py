"""The number of parameters of a spec's model, and how many of them are learned."""

from training.preflight.adapter_check import count_learned_parameters
from training.preflight.preflight import count_parameters
from training.preflight.requirements import ModelSize
from training.spec import TrainingSpec


def find_model_size(spec: TrainingSpec) -> ModelSize | None:
    """Return the size of the base model, and of what is learned; None if its files are not here.

    Raises `SettingError` for files that cannot be read, or an adapter that does not fit.
    """
    num_parameters = count_parameters(spec.base_model)
    if num_parameters is None:
        return None
    learned = count_learned_parameters(spec)
    return ModelSize(num_parameters, num_parameters if learned is None else learned)
