"""kvreg maps (device, KV quantization mode, head size) to validated kernel variants, with their numbers."""
