"""What pyproject.toml cannot say: the folder assets/ is installed inside the packages that read
it.
"""

from setuptools import find_packages, setup

setup(
    packages=[
        *find_packages(include=["lrcore*", "workbench*"]),
        "lrcore.assets",
        "workbench.static",
    ],
    package_dir={"lrcore.assets": "assets", "workbench.static": "assets"},
    package_data={
        "lrcore": ["py.typed", "recipes/*.yaml"],
        "lrcore.assets": ["demo-*/*", "evidence/*/*"],
        "workbench.static": ["*.js", "*.css", "*.html", "*.safetensors", "plotly/*"],
    },
)
