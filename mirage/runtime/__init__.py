"""What happens when a result is called: arrays in, sizes bound, arrays of the same kind out."""
