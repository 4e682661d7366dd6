"""The emitter of C: muGraphs and schedules as source."""
