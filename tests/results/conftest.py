"""Small budgets are of searches, not of compiling the micro-kernels; and of kernels, not of seconds."""

from tests.api.conftest import few_kernels as few_kernels
from tests.api.conftest import micro_kernels as micro_kernels
from tests.api.conftest import own_cache as own_cache
