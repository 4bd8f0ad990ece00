"""The fp64 reference that every kernel is judged against; it shares no code with any kernel."""
