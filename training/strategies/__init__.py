"""One module for each strategy; `training.strategy` describes what it defines."""
