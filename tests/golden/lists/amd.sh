#!/bin/bash
# Runs the kernel tests of an AMD machine.
if [[ $commands == *" kernels "* ]]; then
  pytest -v -s kernels \
    --ignore=kernels/test_attention_selector.py \
    --ignore=kernels/test_block_fp8.py
#   --ignore=entrypoints/openai/test_models.py <= Fails on MI250 but passes on MI300 as of 2025-03-13
fi
