"""Serving of published model directories, independent of training and of HTTP.

`store` has immutable models and the aliases that point to them, `engine` streams text from one
model with continuous batching, `generator` puts several engines behind one Serve deployment and
swaps them under load, `openai` defines the OpenAI-compatible request and response formats, and
`wire` what the API and a generator send each other.
"""
