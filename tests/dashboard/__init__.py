"""Tests of user interfaces: the dashboard over HTTP and in a browser, and `hoplite top` in a
terminal.
"""
