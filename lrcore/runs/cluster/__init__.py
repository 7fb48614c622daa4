"""Work on several machines: units of work are sent to the workers of a Ray cluster."""
