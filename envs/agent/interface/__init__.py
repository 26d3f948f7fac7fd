"""An agent's view of its episode: the endpoint that it calls, its result, and the process that runs it."""
