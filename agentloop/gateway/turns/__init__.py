"""One call of a model in the form that all dialects share: the request, its messages, the answer and its parts."""
