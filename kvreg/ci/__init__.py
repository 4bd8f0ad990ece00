"""What kvreg knows of continuous integration: lists of switched-off tests, pipelines, job matrices."""
