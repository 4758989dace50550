"""One module for each task; `training.task` describes what it defines."""
