"""Fine-tuning jobs: their records on disk and the queue that starts them."""
