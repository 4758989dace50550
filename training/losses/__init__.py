"""The tensors of micro batches, and the losses on them."""
