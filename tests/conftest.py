"""What every test of the tree shares."""

import os

# Triton decides when a kernel is defined whether the interpreter runs it, so this comes before any import of kernels.
os.environ.setdefault("TRITON_INTERPRET", "1")
