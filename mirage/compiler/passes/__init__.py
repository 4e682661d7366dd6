"""The passes of the graph compiler, one file each; `mirage/compiler/pipeline.py` says in which order they run."""
