"""What users run instead of ours: the measured programs and layers in PyTorch, ONNX Runtime and JAX."""
