"""The numerical check that validate, the tuner and the tests share."""
