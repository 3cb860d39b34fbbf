"""Tests of what people look at: the dashboard over HTTP and in a browser, and `hoplite top` in a terminal."""
