"""PyTorch's ATen graphs (torch.fx) as modules of the graph IR.

    types       element types, and dims from symbolic sizes
    table       what a lowering is, and the table of all of them
    shapes      what lowerings share: dims written in two ways, windows, counts that only the run tells
    lower_*     the lowerings, one line per operator where one line says it
    fallback    every other operator: a call of ATen's own
    importer    a graph, node by node
    decompose   which operators stay whole, and which are split into smaller ones before

Modules here import torch; nothing else of the package imports them but when somebody passes something of torch. They know no
compiler: compiled graphs, models and the backend of `torch.compile` are in `mirage/torch`.
"""
