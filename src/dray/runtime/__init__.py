"""What runs in a worker: claiming, running, settling, staying alive, stopping."""
