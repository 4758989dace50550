"""Safe reading of a Hugging Face model directory with untrusted content.

transformers opens files, imports classes and downloads from the hub if a model's JSON files specify
it. Here these files are read first, and only values that are known to be harmless and cheap to
process are passed on.
"""
