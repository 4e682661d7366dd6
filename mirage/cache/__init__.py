"""The results store: what a search found, kept for the next one."""

from mirage.cache.call import CallStore, StoreWarning, store_of
from mirage.cache.leases import Holder, Lease
from mirage.cache.records import CorruptRecordWarning, RecordInfo
from mirage.cache.store import Recalled, ResultStore, check_cache

__all__ = [
    "CallStore", "CorruptRecordWarning", "Holder", "Lease", "Recalled", "RecordInfo", "ResultStore", "StoreWarning",
    "check_cache", "store_of",
]  # fmt: skip
