"""The exact solvers: NumPy in, NumPy out. No framework is imported here."""
