"""Inputs and batches for checking kernels: seeds, hard rows, ragged lengths, page tables."""
