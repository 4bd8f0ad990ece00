"""Triton kernels that the Triton platforms share, and nothing about any one vendor."""
