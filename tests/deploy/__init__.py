"""Tests of what deploy/ has: units, package, compose file, chart, rules and dashboard."""
