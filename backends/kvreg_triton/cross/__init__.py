"""Compiling the product's kernels for cards that are not there, and reading what they would take of one."""
