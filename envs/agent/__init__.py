"""Agent programs: environments that call the model themselves, through the gateway."""
