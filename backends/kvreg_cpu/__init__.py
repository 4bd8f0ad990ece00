"""A plain torch implementation as a real backend: device `cpu`."""
