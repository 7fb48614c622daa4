"""Start the workbench: `python app.py`, then open the address it prints."""

import os

import workbench
from workbench.app.start import keep_in_storage, main

keep_in_storage(os.environ)  # before the page imports what reads it

if __name__ == "__main__":
    main()
else:  # `gradio app.py` takes the page from here
    demo = workbench.build_app()
