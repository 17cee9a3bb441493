"""Hosts, connections, runs and what is known of them. Never imports textual: app and commands stand on it."""
