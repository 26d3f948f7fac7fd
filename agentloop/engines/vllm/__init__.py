"""The engine `vllm`: an adapter for vLLM's AsyncLLM."""
