from .rank import rank_for_device as rank_for_device
from .result import CudaSuperoptimized as CudaSuperoptimized
from .result import cuda_result_from_json as cuda_result_from_json
from .result import device_shapes as device_shapes
