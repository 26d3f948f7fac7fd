"""HTTP parts of the daemon and the gateway: bodies, disconnects, ports and outcomes. They know no routes or state."""
