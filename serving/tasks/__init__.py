"""The tasks whose models are served, one module each; `serving.served_task` finds them."""
