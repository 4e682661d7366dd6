from .rank import rank_for_device as rank_for_device
from .recall import CudaMemory as CudaMemory
from .records import StoredCudaResult as StoredCudaResult
from .result import CudaSuperoptimized as CudaSuperoptimized
from .result import device_shapes as device_shapes
from .result import restored as restored
