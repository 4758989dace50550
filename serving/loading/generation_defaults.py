"""The defaults of generation in a model's directory."""

from transformers import GenerationConfig

from serving.engine.sampling import Sampling


def find_sampling(own: GenerationConfig | None) -> Sampling:
    """Return the sampling settings of a generation config; greedy if there is none."""
    if own is None:
        return Sampling(temperature=0.0)
    return Sampling(
        temperature=(own.temperature or 1.0) if own.do_sample else 0.0,
        top_p=1.0 if own.top_p is None else own.top_p,
        top_k=own.top_k or 0,
    )
