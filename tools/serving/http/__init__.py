"""HTTP parts that the daemon and the gateway share: bodies, disconnects, ports and outcomes."""
