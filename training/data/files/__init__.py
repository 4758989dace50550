"""How each kind of file becomes records; `training.data.readers` chooses among them."""
