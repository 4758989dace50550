"""Fine-tuning from rows to a verified Hugging Face model directory; runs without Serve.

spec         the settings of a fine-tune; spec_file reads them from a file
preflight    checks before any worker starts; room compares disk space and memory
data         rows → token tables on disk
batching     token tables → steps of micro batches; collate builds their tensors
engine       DeepSpeed's engine around the model, and one optimizer step
loop         one worker's training loop; uses evaluation, journal and progress
checkpoint   sharded checkpoints; resume loads one
retry        which worker failures are retried; full_disk pauses a run
watchdog     reports steps that hang; tracker_thread keeps trackers from blocking steps
consolidate  shards → a model directory
runs         the folder and the record of a run
launch       all steps in order; `python -m training` is its command line
"""
