"""Adapters (LoRA) of a loaded model: many of them in one forward pass."""
