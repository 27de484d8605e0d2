"""llmserve: an engine and its batching policies, small enough to read and real enough to measure."""

__version__ = "0.1.0"
