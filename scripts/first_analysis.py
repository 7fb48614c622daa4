"""Write the analysis that the page opens with: `python scripts/first_analysis.py`.

It is that of the form's defaults: a demo model and a built-in text. To be made anew when either, or
what the analysis means, has changed.
"""

import lrcore
from workbench.first_analysis import FILE


def main() -> None:
    recipe = lrcore.Recipe()
    model = lrcore.load(recipe.model, dtype=recipe.dtype)
    lrcore.analyse(model, lrcore.calibrate(model, recipe)).write(FILE)


if __name__ == "__main__":
    main()
