"""The data engine `ray`: rows checked and prepared by Ray Data pipelines over the cluster."""
