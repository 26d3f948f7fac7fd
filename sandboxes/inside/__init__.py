"""Code that runs inside a world. It imports only the standard library and these modules.

The modules are sent in as code objects (`sandboxes.worlds.boot`), so agentloop's files need not be visible inside.
"""
