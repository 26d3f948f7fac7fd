"""The engine `sglang`: an adapter for an SGLang server."""
