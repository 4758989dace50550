"""Fine-tuning from rows to a verified Hugging Face model directory; runs without Serve.

spec         the settings of a fine-tune; settings/ has their parts, checks and files
data         rows → token tables on disk
preflight    checks before any worker starts
batching     token tables → steps of micro batches; collate builds their tensors
engine       DeepSpeed's engine around the model, and one optimizer step
loop         one worker's training loop
cluster      the workers under Ray Train, and which failures are retried
checkpoint   sharded checkpoints: format, writing and restoring
export       shards → a verified model directory
run          the folder and the record of a run, and its state machine
monitoring   metrics, trackers, hanging steps, a full disk
launch       all steps in order; `python -m training` is its command line
"""
