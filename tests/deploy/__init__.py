"""Tests of the files in deploy/: units, package, compose file, chart, rules and dashboard."""
