"""One file a command; in each the command has the file's name."""
