"""Every error of the package, one class per mistake, all under `MirageError`.

A message names the operator or dim, shows both sides, and says what to do.
"""

from __future__ import annotations

from pathlib import Path


class MirageError(Exception):
    """Base class of every error that the package raises on purpose."""


class DimError(MirageError):
    """A dim expression cannot be read, bound or solved."""


class ConstraintError(MirageError):
    """Facts about dims that contradict each other; names the reasons of both."""


class DTypeError(MirageError):
    """An element type that is unknown, or not supported where it was used."""


class ShapeError(MirageError):
    """Operand shapes that an operator cannot combine."""


class AttributeValueError(MirageError):
    """An operator attribute with a wrong name, type or value."""


class UnknownOperator(MirageError):
    """An operator name that is not in the registry."""


class DuplicateOperator(MirageError):
    """A second registration of an operator name."""


class TraceError(MirageError):
    """A Python function that does not trace to a program."""


class UnsupportedNode(MirageError):
    """A node of another framework's graph that the graph IR cannot express; says why."""


class ParseError(MirageError):
    """Program text that does not parse; names the line."""


class FormatError(MirageError):
    """A file or JSON object that is not what it claims to be, or of another schema version."""


class AxisError(MirageError):
    """A program whose dims cannot be expressed as products of axis factors; says why."""


class InputError(MirageError):
    """Arrays that do not fit the program's inputs, or a file that cannot be read or written."""


class GuardError(InputError):
    """A call whose shapes break a constraint of a compiled function; names the argument, the dim, its constraint and its size."""


class UnknownFunction(MirageError):
    """A library or packed function that is not registered."""


class DuplicateFunction(MirageError):
    """A second registration of a library or packed function."""


class GraphError(MirageError):
    """A muGraph that breaks a rule of its level, or a graph module that is not well-formed; names the binding."""


class InferenceError(GraphError):
    """A type that nothing tells, or that two uses tell differently; names both sides and their lines."""


class DataError(MirageError):
    """A data type that is not declared well, or values that are not of one; names the type and the field."""


class ClauseError(GraphError):
    """A match that leaves a case out, or has a clause that nothing reaches; shows the pattern."""


class DepthError(MirageError):
    """Calls of functions that are nested deeper than the machine goes; names the function."""


class LoopError(MirageError):
    """A loop-level program that breaks a rule: an unknown tensor, a wrong rank or type, an index that nothing checks."""


class ScheduleError(MirageError):
    """A schedule that does not bind a muGraph's symbols, or binds them to impossible sizes."""


class TermTooLarge(MirageError):
    """An expression whose normal form exceeds the expansion limit."""


class UnknownPruner(MirageError):
    """A pruner name that does not exist."""


class UnknownTarget(MirageError):
    """A target name that does not exist."""


class SearchError(MirageError):
    """A search that was asked for something impossible."""


class JobError(MirageError):
    """A unit of a search that failed, or whose worker process died; names the unit."""


class JobFileError(MirageError):
    """A file that describes a search job and cannot be used; names the task and the key."""


class JobBusyError(MirageError):
    """A search job that another process is working on."""


class UnknownJobError(MirageError):
    """A search job that does not exist."""


class ExecutorError(MirageError):
    """An executor that cannot be reached, or that has no workers for what is to be done."""


class VerificationError(MirageError):
    """A graph or program that was required to be equivalent and is not."""


class FieldError(MirageError):
    """Finite-field parameters for which no primes or no error bound exist."""


class ConstantsCollide(FieldError):
    """Two constants of a comparison are equal modulo a prime: others have to be drawn."""


class QuantizationError(MirageError):
    """A quantization scheme, or a rule of one, that there is not, or a program that cannot be quantized."""


class CalibrationError(MirageError):
    """Data that scales cannot be chosen from: none, of other shapes, or values that are not finite; names the sample."""


class NoCompilerError(MirageError):
    """No compiler was found: of C, or of Triton for a CUDA target."""


class CompilerError(MirageError):
    """The compiler, of C or of Triton, rejected a kernel, or what it made does not load."""


class DeviceError(MirageError):
    """A kernel was to run on a CUDA device, and none is at hand, or it is of another architecture."""


class LibraryError(MirageError):
    """A library that is not installed, finds no device, or refuses a call."""


class UnsafeCacheError(MirageError):
    """A cache folder or library that another user could have written."""


class CacheError(MirageError):
    """The results store cannot be opened or written."""


class DamagedCacheError(CacheError):
    """The file of the results store is damaged, or is something else."""

    def __init__(self, message: str, file: Path) -> None:
        super().__init__(message)
        self.file = file


class NewerCacheError(CacheError):
    """The results store has tables of a later release."""


class CacheFormatError(MirageError):
    """A file that is not an export of a results store."""


class UnverifiableRecord(MirageError):
    """A record of a results store that is sound, and of which this release cannot tell here whether it is true; says why."""


class SettingError(MirageError):
    """An environment variable with a value that it cannot have; names both and what is allowed."""


class MirageWarning(UserWarning):
    """Base class of every warning of the package."""


class DegradedWarning(MirageWarning, RuntimeWarning):
    """Something failed that is not needed for a right result: it takes longer, or runs slower; says what."""


class SettingWarning(MirageWarning):
    """An environment variable that begins as the settings do and is none."""


class BudgetError(MirageError):
    """A time budget that is not a positive number of seconds."""


class RuleError(MirageError):
    """A rewrite rule is malformed, is taken, or is not true."""


class GradientError(MirageError):
    """A gradient that does not exist, or is not asked for as it can be; names the operator or value, and says what to do."""


class PatternError(MirageError):
    """A pattern of operators, or its registration, that cannot be used."""
