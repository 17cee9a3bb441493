"""The release of the agent. Nothing else lives here: the relay imports it on every connection."""

VERSION = "0.1.0"
