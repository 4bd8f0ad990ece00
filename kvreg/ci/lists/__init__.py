"""Other projects' lists of switched-off tests: read into expectations, written from them. No torch, no test run."""
