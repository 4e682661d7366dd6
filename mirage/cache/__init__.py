"""The results store: what a search found, kept for the next one."""

from mirage.cache.call import CallStore, StoreWarning, store_of
from mirage.cache.records import CorruptRecordWarning, RecordInfo
from mirage.cache.store import ResultStore, check_cache

__all__ = [
    "CallStore", "CorruptRecordWarning", "RecordInfo", "ResultStore", "StoreWarning", "check_cache", "store_of",
]  # fmt: skip
