"""Tools that a model may call: their definition, schema and sessions, and the built-in ones.

They run on `agentloop.sandboxes`; `agentloop.envs` offers them to the model.
"""
