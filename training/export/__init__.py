"""From a checkpoint to a verified Hugging Face model directory."""
