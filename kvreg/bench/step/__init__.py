"""The time of a whole decode step of a model, with each kind of cache in it. For `kvreg bench --step` and ci/gpu.

`models` and `shapes` say what a step is, `network` and `caches` are the step, `measuring` times it inside a worker,
`running` gives it to one and `results` compares.
"""
