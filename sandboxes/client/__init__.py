"""The client of remote sandbox daemons: the interface of a local sandbox, over HTTP."""
