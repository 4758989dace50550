"""A Hugging Face model directory, read such that its content can name no file, code or costly work.

transformers opens files, imports classes and fetches from the hub because a model's JSON files tell
it to. Here these files are read first, and only values that are known to be harmless are passed on.
"""
