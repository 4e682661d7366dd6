from .result import CudaSuperoptimized as CudaSuperoptimized
