"""Work on more than one machine: units of work are sent to the workers of a Ray cluster."""
