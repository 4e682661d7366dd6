"""Front ends: what turns a user's code into programs."""
