"""The report on a machine: what its kernels compute, how fast, and how that compares with the timing model."""
