"""Every list, count and operator action, for the App and the command line."""
