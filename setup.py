"""Packages of the wheel: assets/ is installed inside them, workbench/ as low_rank_workbench."""

from setuptools import find_packages, setup

PAGE = "low_rank_workbench"

setup(
    packages=[
        *find_packages(include=["lrcore*"]),
        *(name.replace("workbench", PAGE, 1) for name in find_packages(include=["workbench*"])),
        "lrcore.assets",
        f"{PAGE}.static",
    ],
    # Files of package_data only: by default a wheel built from the sdist has all of assets/ twice.
    include_package_data=False,
    package_dir={PAGE: "workbench", "lrcore.assets": "assets", f"{PAGE}.static": "assets"},
    package_data={
        "lrcore": ["py.typed", "evaluation/report.html", "runs/tables/*.yaml"],
        "lrcore.assets": ["demo-*/*", "evidence/*/*", "stories/*"],
        f"{PAGE}.static": ["*.js", "*.css", "*.safetensors", "plotly/*"],
    },
)
