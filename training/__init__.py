"""From rows to a verified Hugging Face model directory; runs without Serve.

dataset      rows → token sequences with the learned part marked
batching     token sequences → micro batches of similar length under a token budget
loop         one ZeRO-3 worker
checkpoint   sharded checkpoints, written by every worker and reported to Ray Train
consolidate  shards → a model directory
runs         what a run writes about itself
launch       all of it in order; `python -m training` is its command line
"""
