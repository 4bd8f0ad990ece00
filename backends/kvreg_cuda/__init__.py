"""NVIDIA CUDA: devices, detection, variants, tuned configs and evidence."""
