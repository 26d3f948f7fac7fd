"""Agent programs, which call the model themselves through the gateway, and how they are started."""
