"""Objects, runs and jobs of the server; no Gradio."""
