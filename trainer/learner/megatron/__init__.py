"""The Megatron backend: tensor, pipeline, context and expert parallelism with a distributed optimizer.

It builds on trainer/learner and trainer/model; trainer/run/learners.py creates its learners. It needs neither
TransformerEngine nor compiled extensions. megatron-core provides layers, schedules, gradient buffers and the optimizer.
This folder adds attention over packed rows, the LM head on trained tokens with the vocabulary split over ranks, and the
mapping between weights of Hugging Face and Megatron.
"""

import warnings

# megatron-core warns on every import that Apex is missing, and in every step that it uses deprecated functions.
warnings.filterwarnings("ignore", category=UserWarning, module=r"megatron\.core")
warnings.filterwarnings("ignore", category=FutureWarning, message="`torch.distributed")
