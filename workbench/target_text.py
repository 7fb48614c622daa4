"""Words of targets: what will run the compressed model."""

import lrcore

COSTS = (
    "At this budget perplexity is predicted to be {:.3f}; {:.3f} where any form may be used "
    "({:+.1%})."
)


OTHER_FORMAT = (
    "The run was made for the target {}, whose format the command line writes: "
    "python -m lrcore export {} {}"
)


def of_run(run: lrcore.Run) -> str:
    """How a run is exported whose target takes no folder that the page writes; "" for others."""
    target = lrcore.TARGETS[run.recipe.target]
    if target.format == "transformers":
        return ""
    out = "model.gguf" if target.format == "gguf" else "exported"
    return OTHER_FORMAT.format(target.name, lrcore.without_paths(str(run.checkpoint)), out)


def of_target(name: str) -> str:
    """What a target is, and what it runs natively."""
    target = lrcore.TARGETS[name]
    even = ", the same in all layers" if target.even else ""
    return f"{name} ({target.about}) runs {target.runs}{even}."
