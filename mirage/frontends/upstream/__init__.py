"""Candidates of the upstream Mirage project's JSON files as muGraphs of a program."""

from mirage.frontends.upstream.candidates import Imported, UpstreamFile

__all__ = ["Imported", "UpstreamFile"]
