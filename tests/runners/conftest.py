"""Scripts that ranks run are started by the tests, not collected as tests."""

collect_ignore = ["elastic.py", "ranks.py"]
