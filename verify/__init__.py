"""Evidence that a muGraph computes its program: proof, finite fields, numerical safety."""
