"""The Megatron backend: tensor, pipeline, context and expert parallelism with a distributed optimizer.

It builds on trainer/learner and trainer/model; trainer/run/learners.py makes its learners. It does not need
TransformerEngine or compiled extensions. megatron-core has the layers, schedules, gradient buffers and the optimizer.
This folder has attention over packed rows, the LM head on trained tokens with the vocabulary divided over ranks, and
the map between the weights of Hugging Face and Megatron.
"""

import warnings

# megatron-core warns at every import that Apex is missing, and at every step that it calls functions by old names.
warnings.filterwarnings("ignore", category=UserWarning, module=r"megatron\.core")
warnings.filterwarnings("ignore", category=FutureWarning, message="`torch.distributed")
