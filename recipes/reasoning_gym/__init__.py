"""Questions of reasoning-gym, judged by its verifiers."""
