"""What tests of jobs share: the command line, and limits of tuning."""

from __future__ import annotations

from tests.api.conftest import command, few_kernels, micro_kernels

__all__ = ["command", "few_kernels", "micro_kernels"]
