"""Parts of screens: each draws what the store holds and says in messages what the user wants."""
