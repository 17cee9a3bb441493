"""Every action as a command. One module a family of commands; each imports what it needs when it runs."""
