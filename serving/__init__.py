"""Everything from a published model directory to tokens; runs without training and without HTTP.

`model_store` keeps immutable models and the aliases that point to them, `engine` turns one model
into a stream of text by continuous batching, `generator` puts several engines behind one Serve
deployment and swaps them under load, `protocol` gives requests and answers their OpenAI shapes.
"""
