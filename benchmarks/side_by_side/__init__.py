"""The same pretrained model, data, reward and hyper-parameters in agentloop and in other trainers, on one machine."""
