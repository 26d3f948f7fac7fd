"""Client of remote sandbox daemons: the same interface as a local sandbox, over HTTP."""
