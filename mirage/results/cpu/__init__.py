"""Results for the processor: versions of a program that were measured."""
