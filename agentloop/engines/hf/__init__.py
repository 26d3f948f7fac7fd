"""The engine `hf`: transformers in this process, with continuous batching."""
