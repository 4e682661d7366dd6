"""ONNX models as modules of the graph IR.

    types       element types and annotations of ONNX's types, and back
    values      what is known of values before a call: constants, and shapes with symbolic dims
    nodes       what is known of a node, and where names of values are looked up
    table       what a lowering is, and the table of all of them
    lower_*     the lowerings, one line per operator where one line says it
    bodies      operators that are functions of others, as their schemas say
    fallback    every other operator: a call of ONNX's reference evaluator
    reference_ops   operators that the evaluator gets wrong, or does not bound
    importer    a model, node by node
    files       models from files, checked before anything is made of them
    objects     values that are no tensors, without onnx

Modules here but the last import onnx; nothing else of the package imports them but when somebody passes a model. They know no
compiler: compiled models are in `mirage/onnx`.
"""
