"""Loop-level tensor programs: what an operator that is not a muGraph computes, element by element (Relax, section 3.2)."""
