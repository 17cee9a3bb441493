"""One module a screen: each composes widgets and calls the fleet."""
