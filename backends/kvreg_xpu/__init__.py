"""Intel XPU: devices, detection, variants, tuned configs and evidence."""
