"""Components, events and the form of the page."""
