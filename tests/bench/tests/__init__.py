"""Tests of the benchmarks: `python3 -m unittest discover -s tests/bench/tests -t tests`."""
