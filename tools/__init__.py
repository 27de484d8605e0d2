"""The runner: executes the chapters, keeps what they gave, and renders the book. `python -m tools -h`."""
