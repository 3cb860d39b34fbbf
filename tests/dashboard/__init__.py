"""Tests of the dashboard over HTTP and in a browser, and of `hoplite top` in a terminal."""
