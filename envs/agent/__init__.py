"""Agent programs, which call the model through the gateway, and the harnesses that start them."""
