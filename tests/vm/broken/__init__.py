"""Kernels with one planted mistake each, and their corrections."""
