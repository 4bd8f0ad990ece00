"""The pure core: devices, modes, layouts, variants, decisions, selection, evidence. It never imports torch."""
