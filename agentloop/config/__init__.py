"""Every section of the configuration, how it is loaded, and how mistakes in it are reported."""
