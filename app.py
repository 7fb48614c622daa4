"""Start the workbench: `python app.py`, then open the address it prints."""

from workbench import build_app
from workbench.start import main

demo = build_app()

if __name__ == "__main__":
    main(demo)
