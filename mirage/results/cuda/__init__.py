"""Results for CUDA devices: versions of a program that a model ranks until a device has measured them."""
