"""Compiles what comes with the package as machine code; all else about the package is in pyproject.toml."""

from __future__ import annotations

import importlib.util
import platform
from pathlib import Path

from setuptools import Command, Distribution, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build import build

ROOT = Path(__file__).parent
spec = importlib.util.spec_from_file_location("shipped", ROOT / "kernels" / "cpu" / "compile" / "shipped.py")
shipped = importlib.util.module_from_spec(spec)
spec.loader.exec_module(shipped)


class build_objects(Command):
    """A step of the build (setuptools' `SubCommand`): the machine code of every level, and in a checkout of this machine's."""

    description = "compile what all kernels have in common"
    user_options = ()

    def initialize_options(self):
        self.build_lib = None
        self.editable_mode = False
        self.files = []

    def finalize_options(self):
        self.set_undefined_options("build", ("build_lib", "build_lib"))

    def run(self):
        if self.editable_mode:
            self.files = shipped.build(shipped.OBJECTS, filter(None, [shipped.level()]))
        elif self.distribution.has_ext_modules():
            folder = Path(self.build_lib, "mirage", *shipped.OBJECTS.relative_to(ROOT).parts)
            self.files = shipped.build(folder, shipped.LEVELS)

    def get_source_files(self):
        return [str(file.relative_to(ROOT)) for file in shipped.LIBRARIES.values()]

    def get_outputs(self):
        return [str(file) for file in self.files]

    def get_output_mapping(self):
        return {}


class package(Distribution):
    """For one platform, where there is machine code for it."""

    def has_ext_modules(self):
        return platform.machine() == "x86_64"


class platform_wheel(bdist_wheel):
    """The machine code is for every Python."""

    def get_tag(self):
        return "py3", "none", super().get_tag()[2]


build.sub_commands.append(("build_objects", None))
setup(distclass=package, cmdclass={"build_objects": build_objects, "bdist_wheel": platform_wheel})
