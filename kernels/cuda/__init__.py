"""The CUDA backend: muGraphs printed to Triton, compiled ahead of time, launched through CuPy.

What all parts share is here: devices, emitted code as data (`emitted.py`) and the values of its arguments. The parts, in the
order in which a muGraph passes through them:

- `schedules/`: schedules, candidates as arrays, the scheduler that orders them by the model, layouts between kernels
- `model/`: what a schedule costs
- `emit/`: a muGraph and its schedule as Triton source
- `compile/`: machine code, ahead of time and cached by content
- `launch/`: arrays of any library, the plan of a call, calls, CUDA graphs, timing
- `library/`: libraries by name; predefined operators and whole programs by cuBLASLt and CuPy
- `gemm/`: CUTLASS as one of these libraries: products with an epilogue
- `interpret/`: Triton code run on the processor, for tests
- `loops/`: all of this for the loop programs of operators that are no muGraphs
"""
