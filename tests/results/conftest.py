"""Small budgets are of searches, not of compiling the micro-kernels."""

from tests.api.conftest import micro_kernels as micro_kernels
