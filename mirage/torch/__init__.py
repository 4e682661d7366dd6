"""PyTorch's models through the graph compiler: `mirage.torch.compile(model)`, and `torch.compile(model, backend="mirage")`.

What knows of both torch and the compiler is here; graphs become modules in `mirage/frontends/aten`, which knows no compiler.
"""
