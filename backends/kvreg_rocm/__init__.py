"""AMD ROCm: devices, detection, variants, tuned configs and evidence."""
