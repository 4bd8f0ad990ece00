"""Times of kvreg's kernels beside those of others, at the shapes that models run.

For `kvreg bench` and the stage `bench` of ci/gpu.

`shapes` and `subjects` say what is measured, `measuring` does it inside a worker, `driver` runs the workers and
`results` compares. `host` is the host's part of a call, `pays` a sweep, and the package `step` a whole decode step.
"""
