"""Load new weights into a running vLLM whose model does not keep them as they are in the checkpoint."""
