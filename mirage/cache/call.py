"""The results store as a call uses it: where the store fails, the call goes on without it."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable
from typing import Any, TypeVar

from mirage.cache.leases import Holder, Lease, new_owner
from mirage.cache.records import RecordInfo
from mirage.cache.sqlite import StoreFile, Unsuited
from mirage.cache.store import Recalled, ResultStore, check_cache, recalled, sound
from mirage.errors import CacheError, DamagedCacheError, MirageWarning

T = TypeVar("T")
_LOG = logging.getLogger("mirage.cache")


class StoreWarning(MirageWarning):
    """The results store cannot be used; what is found is not kept, or is kept in a new store."""


class CallStore:
    """A store, by default the default one, which is opened when it is first used; each of its errors is a `StoreWarning`.

    A damaged file gets another name, and a new store takes its place. After any other error, such as a server that is not
    reached, the store is empty and keeps nothing. Until something is kept, the default store's file is read by itself
    (`mirage.cache.sqlite`).
    """

    def __init__(self, store: ResultStore | None = None) -> None:
        self._store = store
        self._url = store.url if store is not None else None
        self._failed = False
        self._file: StoreFile | None = None
        #: whether the default store's file is still read by itself
        self._quick = store is None
        #: how often the file may still be damaged
        self._left = 2

    def recall(self, key: str) -> Recalled | None:
        """As that of `ResultStore`."""
        found = self._use(lambda store: store.recall(key), None, lambda file: _recalled(file, key))
        _LOG.debug("%s: %s", key, "miss" if found is None else "hit", extra={"key": key, "hit": found is not None})
        return found

    def put(self, key: str, payload: dict[str, Any], **about: Any) -> str | None:
        """As that of `ResultStore`."""
        kept = self._use(lambda store: store.put(key, payload, **about), None)
        _LOG.debug("%s: %s", key, "kept" if kept else "not kept", extra={"key": key, "kept": kept is not None})
        return kept

    def checksum(self, key: str) -> str | None:
        """As that of `ResultStore`."""
        return self._use(lambda store: store.checksum(key), None, lambda file: file.checksum(key))

    def family(self, family: str) -> list[RecordInfo]:
        """As that of `ResultStore`."""
        return self._use(lambda store: store.family(family), [], lambda file: list(sound(file.family(family))))

    def acquire(self, key: str) -> Lease | Holder:
        """As that of `ResultStore`; without a store nobody else is waited for."""
        nobody: Lease | Holder = Lease()
        return self._use(lambda store: store.acquire(key), nobody, lambda file: _acquired(file, key))

    def holder(self, key: str) -> Holder | None:
        """As that of `ResultStore`."""
        return self._use(lambda store: store.holder(key), None)

    def _use(self, use: Callable[[ResultStore], T], otherwise: T, quick: Callable[[StoreFile], T] | None = None) -> T:
        if self._quick and quick is not None and self._store is None:
            try:
                self._file = self._file or StoreFile()
                return quick(self._file)
            except Unsuited:
                self._quick = False
        while not self._failed:
            try:
                if self._store is None:
                    self._store = ResultStore(self._url)
                return use(self._store)
            except DamagedCacheError as e:
                self._renew(e)
            except CacheError as e:
                self._fail(e)
        return otherwise

    def _renew(self, error: DamagedCacheError) -> None:
        # SQLAlchemy is imported for the first store
        from mirage.cache.engine import set_aside

        self._store = None
        self._left -= 1
        try:
            aside = set_aside(error.file)
        except OSError:
            self._left = 0
            aside = None
        if not self._left:
            self._fail(error)
            return
        if aside is not None:
            text = f"results store {error.file} is damaged: it is {aside.name} now, and a new store is begun"
            warnings.warn(text, StoreWarning, stacklevel=6)

    def _fail(self, error: CacheError) -> None:
        self._failed = True
        warnings.warn(f"{error}; nothing is recalled or kept", StoreWarning, stacklevel=6)


def _recalled(file: StoreFile, key: str) -> Recalled | None:
    found = recalled(file.find(key))
    if found is not None:
        file.touch(key)
    return found


def _acquired(file: StoreFile, key: str) -> Lease | Holder:
    owner = new_owner()
    holder = file.acquire(key, owner)
    return Lease(file, key, owner) if holder is None else holder


def store_of(cache: ResultStore | bool) -> CallStore | None:
    """The store that an argument `cache` means: itself, the default one for True, none for False.

    Raises CacheError for anything else.
    """
    check_cache(cache)
    if isinstance(cache, ResultStore):
        return CallStore(cache)
    return CallStore() if cache else None
