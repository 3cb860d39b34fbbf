"""Tests of deploy/: systemd's units, package, compose file, Helm chart, Prometheus' rules and
Grafana's dashboard."""
