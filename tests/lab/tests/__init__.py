"""Tests of the lab: `python3 -m unittest discover -s tests/lab/tests -t tests`."""
