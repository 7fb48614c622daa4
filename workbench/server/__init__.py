"""The HTTP server: access, limits and security."""
