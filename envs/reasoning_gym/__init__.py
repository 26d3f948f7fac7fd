"""Questions of reasoning-gym, judged by its own verifiers, in an interpreter that has the package."""
