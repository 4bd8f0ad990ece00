"""The Python API on tensors: KVCache, plan, write, attend."""
