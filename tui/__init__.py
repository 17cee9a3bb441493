"""What runs on the engineer's machine: the app, the command line, and the fleet behind both."""
