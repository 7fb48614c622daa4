"""Files, locks, memory, threads, progress and errors: the services that every package uses."""
