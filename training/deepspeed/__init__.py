"""DeepSpeed's configuration, optimizer and CPU operation."""
