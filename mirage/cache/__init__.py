"""The results store: what a search found, kept for the next one."""

from mirage.cache.records import CorruptRecordWarning, RecordInfo
from mirage.cache.store import ResultStore, check_cache, store_of

__all__ = ["CorruptRecordWarning", "RecordInfo", "ResultStore", "check_cache", "store_of"]
