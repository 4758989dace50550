"""From rows to a verified Hugging Face model directory; runs without Serve.

spec         what a fine-tune is; spec_file reads one
preflight    what is checked before any worker starts; room compares disk and memory
data         rows → token tables on disk
batching     token tables → steps of micro batches; collate makes their tensors
engine       DeepSpeed around the model, and one optimizer step
loop         one worker, from start to end; evaluation, journal and progress belong to it
checkpoint   sharded checkpoints; resume goes on from one
retry        which failures of workers are tried again; full_disk pauses a run
watchdog     reports steps that hang; tracker_thread keeps trackers from holding them up
consolidate  shards → a model directory
runs         what a run writes about itself
launch       all of it in order; `python -m training` is its command line
"""
