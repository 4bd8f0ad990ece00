"""What kernels must survive on a card: far offsets, graphs, several streams, odd inputs, wrong calls, hazards.

And what a tuning run must survive of them. `python -m kvreg.validation.robust --device cuda` runs all of it; so does
the stage `robust` of `ci/gpu`.
"""
