"""Every section of the configuration, its loading, and errors that name the key and the fix."""
