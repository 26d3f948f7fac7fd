"""The learner on megatron-core: tensor, pipeline, context and expert parallelism, a distributed optimizer.

Nothing of it needs TransformerEngine or compiled extensions. What is agentloop's own: attention over packed rows, the
LM head on trained tokens only with the vocabulary divided over ranks, and the map between Hugging Face's weights and
Megatron's. Layers, schedules, gradient buffers and optimizer are megatron-core's.
"""

import warnings

# That Apex is missing is said at every import, and that there are newer names for what it does at every step.
warnings.filterwarnings("ignore", category=UserWarning, module=r"megatron\.core")
warnings.filterwarnings("ignore", category=FutureWarning, message="`torch.distributed")
