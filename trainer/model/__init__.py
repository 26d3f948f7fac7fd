"""The policy as a network over packed rows: layers, adapters, recomputation. Attention, head and kernels are below."""
