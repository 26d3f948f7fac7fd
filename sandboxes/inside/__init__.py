"""What runs inside the walls: standard library only, imports nothing of agentloop but its own siblings.

The modules are sent in as code objects (`sandboxes.boot`), so no file of agentloop has to be visible there.
"""
