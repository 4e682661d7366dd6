"""The results store: what a search found, kept for the next one."""

from mirage.cache.records import CorruptRecordWarning, RecordInfo
from mirage.cache.store import ResultStore

__all__ = ["CorruptRecordWarning", "RecordInfo", "ResultStore"]
