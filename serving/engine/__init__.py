"""The engine: one loaded model with continuous batching, in a process of its own."""
