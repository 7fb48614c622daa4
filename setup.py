"""What pyproject.toml cannot say: the folder assets/ is installed inside the packages that read it,
and workbench/ under a name that no other project has.
"""

from setuptools import find_packages, setup

PAGE = "low_rank_workbench"

setup(
    packages=[
        *find_packages(include=["lrcore*"]),
        *(name.replace("workbench", PAGE, 1) for name in find_packages(include=["workbench*"])),
        "lrcore.assets",
        f"{PAGE}.static",
    ],
    package_dir={PAGE: "workbench", "lrcore.assets": "assets", f"{PAGE}.static": "assets"},
    package_data={
        "lrcore": ["py.typed", "recipes/*.yaml"],
        "lrcore.assets": ["demo-*/*", "evidence/*/*"],
        f"{PAGE}.static": ["*.js", "*.css", "*.html", "*.safetensors", "plotly/*"],
    },
)
