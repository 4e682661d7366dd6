"""Models of PyTorch through `mirage.torch`, against what their users run instead."""
