"""Code that runs inside a world: standard library only, and nothing of agentloop except these modules.

The modules are sent in as code objects (`sandboxes.worlds.boot`), so no file of agentloop must be visible inside.
"""
