"""The command line: each command in the module of its name, put together in `app`."""
