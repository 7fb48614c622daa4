"""The application: the page, its endpoints and its start."""
