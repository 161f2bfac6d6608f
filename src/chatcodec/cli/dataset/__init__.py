"""Data sets into training samples: rows read, made into samples by several processes, and written in parts."""
