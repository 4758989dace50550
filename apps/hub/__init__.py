"""Models of the Hugging Face hub, installed and pushed where the operator permits."""
