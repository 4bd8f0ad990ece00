"""The autotuning service: killable workers and timing, which validation uses too."""
