"""A model cut into stages, and DeepSpeed's schedule of their passes."""
