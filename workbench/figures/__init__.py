"""Figures as JSON for Plotly. The page applies its light or dark colors."""
